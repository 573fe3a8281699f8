"""What the loop asks of an objective, and how terms are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.objectives.progress import Progress, Schedule
from vitling.views.config import Plan
from vitling.views.renderer import Views

Weight = float | Schedule


@dataclass
class Batch:
    """What is known of the images of a batch besides their views."""

    ids: Tensor  # [B] instance ids
    labels: Tensor | None  # of ALL instances, so that a mixed-in partner's label is labels[partner]
    first_view: int = 0  # which of the images' views an auxiliary term's features begin with
    key: Tensor | int = 0  # a number of this step's own: what is drawn for the step is drawn by it
    # Where there are several processes: how many images each has of this pass. One that has none holds an image of
    # another's, so that it takes part in the exchange of gradients; what is gathered must not have that one twice.
    held: tuple[int, ...] = ()


class Objective(nn.Module):
    """Views in, named terms out.

    The total is the sum of the terms, each with its weight: a number or a function of progress. Auxiliary terms are
    modules over `Features`, attached by name: an objective gives them the features it computed anyway.
    """

    compares_images = False  # whether an image's loss depends on the others that are in its pass
    capturable_forward = False
    """Whether `forward` does the same at every step, but for what its tensors hold (`Batch.key` is one): it looks
    neither at `progress` nor at numbers of its own that change within a phase, and never waits for the GPU. What
    `before_step` fills, and what `forward` leaves for `after_step`, lies in buffers."""
    is_self_distillation = False
    """Its targets are answers of its own: a loss above that of guessing is then disagreement, not guessing."""
    phases = 1  # with several, some parameters rest in the first
    phase = 0  # `before_step` sets it; what is steady is so within a phase

    def __init__(self, backbone: Backbone, plan: Plan):
        super().__init__()
        self.backbone, self.plan = backbone, plan
        self.auxiliaries = nn.ModuleDict()
        self.weights: dict[str, Weight] = {}

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        raise NotImplementedError

    def networks(self) -> list[nn.Module]:
        """What is worth compiling: the backbone, and whatever else is run on whole views."""
        return [self.backbone]

    @property
    def final_backbone(self) -> Backbone:
        """The network that a run is for: it is watched, saved and judged."""
        return self.backbone

    @property
    def capturable(self) -> bool:
        """Whether a step can be recorded and played: neither an auxiliary term nor a weight changes either."""
        terms = all(getattr(term, "capturable", False) for term in self.auxiliaries.values())
        return self.capturable_forward and terms and not any(callable(weight) for weight in self.weights.values())

    def before_step(self, progress: Progress) -> None:
        """Fills, in place, the tensors that hold what changes from step to step (temperatures): `forward` may be a
        recording, and sees nothing else of progress. A step that ran out of memory begins again here."""

    def newly_active(self, progress: Progress) -> list[nn.Parameter]:
        """Parameters whose gradient was 0 in every step before this one: the optimiser counts their steps from here."""
        return []

    def after_step(self, progress: Progress) -> None:
        """Moves teachers, queues and centres; after the optimiser's step."""

    def uniform_loss(self) -> dict[str, float]:
        """Terms by name, and what each costs when all answers are equally likely (ln K for a softmax over K): a run
        whose term stays there has learnt nothing, and is stopped. Terms without such a value are left out."""
        return {}

    def health(self) -> dict[str, float]:
        """Parts besides the network that can die, by name, each from 0 (dead) to 1. For a queue of keys of unit length
        sqrt(1 - |mean key|^2), which is 0 if all are alike; or 0 if it is not being renewed. Asked after an epoch."""
        return {}

    def attach(self, name: str, term: nn.Module, weight: Weight) -> None:
        """Adds a term computed by `term(features, batch, progress)`. One that has `wants_blocks` set finds a map of
        every block in `features.stages`."""
        self.auxiliaries[name], self.weights[name] = term, weight

    def features(self, pixels: Tensor) -> Features:
        """What the backbone makes of views, with all that the auxiliary terms want."""
        blocks = self.training and any(getattr(term, "wants_blocks", False) for term in self.auxiliaries.values())
        return self.backbone(pixels, stages="blocks") if blocks else self.backbone(pixels)

    def auxiliary_terms(
        self, features: Features | Sequence[Features], batch: Batch, progress: Progress
    ) -> dict[str, Tensor]:
        """They help to train: in evaluation mode they are silent. Views of several sizes are several features: their
        terms are averaged by the number of views."""
        sets = [features] if isinstance(features, Features) else features
        views = [len(some.pooled) // len(batch.ids) for some in sets]
        terms: dict[str, Tensor] = {}
        for name, term in self.auxiliaries.items():
            for i, some in enumerate(sets if term.training else ()):
                value = term(some, replace(batch, first_view=sum(views[:i])), progress)
                terms[name] = terms.get(name, 0) + value * (views[i] / sum(views))
        return terms

    def total(self, terms: dict[str, Tensor], progress: Progress) -> Tensor:
        weighted = [self._weight(name, progress) * value for name, value in terms.items()]
        return cast(Tensor, sum(weighted))

    def _weight(self, name: str, progress: Progress) -> float:
        weight = self.weights.get(name, 1.0)
        return weight(progress) if callable(weight) else weight

    def no_decay(self) -> set[str]:
        """Names of parameters that weight decay leaves alone, besides biases and everything of one dimension."""
        return {f"backbone.{name}" for name in self.backbone.no_decay()}

    def sharded(self) -> dict[str, int]:
        """Names of parameters of which each process holds some rows (`classifiers.shard_rows`), with the number of
        all rows. Their gradients are the objective's task: DDP leaves them alone."""
        return {}

    def param_groups(self, weight_decay: float, decay_all: bool = False) -> list[dict]:
        exempt = self.no_decay()
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, p in self.named_parameters():
            if p.requires_grad:
                spared = not decay_all and (p.ndim <= 1 or name.endswith(".bias") or name in exempt)
                (free if spared else decayed).append(p)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
