"""A run with a deadline in one of two processes: python -m ... IMAGES OUT, with RANK and WORLD_SIZE as torchrun sets
them.

Steps take a second in the second process and three in the first. It leaves the length of the run in OUT/RANK.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.training.helpers import config, objective, open_store
from vitling.files import write_json
from vitling.training import CheckpointConfig, RunDirectory, deadline, fit
from vitling.training.deadline import Deadline
from vitling.training.processes import init_processes
from vitling.training.trainer import Trainer

SECONDS = 100.0  # of the run


def main(images: str, out: Path) -> None:
    with init_processes("cpu") as processes:
        store, take, now = open_store(images), Trainer.step, [0.0]

        def step(trainer, loaded):
            now[0] += 3.0 if processes.is_main else 1.0
            return take(trainer, loaded)

        Trainer.step = step
        deadline.time.monotonic = lambda: now[0]
        (out / str(processes.rank)).mkdir()
        settings = config(epochs=3, batch=8, checkpoint=CheckpointConfig(1e9))
        limit = SECONDS + 0.3 * processes.rank  # their clocks differ
        run = RunDirectory(out / str(processes.rank), processes.is_main)
        found = fit(objective(), store, settings, run=run, processes=processes, deadline=Deadline(limit, 100))
        write_json(out / f"{processes.rank}.json", {"epochs": found.epochs, "steps": found.steps})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # see idmm_run.py
