"""The settings of `vitling doctor`. Plain data without torch; the flags and their help are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitling.errors import UserError
from vitling.ranges import SEED


@dataclass(frozen=True)
class DoctorConfig:
    """Settings of `vitling doctor`."""

    run: Annotated[str, Positional, arg(metavar="RUN")]
    """A run of train, pretrain or finetune. Its images and labels are checked."""
    out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="(default: RUN/doctor)")] = None
    """Directory for suspects.csv, suspects.png, labels.json and probabilities.npz."""
    folds: int = 0
    """Train the run's second stage this many times, each time without one part of the images, and check that part.
    Slower and more accurate. Default: logistic regression and k-NN on the features of the stage that used no labels."""
    at_once: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """With --folds: number of folds that are trained at the same time. Default: 3 on a GPU, else 1."""
    fill: Literal["given", "suggested", "drop"] = "given"
    """Content of the column label in suspects.csv, which --labels reads back: given changes nothing until edited."""
    top: int = 30
    """Suspects in the printed table and in suspects.png; suspects.csv has all."""
    labels: Annotated[str | None, arg(metavar="CSV", help_behavior_hint="(default: that of the run)")] = None
    """Corrected labels to check: a CSV with the columns path and label."""
    seed: Annotated[int, SEED] = 0
    """Random seed of the folds."""
    allow_bad: bool = False
    """Continue even if more than 1 % of the files cannot be read."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def check(self) -> None:
        """Raise UserError for values out of range."""
        if self.folds < 0 or self.folds == 1:
            raise UserError(f"--folds {self.folds}: use 2 or more, such as 5, or 0 for a classifier on the features.")
        if self.top < 1 or (self.at_once is not None and self.at_once < 1):
            raise UserError("--top and --at-once must be at least 1.")
