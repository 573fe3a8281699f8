"""SupCon (Khosla et al., NeurIPS 2020): SimCLR with all views of the same class as positives.

Equations are numbered as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.methods.method import TrainingData
from vitling.methods.simclr.loss import SimCLR, mask_self, similarities
from vitling.methods.simclr.settings import SimCLRConfig
from vitling.methods.supcon.settings import SupConConfig
from vitling.objectives.gather import GatheredRows, gather_batch
from vitling.objectives.objective import Batch, Objective
from vitling.ranges import check_ranges
from vitling.views.plan import Plan


class SupCon(SimCLR):
    """SupCon's loss. `labels` [N] are the classes of all training images; an unlabelled image (below 0) is a class of
    its own and learns as in SimCLR."""

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
            raise ValueError("SupCon needs one class per image")
        own_class = -1 - torch.arange(len(labels), device=labels.device)
        self.register_buffer("classes", torch.where(labels < 0, own_class, labels), persistent=False)

    def losses(self, z: Tensor, batch: Batch) -> Tensor:
        classes = self.classes[batch.ids].repeat(len(z) // len(batch.ids))
        return sup_out(z, gather_batch(z, batch), classes, gather_batch(classes, batch).rows, self.temperature)


def sup_out(z: Tensor, others: GatheredRows, classes: Tensor, all_classes: Tensor, temperature: float) -> Tensor:
    """Compute L_out^sup (Eq. 2) of each view, [M]: the mean over its positives is outside the logarithm. The paper adds
    the views up; its code minimises their mean, as here, but times temperature / 0.07."""
    logits = similarities(z, others, temperature)
    positives = (classes[:, None] == all_classes) & ~mask_self(z, others)
    positive = logits.masked_fill(~positives, 0).sum(1) / positives.sum(1)
    return logits.logsumexp(1) - positive


def build(backbone: Backbone, plan: Plan, config: SupConConfig, data: TrainingData) -> Objective:
    if data.labels is None:
        raise ValueError("SupCon needs labels")
    return SupCon(backbone, plan, torch.from_numpy(data.labels), config, data.batch_sizes)
