"""Loss terms, kept on the device until a line of metrics is due, so that the host does not wait at every step.

Reading them also checks them: the first value that is not finite aborts the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitling.errors import RunAborted
from vitling.training.processes import Processes


@dataclass
class _Row:
    step: int
    epoch: int
    images: int
    values: Tensor


@dataclass
class Recorder:
    """Terms of the steps since the last reading, and their sums over epochs."""

    processes: Processes
    checks_gradients: bool  # not in fp16, where infinite gradients are normal and skipped by the scaler
    names: list[str] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    best_pace: float = 0.0
    since: float = field(default_factory=time.perf_counter)
    totals: dict[int, list[Tensor]] = field(default_factory=dict)  # epoch -> values read so far

    def add(self, step: int, epoch: int, images: int, terms: dict[str, Tensor]) -> None:
        self.names = list(terms)
        values = torch.stack([value.detach().float() for value in terms.values()])
        self.rows.append(_Row(step, epoch, images, values))

    def read(self, advice: Callable[[int], str], waited: float) -> dict[str, float]:
        """Check all steps since the last reading and return their pace; `waited` seconds went into waiting for data."""
        if not self.rows:
            return {}
        values = self.processes.mean(torch.stack([row.values for row in self.rows])).cpu()
        for row, line in zip(self.rows, values):
            self._check(row, line, advice)
            self.totals.setdefault(row.epoch, []).append(line)
        now = time.perf_counter()
        seconds, images = max(now - self.since, 1e-9), sum(row.images for row in self.rows)
        pace = {"images_per_second": images / seconds, "data_wait": waited / seconds}
        self.best_pace = max(self.best_pace, pace["images_per_second"])
        self.rows, self.since = [], now
        return pace

    def restart_clock(self) -> None:
        """Exclude the time of watchers and checkpoints, unless steps are still waiting to be read."""
        if not self.rows:
            self.since = time.perf_counter()

    def means(self, epoch: int) -> dict[str, float]:
        """Average the terms over all steps of an epoch that have been read."""
        lines = self.totals.get(epoch)
        if not lines:
            return {}
        return dict(zip(self.names, torch.stack(lines).mean(dim=0).tolist()))

    def state_dict(self) -> dict[str, Any]:
        """Return what has been read of an unfinished epoch, so that its means are complete after a resume."""
        return {"names": self.names, "totals": {epoch: torch.stack(lines) for epoch, lines in self.totals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = state["names"]
        self.totals = {epoch: list(lines.cpu().unbind()) for epoch, lines in state["totals"].items()}

    def epochs_before(self, epoch: int) -> list[int]:
        return sorted(e for e in self.totals if e < epoch)

    def forget(self, epoch: int) -> None:
        del self.totals[epoch]

    def _check(self, row: _Row, line: Tensor, advice: Callable[[int], str]) -> None:
        for name, value in zip(self.names, line.tolist()):
            if math.isfinite(value) or (name == "grad_norm" and not self.checks_gradients):
                continue
            what = "the gradient" if name == "grad_norm" else f"the term '{name}'"
            raise RunAborted(f"Step {row.step} (epoch {row.epoch + 1}): {what} is {value}. {advice(row.step)}")


def describe(entry: dict[str, Any], epochs: int) -> str:
    """Format an entry of metrics.jsonl as one line for the terminal."""
    skipped = ("kind", "step", "epoch", "lr", "images_per_second", "data_wait", "grad_norm")
    shown = {name: value for name, value in entry.items() if name not in skipped}
    if len([name for name in shown if "/" not in name]) == 2:  # the loss and its only term: show the loss
        shown = {name: value for name, value in shown.items() if name == "loss" or "/" in name}
    terms = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
    pace = f"{entry.get('images_per_second', 0):.0f} images/s  waiting {entry.get('data_wait', 0):.0%}"
    return f"epoch {entry['epoch']}/{epochs}  {terms}  lr {entry['lr']:.2e}  {pace}"
