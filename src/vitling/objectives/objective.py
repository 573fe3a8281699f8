"""The interface between the loop and a loss, and the way terms are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.objectives.momentum import MomentumCopy
from vitling.objectives.progress import Progress, Schedule
from vitling.views.plan import Plan
from vitling.views.renderer import Views

Weight = float | Schedule


@dataclass
class Batch:
    """A batch's images, apart from their views."""

    ids: Tensor  # [B] instance ids
    labels: Tensor | None  # of ALL instances, so that the label of a mixed-in partner is labels[partner]
    first_view: int = 0  # number of the first view in an auxiliary term's features
    key: Tensor | int = 0  # unique to the step; all random draws of the step derive from it
    # With several processes, the number of images each has in this pass. A process with none trains an image of
    # another one, to take part in the exchange of gradients; gathering must not count that image twice.
    images_per_process: tuple[int, ...] = ()


class Objective(nn.Module):
    """A loss: views in, named terms out.

    The total is the weighted sum of the terms; a weight is a number or a function of progress. Auxiliary terms are
    modules over `Features`, attached by name, that share the features the objective computes anyway.
    """

    compares_images = False  # whether an image's loss depends on the other images of its pass
    capturable_forward = False
    """True if `forward` can be captured as a CUDA graph: all that changes between its calls within a phase is in
    tensors (such as `Batch.key`), so it reads no `progress`, and it never waits for the GPU. Values that `before_step`
    sets, and values for `after_step`, are kept in buffers."""
    is_self_distillation = False
    """True if the targets are the network's own outputs: a loss above that of uniform outputs then means
    disagreement."""
    phases = 1  # with several, some parameters are not trained in the first
    phase = 0  # set by `before_step`

    def __init__(self, backbone: Backbone, plan: Plan):
        super().__init__()
        self.backbone, self.plan = backbone, plan
        self.auxiliaries = nn.ModuleDict()
        self.weights: dict[str, Weight] = {}

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        raise NotImplementedError

    def networks(self) -> list[nn.Module]:
        """Return the networks that are worth compiling: by default the backbone and its momentum copy, if any."""
        return [self.backbone, *(part.backbone for part in self.children() if isinstance(part, MomentumCopy))]

    @property
    def final_backbone(self) -> Backbone:
        """The backbone that a run produces: it is watched, evaluated and saved."""
        return self.backbone

    @property
    def capturable(self) -> bool:
        """True if a whole step can be captured: no auxiliary term or weight depends on progress either."""
        terms = all(getattr(term, "capturable", False) for term in self.auxiliaries.values())
        return self.capturable_forward and terms and not any(callable(weight) for weight in self.weights.values())

    def before_step(self, progress: Progress) -> None:
        """Fill the tensors that change from step to step, such as temperatures, in place: `forward` may be a captured
        graph that sees no progress. A step that ran out of memory starts again here."""

    def newly_active(self, progress: Progress) -> list[nn.Parameter]:
        """Return parameters whose gradient was 0 in all earlier steps: the optimiser counts their steps from here."""
        return []

    def after_step(self, progress: Progress) -> None:
        """Update teachers, queues and centres after the optimiser's step."""

    def uniform_loss(self) -> dict[str, float]:
        """Return the value of each term for uniform predictions (ln K for a softmax over K). A run whose term stays
        there has learnt nothing, and is stopped. Terms without such a value are left out."""
        return {}

    def health(self) -> dict[str, float]:
        """Return the health of parts besides the network, by name, from 0 (dead) to 1; called after an epoch. For a
        queue of unit keys it is sqrt(1 - |mean key|^2), which is 0 if all are alike, or 0 if the queue is not
        renewed."""
        return {}

    def attach(self, name: str, term: nn.Module, weight: Weight) -> None:
        """Add a term computed by `term(features, batch, progress)`. A term with `wants_blocks` finds the feature map of
        every block in `features.stages`."""
        self.auxiliaries[name], self.weights[name] = term, weight

    def features(self, pixels: Tensor) -> Features:
        """Return the backbone's features, including all that the auxiliary terms need."""
        blocks = self.training and any(getattr(term, "wants_blocks", False) for term in self.auxiliaries.values())
        return self.backbone(pixels, stages="blocks") if blocks else self.backbone(pixels)

    def auxiliary_terms(
        self, features: Features | Sequence[Features], batch: Batch, progress: Progress
    ) -> dict[str, Tensor]:
        """Compute the auxiliary terms; there are none in evaluation mode. For views of several sizes, each with
        features, a term is averaged over all views."""
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
        """Return names of parameters without weight decay, besides biases and one-dimensional parameters."""
        return {f"backbone.{name}" for name in self.backbone.no_decay()}

    def param_groups(self, weight_decay: float, decay_all: bool = False) -> list[dict]:
        exempt = self.no_decay()
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, p in self.named_parameters():
            if p.requires_grad:
                is_exempt = not decay_all and (p.ndim <= 1 or name.endswith(".bias") or name in exempt)
                (free if is_exempt else decayed).append(p)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
