"""Linear classifiers with one class per image, for two thousand images up to millions.

None of them builds targets [crops, N]. The cross-entropy with a target t is log sum_j exp o_j - sum_j t_j o_j, and a
target of IDMM is two classes plus equal mass on all, so four numbers per crop are enough: `Scores`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.keys import make_key
from vitling.views.draws import Draws


class Scores(NamedTuple):
    """Sums over a crop's logits o, [M] float32 each."""

    total: Tensor  # log sum_j exp o_j
    own: Tensor  # logit of the image's own class
    partner: Tensor  # logit of the mixed-in image's class
    mean: Tensor  # mean of all logits


class FullClassifier(nn.Module):
    """A plain linear head, initialised as timm's."""

    def __init__(self, dim: int, images: int):
        super().__init__()
        self.images = images
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(images, dim), std=0.02))
        self.bias = nn.Parameter(torch.zeros(images))

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        """Score features z [M, D] of crops, given the classes [M] of their images and the step's key (`Batch.key`)."""
        logits = F.linear(z, self.weight, self.bias).float()
        chosen = logits.gather(1, torch.stack((own, partner), dim=1))
        return Scores(logits.logsumexp(1), chosen[:, 0], chosen[:, 1], logits.mean(1))


class SampledClassifier(FullClassifier):
    """A head that estimates the softmax from `count` classes, drawn again in each step.

    The classes are cut into `count` intervals of equal length s, and one class is drawn from each. A class is drawn
    with probability 1 / s, so s exp(o) is an unbiased estimate of its interval's sum; hence log s is added to its
    logit. The classes of a crop's own two images are always included, and excluded from the draw. With as many
    intervals as classes the softmax is exact. The draw depends on the seed and the step's key only and is shared by all
    crops, so that it is the same for any number of processes and passes, and after a resume.
    """

    def __init__(self, dim: int, images: int, count: int, seed: int = 0):
        super().__init__(dim, images)
        self.count, self.seed = min(count, images), seed

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        classes, lengths = self.draw(key, z.device)
        logits = F.linear(z, F.embedding(classes, self.weight), self.bias[classes]).float()
        known = (classes == own[:, None]) | (classes == partner[:, None])
        o_own, o_partner = self._logits_of(z, own), self._logits_of(z, partner)
        alone = own == partner
        estimated = (logits + lengths.log()).masked_fill(known, -torch.inf)
        exact = torch.stack((o_own, o_partner.masked_fill(alone, -torch.inf)), dim=1)
        others = (lengths * logits).masked_fill(known, 0).sum(1)
        mean = (o_own + o_partner.masked_fill(alone, 0) + others) / self.images
        return Scores(torch.cat((exact, estimated), dim=1).logsumexp(1), o_own, o_partner, mean)

    def draw(self, key: Tensor | int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw classes; return them and the lengths of their intervals."""
        intervals = torch.arange(self.count + 1, device=device)
        edges = intervals * self.images // self.count
        names = intervals[:-1] + make_key("idmm classes", self.seed) + key
        uniform = Draws.from_integers(names, 1).uniform("class")[:, 0]
        lengths = edges.diff()
        return edges[:-1] + (uniform * lengths).long(), lengths

    def _logits_of(self, z: Tensor, classes: Tensor) -> Tensor:
        return (z.float() * F.embedding(classes, self.weight)).sum(1) + self.bias[classes]
