"""Linear classifiers with one class for each image, from two thousand images to millions.

None of them makes a target [crops, N]: the cross-entropy with any target t is log sum_j exp o_j - sum_j t_j o_j, and
the targets of IDMM are two classes and the same mass on all. So four numbers a crop are enough: `Scores`.
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

_BLOCK = 2**16  # rows that are initialised at a time


class Scores(NamedTuple):
    """Of each crop, [M] float32 each."""

    total: Tensor  # log sum_j exp o_j
    own: Tensor  # o of the image's own class
    partner: Tensor  # o of the class of the image mixed in
    mean: Tensor  # of all o_j


class FullClassifier(nn.Module):
    """The plain linear head, initialised as timm's; of `rows` it holds only those."""

    def __init__(self, dim: int, images: int, rows: range | None = None):
        super().__init__()
        rows = range(images) if rows is None else rows
        self.images, self.first = images, rows.start
        self.weight = nn.Parameter(_init_rows(dim, images, rows))
        self.bias = nn.Parameter(torch.zeros(len(rows)))

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        """Features [M, D] of crops, the classes [M] of the images in them, and the key of the step (`Batch.key`)."""
        logits = F.linear(z, self.weight, self.bias).float()
        chosen = logits.gather(1, torch.stack((own, partner), dim=1))
        return Scores(logits.logsumexp(1), chosen[:, 0], chosen[:, 1], logits.mean(1))

    def sharded(self) -> dict[str, int]:
        """Parameters of which each process holds some of the rows, with the number of all rows."""
        return {}


def _init_rows(dim: int, images: int, rows: range) -> Tensor:
    """Rows of a matrix that is the same however many processes share it; none of them ever holds all of it."""
    weight = torch.empty(len(rows), dim)
    for begin in range(0, images, _BLOCK):
        block = torch.empty(min(_BLOCK, images - begin), dim)
        nn.init.trunc_normal_(block, std=0.02)
        low, high = max(begin, rows.start), min(begin + len(block), rows.stop)
        if low < high:
            weight[low - rows.start : high - rows.start] = block[low - begin : high - begin]
    return weight


class SampledClassifier(FullClassifier):
    """For each step `count` classes are drawn; the others' share of the softmax is estimated from them.

    All classes are cut into `count` runs of equal length, and one class is drawn of each: a class of a run of length s
    is drawn with probability 1 / s, so s times its exp(o) is an unbiased estimate of the run's sum, and log s is added
    to its logit. The classes of a crop's own two images are always there and left out of its draw. With as many runs
    as classes the softmax is exact. The draw is a function of the seed and the step's key, and shared by all crops, so
    that neither processes nor passes nor a resume change it.
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
        """The classes, and how long the run is that each was drawn from."""
        runs = torch.arange(self.count + 1, device=device)
        edges = runs * self.images // self.count
        names = runs[:-1] + make_key("idmm classes", self.seed) + key
        uniform = Draws.from_integers(names, 1).uniform("class")[:, 0]
        lengths = edges.diff()
        return edges[:-1] + (uniform * lengths).long(), lengths

    def _logits_of(self, z: Tensor, classes: Tensor) -> Tensor:
        return (z.float() * F.embedding(classes, self.weight)).sum(1) + self.bias[classes]


class ShardedClassifier(FullClassifier):
    """Each process holds some of the rows and computes the logits of all processes' crops for them; sums over all rows
    are put together from the parts. The same softmax as that of one process, and the same gradients."""

    def __init__(self, dim: int, images: int, rank: int, world: int):
        if images < world:
            raise UserError(f"{images} images cannot be shared by {world} processes: use the full classifier.")
        super().__init__(dim, images, shard_rows(images, rank, world))

    def sharded(self) -> dict[str, int]:
        return {"weight": self.images, "bias": self.images}

    def forward(self, z: Tensor, own: Tensor, partner: Tensor, key: Tensor | int) -> Scores:
        lengths = count_rows(z)
        before = sum(lengths[: dist.get_rank()])
        mine = slice(before, before + len(z))
        everyone = _mean_inside(gather_rows(z.float(), lengths))
        own, partner = gather_rows(torch.stack((own, partner), dim=1), lengths).unbind(1)
        logits = F.linear(everyone, self.weight, self.bias).float()
        highest = logits.detach().amax(1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        exponentials = (logits - highest[:, None]).exp().sum(1)
        parts = (exponentials, self._held(logits, own), self._held(logits, partner), logits.sum(1))
        sums = _Summed.apply(torch.stack(parts))[:, mine]
        return Scores(highest[mine] + sums[0].log(), sums[1], sums[2], sums[3] / self.images)

    def _held(self, logits: Tensor, classes: Tensor) -> Tensor:
        """The logits of these classes; 0 where another process has them."""
        column = classes - self.first
        here = (column >= 0) & (column < logits.shape[1])
        found = logits.gather(1, column.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        return torch.where(here, found, 0.0)


def shard_rows(total: int, rank: int, world: int) -> range:
    """The rows of a process."""
    return range(total * rank // world, total * (rank + 1) // world)


def _mean_inside(rows: Tensor) -> Tensor:
    """Every process has a loss of its own, and DDP takes the mean of their gradients. Between here and `_Summed`
    gradients are such means, so that the classifier, which DDP leaves alone, gets its own. What leaves towards the
    backbone is made a sum again: its mean is DDP's task."""
    if rows.requires_grad:
        rows.register_hook(lambda gradient: gradient * dist.get_world_size())
    return rows


class _Summed(torch.autograd.Function):
    """The sum over processes."""

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
