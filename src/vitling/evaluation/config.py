"""What probes of a frozen network can be told. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import arg

from vitling.errors import UserError
from vitling.metric_names import MetricFlag

Probe = Literal["knn", "linear", "logistic", "few-shot"]
Metric = Literal["auto", MetricFlag]
KS = (10, 20, 100, 200)  # EsViT's


@dataclass
class KnnConfig:
    """k-NN by cosine, weighted by exp(cosine / temperature)."""

    k: Annotated[tuple[int, ...], arg(help_behavior_hint="")] = ()
    """Neighbours; of several the best on validation. By default 10, 20, 100 and 200, as far as there are images."""
    temperature: float = 0.07
    """How much nearer neighbours count more."""


@dataclass
class LinearConfig:
    """A linear classifier by SGD on the features of the last blocks."""

    blocks: int = 4
    """How many of the last blocks are put side by side, as far as the network has them."""
    lr: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    """Learning rates for each 256 images of a batch; trained together, and the best on validation is taken."""
    epochs: int = 100
    """Passes over the features, with a cosine down to 0."""
    batch: int = 256
    """Images in a step."""
    augment: bool = False
    """Random crops and mirror images, new ones in every epoch, instead of features that are computed once."""


@dataclass
class LogisticConfig:
    """Logistic regression by L-BFGS, with the penalty that is best on validation."""

    backend: Literal["torch", "sklearn"] = "torch"
    """All penalties of a round at once on the device, or scikit-learn's own, one after the other."""


@dataclass
class FewShotConfig:
    """Curves over the number of labelled images a class."""

    shots: tuple[int, ...] = (1, 2, 5, 10)
    """Images a class."""
    draws: int = 5
    """How often they are drawn; the spread is that of the draws."""


@dataclass
class ProbesConfig:
    """What the probes of --with are told."""

    metric: Metric = "auto"
    """What is reported and chosen by: top1, or map where images have several labels."""
    val: Annotated[float | None, arg(metavar="FRACTION", help_behavior_hint="")] = None
    """Fraction of train to choose on. By default the data's own val split if it is not judged, else a tenth."""
    seed: int = 0
    """Of hold-outs, first weights, orders and draws."""
    knn: KnnConfig = field(default_factory=KnnConfig)
    linear: LinearConfig = field(default_factory=LinearConfig)
    logistic: LogisticConfig = field(default_factory=LogisticConfig)
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        if self.val is not None and not 0 < self.val < 1:
            raise UserError(f"--val {self.val:g}: a fraction between 0 and 1 such as 0.2, to choose on.")
        if any(k < 1 for k in self.knn.k):
            raise UserError(f"--knn.k {' '.join(map(str, self.knn.k))}: k-NN needs at least one neighbour.")
        if self.knn.temperature <= 0:
            raise UserError(f"--knn.temperature {self.knn.temperature}: above 0, such as 0.07.")
        for name, least in (("blocks", 1), ("epochs", 1), ("batch", 1)):
            if getattr(self.linear, name) < least:
                raise UserError(f"--linear.{name} {getattr(self.linear, name)}: at least {least}.")
        if not self.linear.lr or min(self.linear.lr) <= 0:
            raise UserError(f"--linear.lr {' '.join(map(str, self.linear.lr))}: at least one, and all above 0.")
        if not self.few_shot.shots or min(self.few_shot.shots) < 1 or self.few_shot.draws < 1:
            raise UserError("--few-shot.shots and --few-shot.draws: at least one image a class, and one draw.")
