"""SimCLR (Chen et al., ICML 2020): find the other view of an image among all views of a batch.

Equations are numbered as in the paper. The loss is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.methods.method import TrainingData
from vitling.methods.simclr.settings import SimCLRConfig
from vitling.objectives.gather import GatheredRows, gather_batch
from vitling.objectives.heads import make_projection_mlp
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class SimCLR(Objective):
    """NT-Xent between two views of each image, among the views of all processes (term `contrast`).

    `batches` are the sizes of an epoch's batches; `uniform_loss` depends on them.
    """

    compares_images = True
    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, config: SimCLRConfig | None = None, batches: Sequence[int] = ()):
        super().__init__(backbone, plan)
        config = config or SimCLRConfig()
        check_ranges(config)
        if len(plan.groups) != 1 or plan.crops != 2:
            raise ValueError(f"SimCLR needs two views of one kind, not {plan.crops} of {len(plan.groups)}")
        mlp = config.projection == "mlp"
        self.projection = make_projection_mlp(backbone.dim, config.dim) if mlp else nn.Identity()
        self.temperature, self.batches = config.temperature, batches

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        features = self.features(views[0].pixels)
        projected = self.projection(features.pooled)
        with torch.autocast(projected.device.type, enabled=False):
            loss = self.losses(F.normalize(projected.float(), dim=1), batch).mean()
        return {"contrast": loss, **self.auxiliary_terms(features, batch, progress)}

    def losses(self, z: Tensor, batch: Batch) -> Tensor:
        """Compute the losses [2B] of this process's views, unit rows of which the first B are first views."""
        return nt_xent(z, gather_batch(z, batch), self.temperature)

    def uniform_loss(self) -> dict[str, float]:
        """Return ln(2n - 1) for a batch of n images: each of the other views is equally likely to be the positive."""
        costs = [math.log(2 * n - 1) for n in self.batches]
        return {"contrast": sum(costs) / len(costs)} if costs else {}


def nt_xent(z: Tensor, others: GatheredRows, temperature: float) -> Tensor:
    """Compute Eq. 1 for each view in `z` [2B, D], whose positive is B rows away."""
    positive = (z * z.roll(len(z) // 2, dims=0)).sum(1) / temperature
    return similarities(z, others, temperature).logsumexp(1) - positive


def similarities(z: Tensor, others: GatheredRows, temperature: float) -> Tensor:
    """Return similarities over the temperature, [M, all]; -inf for each row with itself."""
    return (z @ others.rows.T / temperature).masked_fill(mask_self(z, others), -torch.inf)


def mask_self(z: Tensor, others: GatheredRows) -> Tensor:
    """Mark where each row of `z` is among the rows of all processes, [M, all]."""
    columns = torch.arange(len(others.rows), device=z.device)
    return columns == others.first + torch.arange(len(z), device=z.device)[:, None]


def build(backbone: Backbone, plan: Plan, config: SimCLRConfig, data: TrainingData) -> Objective:
    return SimCLR(backbone, plan, config, data.batch_sizes)
