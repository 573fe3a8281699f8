"""SimCLR (Chen et al., ICML 2020): of all views in a batch, find the other one of the same image.

Equations are numbered as in the paper. The loss is in float32 whatever the network is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.methods.simclr.settings import SimCLRConfig
from vitling.objectives.gather import GatheredRows, gather_batch
from vitling.objectives.heads import make_projection_mlp
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class SimCLR(Objective):
    """The term `contrast`: NT-Xent of two views of each image, among the views of all processes.

    `batches` are the sizes of an epoch's batches; only the watcher wants them, to know what guessing costs.
    """

    compares_images = True
    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, config: SimCLRConfig | None = None, batches: Sequence[int] = ()):
        super().__init__(backbone, plan)
        config = config or SimCLRConfig()
        check_ranges(config)
        if len(plan.groups) != 1 or plan.crops != 2:
            raise ValueError(f"two views of one kind, not {plan.crops} of {len(plan.groups)}")
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
        """[2B], of the views of this process: their first B rows are first views. Each has unit length."""
        return nt_xent(z, gather_batch(z, batch), self.temperature)

    def uniform_loss(self) -> dict[str, float]:
        """ln(2n - 1) for a batch of n images: all other views are equally likely to be the partner."""
        costs = [math.log(2 * n - 1) for n in self.batches]
        return {"contrast": sum(costs) / len(costs)} if costs else {}


def nt_xent(z: Tensor, others: GatheredRows, temperature: float) -> Tensor:
    """[2B]: Eq. 1, of each view in `z`, whose partner lies B rows away."""
    similar = (z * z.roll(len(z) // 2, dims=0)).sum(1) / temperature
    return other_logits(z, others, temperature).logsumexp(1) - similar


def other_logits(z: Tensor, others: GatheredRows, temperature: float) -> Tensor:
    """[M, all]: similarities over the temperature; -inf for each row with itself."""
    return (z @ others.rows.T / temperature).masked_fill(own_places(z, others), -torch.inf)


def own_places(z: Tensor, others: GatheredRows) -> Tensor:
    """[M, all]: where a row of `z` stands among those of all processes."""
    columns = torch.arange(len(others.rows), device=z.device)
    return columns == others.first + torch.arange(len(z), device=z.device)[:, None]
