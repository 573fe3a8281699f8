"""Precompile the second stage in another process while the first stage trains.

The process decodes the images and compiles the network; both end up in vitling's cache, where the second stage finds
them. If it fails, the second stage does the work itself.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from typing import Any

import torch

from vitling.loading import read_json
from vitling.objectives.moments import Moment
from vitling.runs.images import open_labelled
from vitling.runs.labelled import prepare_stage
from vitling.runs.opening import OpenRun
from vitling.settings.config import TrainConfig
from vitling.settings.resolve import Resolved
from vitling.settings.saved import load_resolved, reopen
from vitling.training.compilation import choose_compile
from vitling.training.helpers import Helper, become_helper, can_start_helper
from vitling.training.pace import warm_compile_cache
from vitling.training.processes import init_processes
from vitling.training.rundir import RunDirectory

VERB = "_precompile"  # hidden command
_MIN_CORES = 4  # with fewer it would slow down the first stage
_MIN_GPU_BYTES = 2**31
_CUDA_CONTEXT_BYTES = 2**30  # that CUDA takes in a process in addition to the tensors
_FIRST_STEP = 20  # by then the first stage has captured all its graphs
_MAX_WAIT_SECONDS = 900.0
_MAX_WAIT_SHARE = 1 / 4  # of the time that --minutes leaves


class Precompiler:
    """Starts the process once the memory of the first stage is known, with half of what is left on the GPU.

    Leaving the block ends it, and so does the end of this process, whatever the cause.
    """

    def __init__(self, run: OpenRun, config: TrainConfig, wanted: bool = True):
        self.directory, self.device = run.directory, run.processes.device
        self.wanted = wanted and run.processes.world == 1 and _is_worthwhile(config, self.device)
        self.helper: Helper | None = None

    def __enter__(self) -> Precompiler:
        if self.wanted and self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.helper is not None:
            self.helper.stop()

    def make_watcher(self, every: int) -> _StartWatcher:
        return _StartWatcher(self, every)

    def start(self) -> None:
        memory = _spare_memory(self.device)
        if not self.wanted or self.helper is not None or memory < _MIN_GPU_BYTES:
            return
        try:
            self.helper = Helper(VERB, str(self.directory.path / "config.json"), str(memory))
        except OSError as problem:
            self.wanted = False
            self.directory.log.debug(f"The second stage is not precompiled: {problem}")
        else:
            self.directory.log.debug("Precompiling the second stage in another process.")

    def finish(self, seconds_left: float | None) -> None:
        """Wait for the process, at most a quarter of the time left."""
        if self.helper is None:
            return
        if not self.helper.ends_within(1):
            self.directory.log.info("Waiting for the second stage to compile.")
            limit = _MAX_WAIT_SECONDS if seconds_left is None else _MAX_WAIT_SHARE * seconds_left
            self.helper.ends_within(min(_MAX_WAIT_SECONDS, limit))
        if problem := self.helper.find_problem():
            self.directory.log.debug(f"The second stage was not precompiled, which only costs time ({problem})")


class _StartWatcher:
    """Watcher that starts the precompiler when the loop evaluates the network anyway."""

    def __init__(self, precompiler: Precompiler, every: int):
        self.precompiler, self.every = precompiler, every

    def __call__(self, moment: Moment) -> dict[str, float]:
        grows = moment.objective.phases > 1 and not moment.objective.phase  # a later phase takes more memory
        if moment.step >= _FIRST_STEP and not grows and not moment.last:
            self.precompiler.start()
        return {}


def _is_worthwhile(config: TrainConfig, device: torch.device) -> bool:
    """Return whether the second stage compiles and the machine can spare a process; its steps are not known yet."""
    compiles = choose_compile(config.loop, device, steps=sys.maxsize) != "off"
    return device.type == "cuda" and compiles and config.cache and can_start_helper(_MIN_CORES)


def _spare_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _MIN_GPU_BYTES
    free = torch.cuda.mem_get_info(device)[0]
    growth = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return (free - growth) // 2 - _CUDA_CONTEXT_BYTES


def prepare(saved: Resolved[TrainConfig], memory: int) -> None:
    """Run the second stage up to its first steps, in a temporary folder. The test split is decoded, not opened."""
    with init_processes(saved.config.loop.device) as processes, tempfile.TemporaryDirectory() as folder:
        if processes.device.type == "cuda":
            whole = torch.cuda.get_device_properties(processes.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), processes.device)
        config = replace(saved.config, out=folder, from_=None, resume=False, overwrite=False)
        draft = reopen(replace(saved, config=config))
        run = OpenRun(draft, RunDirectory(folder, writes=False), processes)
        stage = prepare_stage(run, draft, open_labelled(config, run.source))
        resolved = stage.resolved.config
        warm_compile_cache(stage.build_trial(resolved), stage.stores.train, resolved.fit_config(), processes)
        stage.stores.decode_test()


def run_in_background(config: str, memory: str) -> None:
    """Precompile the run of a config.json with little priority; end with the process that started this one."""
    become_helper()
    prepare(load_resolved(TrainConfig, read_json(config), config), int(memory))
