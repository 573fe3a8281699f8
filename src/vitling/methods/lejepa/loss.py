"""LeJEPA's loss, written from the paper's equations: invariance, and SIGReg, the distance to a standard normal.

SIGReg (sketched isotropic Gaussian regularisation) projects the embeddings onto random directions and averages the
Epps-Pulley statistic of each projection x against N(0, 1),

    EP(x) = N integral |phi_x(t) - exp(-t^2 / 2)|^2 exp(-t^2 / (2 sigma^2)) dt,    phi_x(t) = mean_n exp(i t x_n),

by the trapezoid rule on 17 knots from -5 to 5, with sigma = 1.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.keys import make_key
from vitling.methods.lejepa.settings import LeJEPAConfig
from vitling.methods.method import TrainingData
from vitling.objectives.gather import gather_rows
from vitling.objectives.heads import make_normed_mlp, normalise_rows
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.draws import Draws
from vitling.views.plan import Plan
from vitling.views.renderer import Views

RANGE, KNOTS, SIGMA = 5.0, 17, 1.0  # of the integral over t: largest |t|, knots, width of the weight


class LeJEPA(Objective):
    """Terms: `invariance`, the squared distance of every view's embedding to the mean of the image's global views, as a
    mean over dimensions, images and views; `sigreg`, the mean of SIGReg over views. Weighted 1 - lambda and lambda.

    Nothing is detached: gradients flow through both sides of the distance. Embeddings are compared within a view, over
    the images of all processes. The directions are drawn from seed and step, so they are the same in all processes and
    after a resume.
    """

    compares_images = True
    capturable_forward = True
    knots: Tensor
    knot_weights: Tensor

    def __init__(self, backbone: Backbone, plan: Plan, config: LeJEPAConfig | None = None, seed: int = 0):
        super().__init__(backbone, plan)
        config = self.config = config or LeJEPAConfig()
        check_ranges(config)
        config.check()
        if config.global_crops not in accumulate(group.count for group in plan.groups):
            raise ValueError(f"the plan must begin with groups that have {config.global_crops} global views")
        self.seed = seed
        self.projector = make_normed_mlp(
            backbone.dim, config.hidden, config.hidden, config.dim, last_norm=False, biases=True
        )
        self.weights = {"invariance": 1 - config.sigreg_weight, "sigreg": config.sigreg_weight}
        knots, weights = make_knots()
        self.register_buffer("knots", knots, persistent=False)
        self.register_buffer("knot_weights", weights, persistent=False)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        features = [self.features(view.pixels) for view in views]
        embeddings = self.projector(torch.cat([one.pooled for one in features]))
        with torch.autocast(embeddings.device.type, enabled=False):
            z = embeddings.float().unflatten(0, (-1, len(batch.ids)))
            terms = {"invariance": invariance(z, self.config.global_crops), "sigreg": self.sigreg(z, batch)}
        return {**terms, **self.auxiliary_terms(features, batch, progress)}

    def sigreg(self, z: Tensor, batch: Batch) -> Tensor:
        """Average the statistic over the views and directions of embeddings [V, B, D]."""
        directions = draw_directions(self.config.directions, self.config.dim, self.seed, batch.key, z.device)
        angles = (z @ directions.T)[..., None] * self.knots  # [V, B, directions, knots]
        sums = torch.stack((angles.cos().sum(1), angles.sin().sum(1)))
        images = len(batch.ids)
        if batch.images_per_process:  # a process without images of its own holds another's, which must not count twice
            sums = gather_rows(sums[None], [min(count, 1) for count in batch.images_per_process]).sum(0)
            images = sum(batch.images_per_process)
        real, imaginary = sums / images
        error = (real - (-self.knots.square() / 2).exp()).square() + imaginary.square()
        return images * (error @ self.knot_weights).mean()


def invariance(z: Tensor, global_views: int) -> Tensor:
    """Return the mean squared distance of embeddings [V, B, D] to the mean of the first views."""
    return (z - z[:global_views].mean(0)).square().mean()


def make_knots() -> tuple[Tensor, Tensor]:
    """Return the knots with t >= 0 and their weights in the integral.

    |phi_x(t) - exp(-t^2 / 2)| is the same for t and -t, so half of the knots serve for both signs.
    """
    knots = torch.linspace(0, RANGE, KNOTS // 2 + 1)
    weights = torch.full_like(knots, 2 * RANGE / (KNOTS - 1))
    weights[-1] /= 2  # the trapezoid rule halves both ends
    weights[1:] *= 2  # all but 0 stand for -t too
    return knots, weights * (-knots.square() / (2 * SIGMA**2)).exp()


def draw_directions(count: int, dim: int, seed: int, key: Tensor | int, device: torch.device) -> Tensor:
    """Draw unit vectors [count, dim], uniform on the sphere, as a function of seed and step."""
    names = torch.arange(count, device=device) + make_key("lejepa directions", seed) + key
    uniform = Draws.from_integers(names, dim).uniform("direction", dim)
    return normalise_rows(torch.special.ndtri(uniform.clamp(min=2.0**-25)))  # 0 would be at -infinity


def build(backbone: Backbone, plan: Plan, config: LeJEPAConfig, data: TrainingData) -> Objective:
    return LeJEPA(backbone, plan, config, data.seed)
