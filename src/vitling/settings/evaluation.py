"""What an evaluation is told. Plain data, no torch; the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from tyro.conf import Positional, arg

from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.evaluation.config import Probe, ProbesConfig


@dataclass(frozen=True)
class EvaluationConfig:
    """How good a trained model, or a probe of its features, is on a data set.

    Without --with the model's own answers are judged.

    With it, classifiers are trained on its features: any classes will do, and the model need not have learnt any.
    """

    run: Annotated[str, Positional, arg(metavar="RUN")]
    """A run directory or a model folder."""
    source: Annotated[str, Positional, arg(metavar="DATA")]
    """Labelled images; without --with the class names must be those of the model."""
    split: Literal["auto", "train", "val", "test"] = "auto"
    """Which of the data's splits; auto takes test, else val, else everything (with --with: images held out)."""
    weights: Literal["last", "best"] = "last"
    """Of the last epoch, or of the best on validation."""
    size: Annotated[int | None, arg(help_behavior_hint="")] = None
    """Pixels of a view. By default those that the model was trained with; somewhat more is often better, since random
    crops show things larger than they are."""
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Write everything, the confusion matrix too, as JSON."""
    allow_bad: bool = False
    """Go on although more than 1 % of the files cannot be read."""
    device: str = "auto"
    """auto, cpu, cuda."""
    probes: Annotated[
        tuple[Probe, ...], arg(name="with", metavar="{knn,linear,logistic,few-shot} ...", help_behavior_hint="")
    ] = ()
    """Probes of the frozen features, trained on train, chosen on validation, judged on the split."""
    settings: Annotated[ProbesConfig, arg(name="")] = field(default_factory=ProbesConfig)
    """What the probes of --with are told."""
    data: DataConfig = field(default_factory=DataConfig)
    """How the images are read; channels and bits are the model's."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        self.settings.check()
        if self.source in get_args(Probe) and not Path(self.source).exists():  # of --with, taken for DATA
            raise UserError(f"Which images? DATA comes first: vitling evaluate {self.run} DATA --with {self.source}")
        if self.size is not None and self.size < 1:
            raise UserError(f"--size must be at least 1, not {self.size}.")
        if not self.probes and self.settings != ProbesConfig():
            raise UserError(
                "--metric, --val, --seed, --knn, --linear, --logistic and --few-shot belong to --with PROBES."
            )
