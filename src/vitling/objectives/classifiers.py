"""Linear classifiers with one class per image, for two thousand images up to millions.

None of them builds targets [crops, N]. The cross-entropy with a target t is log sum_j exp o_j - sum_j t_j o_j, and a
target of IDMM is two classes plus equal mass on all, so four numbers per crop are enough: `Scores`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.keys import make_key
from vitling.objectives.gather import count_rows, gather_rows
from vitling.views.draws import Draws

_BLOCK = 2**16  # rows initialised at a time


class Scores(NamedTuple):
    """Sums over a crop's logits o, [M] float32 each."""

    total: Tensor  # log sum_j exp o_j
    own: Tensor  # logit of the image's own class
    partner: Tensor  # logit of the mixed-in image's class
    mean: Tensor  # mean of all logits


class FullClassifier(nn.Module):
    """A plain linear head, initialised as timm's. With `rows`, it holds only these rows."""

    def __init__(self, dim: int, images: int, rows: range | None = None):
        super().__init__()
        rows = range(images) if rows is None else rows
        self.images, self.first = images, rows.start
        self.weight = nn.Parameter(_init_rows(dim, images, rows))
        self.bias = nn.Parameter(torch.zeros(len(rows)))

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        """Score features z [M, D] of crops, given the classes [M] of their images and the step's key (`Batch.key`)."""
        logits = F.linear(z, self.weight, self.bias).float()
        chosen = logits.gather(1, torch.stack((own, partner), dim=1))
        return Scores(logits.logsumexp(1), chosen[:, 0], chosen[:, 1], logits.mean(1))

    def sharded_parameters(self) -> dict[str, int]:
        """Return names of parameters of which each process holds some rows, with the number of all rows."""
        return {}


def _init_rows(dim: int, images: int, rows: range) -> Tensor:
    """Initialise rows of a matrix that is the same for any number of processes, without holding all of it."""
    weight = torch.empty(len(rows), dim)
    for begin in range(0, images, _BLOCK):
        block = torch.empty(min(_BLOCK, images - begin), dim)
        nn.init.trunc_normal_(block, std=0.02)
        low, high = max(begin, rows.start), min(begin + len(block), rows.stop)
        if low < high:
            weight[low - rows.start : high - rows.start] = block[low - begin : high - begin]
    return weight


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


class ShardedClassifier(FullClassifier):
    """A head whose rows are split over processes. Each computes the logits of all crops for its rows, and sums over
    rows are added up over processes. Softmax and gradients equal those of a single process."""

    def __init__(self, dim: int, images: int, rank: int, world: int):
        if images < world:
            raise UserError(f"{images} images cannot be split over {world} processes. Use --idmm.classifier full.")
        super().__init__(dim, images, shard_rows(images, rank, world))

    def sharded_parameters(self) -> dict[str, int]:
        return {"weight": self.images, "bias": self.images}

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        lengths = count_rows(z)
        before = sum(lengths[: dist.get_rank()])
        mine = slice(before, before + len(z))
        crops = _average_gradients(gather_rows(z.float(), lengths))
        own, partner = gather_rows(torch.stack((own, partner), dim=1), lengths).unbind(1)
        logits = F.linear(crops, self.weight, self.bias).float()
        highest = logits.detach().amax(1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        exponentials = (logits - highest[:, None]).exp().sum(1)
        parts = (exponentials, self._select_own(logits, own), self._select_own(logits, partner), logits.sum(1))
        sums = _AllReduceSum.apply(torch.stack(parts))[:, mine]
        return Scores(highest[mine] + sums[0].log(), sums[1], sums[2], sums[3] / self.images)

    def _select_own(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Return the logits of these classes, 0 for those that another process holds."""
        column = classes - self.first
        here = (column >= 0) & (column < logits.shape[1])
        found = logits.gather(1, column.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        return torch.where(here, found, 0.0)


def shard_rows(total: int, rank: int, world: int) -> range:
    """Return the rows that a process holds."""
    return range(total * rank // world, total * (rank + 1) // world)


def _average_gradients(rows: Tensor) -> Tensor:
    """Make gradients between here and `_AllReduceSum` means over processes, as DDP makes them: DDP leaves the
    classifier alone. Gradients towards the backbone become sums again, of which DDP takes the mean."""
    if rows.requires_grad:
        rows.register_hook(lambda gradient: gradient * dist.get_world_size())
    return rows


class _AllReduceSum(torch.autograd.Function):
    """The sum over processes, whose gradient is the mean over processes."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:
        total = parts.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()
