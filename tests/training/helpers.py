"""Helpers of the tests of training: a tiny run, its files, and runs in two processes."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from tests.tiny import Stop, StopAfter, relative_distance, tiny_backbone
from vitling import data
from vitling.data.store import Store, build_store
from vitling.methods.supervised.loss import Supervised
from vitling.objectives import Objective
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, Processes, RunDirectory, fit
from vitling.training.processes import init_processes
from vitling.views import ViewsConfig

Kind = TypeVar("Kind", bound=Supervised)
QUIET = LoopConfig(trackers=(), device="cpu")
ALONE = Processes(0, 1, torch.device("cpu"))


def open_store(images: Path | str, size: int = 16) -> Store:
    return build_store(data.open(str(images), val="none").train, size)


def objective(drop_path: float = 0.0, kind: type[Kind] = Supervised) -> Kind:
    torch.manual_seed(0)
    return kind(tiny_backbone(drop_path=drop_path), ViewsConfig().plan(16), classes=3)


def config(**changes) -> FitConfig:
    base = FitConfig(epochs=4, batch=8, optim=OptimConfig(lr=2e-3), loop=QUIET, checkpoint=CheckpointConfig(0.0))
    return replace(base, **changes)


def run_in(folder: Path) -> RunDirectory:
    run = RunDirectory(folder)
    run.prepare(resume=folder.exists() and any(folder.iterdir()), overwrite=False)
    if not (folder / "config.json").exists():
        run.start(asdict(config()), ())
    return run


def train(store, folder: Path, settings: FitConfig | None = None, watchers=(), model: Supervised | None = None):
    model = model or objective()
    outcome = fit(model, store, settings or config(), watchers, run=run_in(folder))
    return model, outcome


def weights(model) -> list[torch.Tensor]:
    return [v.clone() for v in model.state_dict().values()]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def close(a, b, atol=1e-5) -> bool:
    return all(torch.allclose(x, y, atol=atol) for x, y in zip(a, b, strict=True))


class Score:
    """Watcher that returns a given score for each epoch, and stops the run in the epoch after `last`."""

    def __init__(self, *scores: float, every: int = 1, last: float = math.inf):
        self.scores, self.every, self.last, self.seen = scores, every, last, []

    def __call__(self, moment):
        if moment.epoch > self.last:
            raise Stop
        self.seen.append((moment.epoch, moment.objective.training, weights(moment.objective)))
        return {"score": self.scores[moment.epoch - 1]}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_two_processes(module: str, images: Path, out: Path) -> None:
    """Run `python -m module images out` in two processes that know each other as torchrun's would."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", module, str(images), str(out)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    cache = {"VITLING_CACHE": str(out.parent / f"{out.name}-cache")}
    both = [
        subprocess.Popen(command, env={**os.environ, **group, **cache, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=300)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)


def run_process(kinds: Iterable[str], train: Callable[[str, Store, Path, Processes], object]) -> None:
    """Train a run of each kind in OUT/KIND, as one of several processes: python -m MODULE IMAGES OUT."""
    with init_processes("cpu") as processes:
        store = open_store(sys.argv[1])
        for kind in kinds:
            train(kind, store, Path(sys.argv[2]) / kind, processes)
    os._exit(0)  # a torch thread once aborted the process after all work was done


def fit_resumed(
    make: Callable[[], Objective], store: Store, settings: FitConfig, out: Path, processes: Processes
) -> None:
    """Train; with several processes the run is stopped after its second epoch and resumed."""
    out.mkdir(exist_ok=True)
    for last in (4,) if processes.world == 1 else (2, 4):
        with suppress(Stop):
            run = RunDirectory(out, processes.is_main)
            fit(make(), store, settings, [StopAfter(last)], run=run, processes=processes)


def latest(folder: Path) -> dict:
    """Load the last checkpoint."""
    return torch.load(sorted((folder / "checkpoints").iterdir())[-1])


def check_equal_runs(run: Path, other: Path, start: dict) -> None:
    """Compare the last checkpoints of two runs relative to their weights at the start, and their losses."""
    one, two = latest(run), latest(other)
    assert relative_distance(one["objective"], two["objective"], start) < 1e-3
    assert relative_distance(one["average"]["shadow"], two["average"]["shadow"], start) < 1e-3
    assert one["optimiser"]["state"].keys() == two["optimiser"]["state"].keys()
    for index, moments in one["optimiser"]["state"].items():
        for name, value in moments.items():
            found = two["optimiser"]["state"][index][name]
            assert (found - value).norm() <= 1e-3 * value.norm() + 1e-6, (index, name)
    for a, b in zip(lines(run), lines(other), strict=True):
        assert (a["epoch"], a["step"]) == (b["epoch"], b["step"])
        assert abs(a["loss"] - b["loss"]) < 1e-4


@dataclass
class StandInTask:
    """Stands for a task of a compile server."""

    folder: Path
    device: str = "cpu"
    compiled: bool = True

    def run(self) -> None:
        (self.folder / "compiled").touch()
