"""The settings of `vitling evaluate`. Plain data without torch; the flags and their help are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from tyro.conf import Positional, arg

from vitling.data.annotations.config import AnnotationConfig
from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.evaluation.config import Probe, ProbesConfig, check_coverage
from vitling.ranges import SIDE, check_ranges


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of `vitling evaluate`."""

    run: Annotated[str, Positional, arg(metavar="RUN")]
    """A run directory or a model folder."""
    source: Annotated[str, Positional, arg(metavar="DATA")]
    """Labelled images, or annotated ones for a model of detect or segment. Without --with, their classes must be those
    of the model."""
    split: Literal["auto", "train", "val", "test"] = "auto"
    """Split to evaluate on; auto is test, else val, else all images (with --with: a hold-out)."""
    weights: Literal["last", "best"] = "last"
    """Weights of the last epoch, or of the best epoch on validation."""
    size: Annotated[int | None, SIDE, arg(help_behavior_hint="")] = None
    """Side of a view in pixels. Default: the size used in training; a slightly larger one often scores higher."""
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """File for all results, including the confusion matrix of up to 2,000 classes, as JSON."""
    mistakes: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """File for the images that the model gets wrong, as CSV, the most confident mistakes first."""
    coverage: Annotated[float | None, arg(help_behavior_hint="")] = None
    """Also evaluate prediction sets, which contain the true class with this probability (0.95), see docs/trust.md."""
    allow_bad: bool = False
    """Continue even if more than 1 % of the files cannot be read."""
    device: str = "auto"
    """auto, cpu or cuda."""
    probes: Annotated[
        tuple[Probe, ...], arg(name="with", metavar="{knn,linear,logistic,few-shot} ...", help_behavior_hint="")
    ] = ()
    """Probes of the frozen features: trained on train, tuned on validation, evaluated on --split."""
    settings: Annotated[ProbesConfig, arg(name="")] = field(default_factory=ProbesConfig)
    """Settings of the probes."""
    data: DataConfig = field(default_factory=DataConfig)
    """How images are read; channels and bits are always the model's."""
    annotations: AnnotationConfig = field(default_factory=AnnotationConfig)
    """How boxes and masks are read, for models of detect and segment. Default: as in training."""

    def check(self) -> None:
        """Raise UserError for values out of range and flags that do not go together."""
        check_ranges(self.settings)  # names the flags without the prefix
        check_ranges(self)
        if self.source in get_args(Probe) and not Path(self.source).exists():  # --with came before DATA
            raise UserError(f"No images given; DATA comes first: vitling evaluate {self.run} DATA --with {self.source}")
        if self.coverage is not None:
            check_coverage(self.coverage)
        if self.probes and self.coverage is not None:
            raise UserError("--coverage is for the model's own predictions. Leave it out, or --with.")
        if self.probes and self.mistakes:
            raise UserError("--mistakes lists the model's own predictions. Leave it out, or --with.")
        if not self.probes and self.settings != ProbesConfig():
            raise UserError(
                "--metric, --val, --seed, --knn, --linear, --logistic and --few-shot need --with, such as --with knn."
            )
