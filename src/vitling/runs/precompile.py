"""While the first stage trains, another process decodes the images of the second one and compiles it.

What it leaves are entries in vitling's cache: decoded pixels, and the compiler's graphs. The second stage finds them
there, as one that is started again does. Where the helper fails, the second stage does the work itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import IO, Any

import torch

from vitling.data.host import count_cores, get_free_memory
from vitling.files import read_json
from vitling.objectives.moments import Moment
from vitling.runs.labelled import ready
from vitling.runs.running import open_labelled
from vitling.settings.config import TrainConfig
from vitling.settings.names import saved_config
from vitling.training.pace import warm_compile_cache
from vitling.training.precision import choose_compile
from vitling.training.processes import Processes, init_processes
from vitling.training.rundir import RunDirectory
from vitling.training.signals import call_on_parent_exit

CORES = 4  # with fewer it would take the first stage's
HOST = 8 * 2**30  # bytes that must be free: torch, and the compiler's processes
LEAST = 2**31  # bytes of a GPU's memory
STEPS = 20  # by then all that the first stage records has been
CONTEXT = 2**30  # bytes that CUDA takes in a process, beside the tensors
PATIENCE = 900.0  # seconds to wait for it; it began earlier than the second stage could
SHARE = 1 / 4  # of the time that --minutes leaves, at most
KILLING = 5.0  # seconds to clean up


class Meanwhile:
    """Begins at a look at the network that trains, when it is known how much memory that takes: half of the rest is
    the helper's. Leaving the block ends it, and so does the end of this process, whatever it dies of."""

    def __init__(self, run: RunDirectory, config: TrainConfig, processes: Processes):
        self.run, self.device = run, processes.device
        self.wanted = processes.world == 1 and _is_worth_it(config, self.device)
        self.helper: subprocess.Popen | None = None
        self.output: IO[str] | None = None
        self.opened = ExitStack()

    def __enter__(self) -> Meanwhile:
        if self.wanted and self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *problem: Any) -> None:
        if self.helper is not None and self.helper.poll() is None:
            self._end(self.helper)
        self.opened.close()

    @staticmethod
    def _end(helper: subprocess.Popen) -> None:
        """With the processes of its compiler; first in a way that lets it clean up."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(helper.pid, how)
            with suppress(subprocess.TimeoutExpired):
                helper.wait(timeout=KILLING)
                return

    def watcher(self, every: int) -> _Look:
        return _Look(self, every)

    def start(self) -> None:
        memory = _memory_to_spare(self.device)
        if not self.wanted or self.helper is not None or memory < LEAST:
            return
        command = [sys.executable, "-P", "-m", __name__, str(self.run.path / "config.json"), str(memory)]
        try:
            said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, closed on leaving
            self.output = self.opened.enter_context(said)
            self.helper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self.output, stderr=self.output, start_new_session=True
            )
        except OSError as problem:
            self.wanted = False
            self.run.log.debug(f"The second stage is not prepared meanwhile: {problem}")
        else:
            assert self.helper.stdin is not None
            self.opened.enter_context(self.helper.stdin)
            self.run.log.debug("Another process decodes the images of the second stage meanwhile, and compiles it.")

    def finish(self, left: float | None) -> None:
        """Waits for the helper, but for no more than a part of the seconds that are `left`."""
        if self.helper is None or self.output is None:
            return
        try:
            self.helper.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.run.log.info("Waiting for the second stage to be compiled.")
            with suppress(subprocess.TimeoutExpired):
                self.helper.wait(timeout=PATIENCE if left is None else max(0.0, min(PATIENCE, SHARE * left)))
        status = self.helper.poll()
        if status != 0:
            self.output.seek(0)
            said = self.output.read().strip()[-4000:]
            ended = "it took too long" if status is None else f"it ended with {status}"
            self.run.log.debug(f"The second stage was not prepared, which costs time and nothing else; {ended}. {said}")


class _Look:
    """A watcher, which the loop calls when it looks at the network anyway."""

    def __init__(self, meanwhile: Meanwhile, every: int):
        self.meanwhile, self.every = meanwhile, every

    def __call__(self, moment: Moment) -> dict[str, float]:
        grows = moment.objective.phases > 1 and not moment.objective.phase  # a later phase takes more memory
        if moment.step >= STEPS and not grows and not moment.last:
            self.meanwhile.start()
        return {}


def _is_worth_it(config: TrainConfig, device: torch.device) -> bool:
    """How many steps there will be is not known yet; runs with few of them are short."""
    compiles = choose_compile(config.loop, device, steps=sys.maxsize) != "off"
    able = hasattr(os, "killpg") and count_cores() >= CORES and get_free_memory() >= HOST
    return device.type == "cuda" and compiles and config.cache and able


def _memory_to_spare(device: torch.device) -> int:
    if device.type != "cuda":
        return LEAST
    free = torch.cuda.mem_get_info(device)[0]
    may_still_take = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return (free - may_still_take) // 2 - CONTEXT


def prepare(config: TrainConfig, memory: int) -> None:
    """The helper's work: the second stage up to its first steps, in a folder that is thrown away. The test split is
    decoded, not opened."""
    with init_processes(config.loop.device) as processes, tempfile.TemporaryDirectory() as folder:
        if processes.device.type == "cuda":
            whole = torch.cuda.get_device_properties(processes.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), processes.device)
        config = replace(config, out=folder, from_=None, resume=False, overwrite=False)
        run = RunDirectory(folder, writes=False)
        stage = ready(config, open_labelled(config), run, processes)
        warm_compile_cache(stage.objective, stage.stores.train, stage.config.for_the_loop(), processes)
        stage.stores.decode_test()


def _end_with_the_parent() -> None:
    def end() -> None:
        os.killpg(0, signal.SIGTERM)
        time.sleep(KILLING)
        os.killpg(0, signal.SIGKILL)

    call_on_parent_exit(end)


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *signal: sys.exit(1))
    _end_with_the_parent()
    with suppress(OSError, AttributeError):
        os.nice(10)
    prepare(saved_config(TrainConfig, read_json(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    _main()
