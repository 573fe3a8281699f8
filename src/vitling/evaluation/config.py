"""Settings of the probes of a frozen network. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Literal

from tyro.conf import arg

from vitling.errors import UserError
from vitling.metric_names import MetricFlag
from vitling.ranges import AT_LEAST_1, POSITIVE, SEED, Range

Probe = Literal["knn", "linear", "logistic", "few-shot"]
Metric = Literal["auto", MetricFlag]
Weights = Literal["last", "best"]  # of the last epoch, or of the best epoch on validation
KS = (10, 20, 100, 200)  # numbers of neighbours that EsViT tries


@dataclass(frozen=True)
class KnnConfig:
    """k-NN by cosine, weighted by exp(cosine / temperature)."""

    k: Annotated[tuple[int, ...], AT_LEAST_1, arg(help_behavior_hint="")] = ()
    """Number of neighbours; the best of several is chosen on validation. Default: 10, 20, 100 and 200, up to the number
    of images."""
    temperature: Annotated[float, POSITIVE] = 0.07
    """Temperature of the votes; lower values favour the nearest neighbours."""


@dataclass(frozen=True)
class LinearConfig:
    """Linear classifier trained by SGD on the features of the last blocks."""

    blocks: Annotated[int, AT_LEAST_1] = 4
    """Number of last blocks whose features are concatenated, at most those of the network."""
    lr: Annotated[tuple[float, ...], POSITIVE] = (3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    """Learning rates per 256 images of a batch; all are trained at once and the best is chosen on validation."""
    epochs: Annotated[int, AT_LEAST_1] = 100
    """Epochs; the learning rate follows a cosine down to 0."""
    batch: Annotated[int, AT_LEAST_1] = 256
    """Images per step."""
    augment: bool = False
    """Train on new random crops and flips in every epoch, instead of features that are computed once."""


@dataclass(frozen=True)
class LogisticConfig:
    """Logistic regression by L-BFGS; its penalty is chosen on validation."""

    backend: Literal["torch", "sklearn"] = "torch"
    """torch: fit all penalties of a round at once on the device. sklearn: scikit-learn, one penalty at a time."""


@dataclass(frozen=True)
class FewShotConfig:
    """Learning curves over the number of labelled images per class."""

    shots: Annotated[tuple[int, ...], AT_LEAST_1] = (1, 2, 5, 10)
    """Images per class."""
    draws: Annotated[int, AT_LEAST_1] = 5
    """Random draws per number of images; the results have their mean and standard deviation."""


@dataclass(frozen=True)
class ProbesConfig:
    """Settings of the probes of --with."""

    metric: Metric = "auto"
    """Metric that is reported and tuned for; auto is top1, or map for images with several labels."""
    val: Annotated[float | None, Range(0, 1, True, True), arg(metavar="FRACTION", help_behavior_hint="")] = None
    """Fraction of train held out for validation. Default: the val split of the data, or a tenth of train if there is
    none or probes are evaluated on it."""
    seed: Annotated[int, SEED] = 0
    """Random seed of hold-outs, initial weights, batch orders and draws."""
    knn: KnnConfig = field(default_factory=KnnConfig)
    linear: LinearConfig = field(default_factory=LinearConfig)
    logistic: LogisticConfig = field(default_factory=LogisticConfig)
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)


def check_coverage(coverage: float, images: int | None = None) -> None:
    """Raise UserError unless the coverage is between 0 and 1 and `images` held-out scores are enough for it."""
    if not (isinstance(coverage, Real) and 0 < coverage < 1):
        raise UserError(f"--coverage must be a number between 0 and 1, such as 0.95, not {coverage!r}.")
    if images is not None and rank_for(coverage, images) > images:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        highest = math.floor(1000 * images / (images + 1)) / 1000
        raise UserError(
            f"--coverage {coverage} needs the scores of {needed} held-out images, and the model has {images}; use at "
            f"most --coverage {highest:g}."
        )


def rank_for(coverage: float, images: int) -> int:
    """Return which of the sorted scores bounds a set: (n + 1) coverage, rounded up. The 1 is the new image itself."""
    return math.ceil((images + 1) * coverage - 1e-9)  # 0.95 x 20 is 19, not 19.000000000000004
