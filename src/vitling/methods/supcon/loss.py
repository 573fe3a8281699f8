"""SupCon (Khosla et al., NeurIPS 2020): SimCLR, where all views of images of the same class are partners.

Equations are numbered as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.methods.simclr.loss import SimCLR, other_logits, own_places
from vitling.methods.simclr.settings import SimCLRConfig
from vitling.methods.supcon.settings import SupConConfig
from vitling.objectives.gather import GatheredRows, gather_batch
from vitling.objectives.objective import Batch
from vitling.ranges import check_ranges
from vitling.views.plan import Plan


class SupCon(SimCLR):
    """`labels` [N] are the classes of all training images. An image without one (below 0) is a class of its own: beside
    labelled images it learns as in SimCLR."""

    classes: Tensor

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        labels: Tensor,
        config: SupConConfig | None = None,
        batches: Sequence[int] = (),
    ):
        config = config or SupConConfig()
        check_ranges(config)
        super().__init__(backbone, plan, SimCLRConfig(dim=config.dim, temperature=config.temperature), batches)
        if labels.ndim != 1:
            raise ValueError("SupCon needs one class an image")
        alone = -1 - torch.arange(len(labels), device=labels.device)
        self.register_buffer("classes", torch.where(labels < 0, alone, labels), persistent=False)

    def losses(self, z: Tensor, batch: Batch) -> Tensor:
        classes = self.classes[batch.ids].repeat(len(z) // len(batch.ids))
        return sup_out(z, gather_batch(z, batch), classes, gather_batch(classes, batch).rows, self.temperature)


def sup_out(z: Tensor, others: GatheredRows, classes: Tensor, all_classes: Tensor, temperature: float) -> Tensor:
    """[M]: Eq. 2, L_out^sup, of each view: the mean over its partners is outside the logarithm. The paper adds them up;
    here as in its code their mean is minimised, but without the code's factor of temperature / 0.07."""
    logits = other_logits(z, others, temperature)
    partners = (classes[:, None] == all_classes) & ~own_places(z, others)
    similar = logits.masked_fill(~partners, 0).sum(1) / partners.sum(1)
    return logits.logsumexp(1) - similar
