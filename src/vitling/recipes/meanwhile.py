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
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from vitling.files import read_json
from vitling.recipes.config import TrainConfig, saved_config
from vitling.recipes.labelled import ready
from vitling.recipes.running import open_labelled
from vitling.training.moments import Moment
from vitling.training.pace import first_steps
from vitling.training.precision import chosen_compile
from vitling.training.processes import Processes, started
from vitling.training.rundir import RunDirectory

CORES = 4  # with fewer it would take the first stage's
LEAST = 2**31  # bytes of a GPU's memory
CONTEXT = 2**30  # what CUDA takes in a process, beside the tensors
PATIENCE = 180.0  # seconds; after them the second stage had better do the work itself


class Meanwhile:
    """Begins at the first look at the network that trains: by then it is known how much memory that one takes, and
    the rest is the helper's. Leaving the block ends it."""

    def __init__(self, run: RunDirectory, config: TrainConfig, processes: Processes):
        self.run, self.device = run, processes.device
        self.wanted = processes.world == 1 and _is_worth_it(config, self.device)
        self.helper: subprocess.Popen | None = None

    def __enter__(self) -> Meanwhile:
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8")
        return self

    def __exit__(self, *problem: Any) -> None:
        if self.helper is not None and self.helper.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.helper.pid, signal.SIGKILL)  # the compiler has processes of its own
            self.helper.wait()
        self.output.close()

    def watcher(self, every: int) -> _FirstLook:
        return _FirstLook(self, every)

    def start(self) -> None:
        memory = _memory_to_spare(self.device)
        if not self.wanted or self.helper is not None or memory < LEAST:
            return
        command = [sys.executable, "-m", __name__, str(self.run.path / "config.json"), str(memory)]
        self.helper = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, start_new_session=True
        )
        self.run.log.say("Meanwhile another process decodes the images of the second stage, and compiles it.")

    def finish(self) -> None:
        """Waits for the helper; it began earlier than this process could."""
        if self.helper is None:
            return
        try:
            self.helper.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.run.log.say("Waiting for the second stage to be compiled.")
            with suppress(subprocess.TimeoutExpired):
                self.helper.wait(timeout=PATIENCE)
        if self.helper.poll() != 0:
            self.output.seek(0)
            said = self.output.read().strip() or f"it ended with {self.helper.poll()}"
            self.run.log.note(f"The second stage was not prepared, which costs time and nothing else:\n{said[-4000:]}")


class _FirstLook:
    """A watcher, which the loop calls when it looks at the network anyway."""

    def __init__(self, meanwhile: Meanwhile, every: int):
        self.meanwhile, self.every = meanwhile, every

    def __call__(self, moment: Moment) -> dict[str, float]:
        if not moment.last:
            self.meanwhile.start()
        return {}


def _is_worth_it(config: TrainConfig, device: torch.device) -> bool:
    """Views of a GPU run are compiled whenever the network is. How many steps there will be is not known yet; runs with
    few of them are short."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    compiles = chosen_compile(config.loop, device, steps=sys.maxsize) != "off"
    return device.type == "cuda" and compiles and cores >= CORES


def _memory_to_spare(device: torch.device) -> int:
    if device.type != "cuda":
        return LEAST
    free = torch.cuda.mem_get_info(device)[0]
    may_still_take = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return free - may_still_take - CONTEXT


def prepare(config: TrainConfig, memory: int) -> None:
    """The helper's work: the second stage up to its first steps, in a folder that is thrown away."""
    with started(config.loop.device) as processes, tempfile.TemporaryDirectory() as folder:
        if processes.device.type == "cuda":
            whole = torch.cuda.get_device_properties(processes.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), processes.device)
        config = replace(config, out=folder, from_=None, resume=False, overwrite=False)
        run = RunDirectory(folder, writes=False)
        stage = ready(config, open_labelled(config), run, processes)
        if config.cache:
            stage.stores.decode_test()
        first_steps(stage.objective, stage.stores.train, stage.config.for_the_loop(), processes)


if __name__ == "__main__":
    with suppress(OSError, AttributeError):
        os.nice(10)
    prepare(saved_config(TrainConfig, read_json(sys.argv[1])), int(sys.argv[2]))
