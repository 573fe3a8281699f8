"""DRLoc (Liu et al., NeurIPS 2021): predict from two tokens of an image how far apart they are.

Equations 1 to 8 are numbered as in the paper's first version, whose appendix has Eq. 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features, GridNorm
from vitling.errors import UserError
from vitling.keys import make_key
from vitling.methods.drloc.pairs import PairMLP, Pairs, Size, draw_exhaustive_pairs, draw_random_pairs, pool_grid
from vitling.methods.drloc.settings import DRLocConfig, Init, Pooling, Target, Variant
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges

ALPHA = 0.001  # Eq. 6


class DRLoc(nn.Module):
    """The mean error over images, pairs and axes (Eq. 2 is 2n times it); `ce` and `reg` add the axes, `all` the blocks.

    `dim` is the width of the tokens; for `all` one per block. A grid with a side longer than `grid` is pooled, except
    for `all`.
    """

    calls: Tensor

    def __init__(
        self,
        dim: int | Sequence[int],
        variant: Variant = "l1",
        pairs: int = 64,
        hidden: int = 512,
        grid: int = 7,
        target: Target = "offset/k",
        pooling: Pooling = "adaptive",
        init: Init = "torch",
    ):
        super().__init__()
        check_ranges(DRLocConfig(variant, pairs=pairs, hidden=hidden, grid=grid, pooling=pooling, target=target))
        dims = [dim] if isinstance(dim, int) else list(dim)
        if variant != "all" and len(dims) != 1:
            raise UserError(f"DRLoc {variant!r} has one grid, not {len(dims)}; 'all' has one per block.")
        self.variant, self.pairs, self.grid = variant, pairs, grid
        self.target, self.pooling = target, pooling
        outputs = 2 * (2 * grid + 1) if variant in ("ce", "reg") else 2
        self.mlps = nn.ModuleList(PairMLP(d, hidden, outputs) for d in dims)
        if init == "trunc_normal":
            self.apply(init_weights_vit_timm)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, grids: Tensor | Sequence[Tensor], names: Tensor | None = None) -> Tensor:
        """Compute the loss of a grid [B, D, h, w]; for `all` of one per block. The integers `names` [B] determine the
        pairs; without them every call draws new ones."""
        blocks = [grids] if isinstance(grids, Tensor) else list(grids)
        if len(blocks) != len(self.mlps):
            raise UserError(f"DRLoc {self.variant!r} was made for {len(self.mlps)} grids, not for {len(blocks)}.")
        names = self._make_names(blocks[0]) if names is None else names
        losses = [self._block_loss(i, block, names) for i, block in enumerate(blocks)]
        return torch.stack(losses).sum()  # Eq. 7; a single one otherwise

    def _make_names(self, grid: Tensor) -> Tensor:
        """Count calls, so that no generator is used; names differ between processes."""
        self.calls += 1
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return torch.arange(len(grid), device=grid.device) + (self.calls * 2**16 + rank) * 2**24

    def _block_loss(self, block: int, grid: Tensor, names: Tensor) -> Tensor:
        if grid.ndim != 4 or grid.shape[-2] * grid.shape[-1] < 2:
            raise UserError(
                f"DRLoc needs a grid [images, width, h, w] of at least two tokens, not {list(grid.shape)}: larger "
                "images, or a backbone with a finer grid."
            )
        if self.variant != "all":
            grid = pool_grid(grid, self.grid, self.pooling)
        pairs = self.draw(names, (grid.shape[-2], grid.shape[-1]), block)
        predicted = self.mlps[block](grid.flatten(2).transpose(1, 2), pairs)
        with torch.autocast(grid.device.type, enabled=False):
            return self._loss(predicted.float(), pairs)

    def draw(self, names: Tensor, size: Size, block: int = 0) -> Pairs:
        """Draw the pairs of each image as a function of its name, the size of the grid and the block."""
        if self.variant == "exhaustive":
            return draw_exhaustive_pairs(names, f"drloc {block}", size)
        return draw_random_pairs(names, f"drloc {block}", size, self.pairs)

    def _loss(self, predicted: Tensor, pairs: Pairs) -> Tensor:
        match self.variant:
            case "ce":
                return _classification_loss(predicted, pairs.offsets)
            case "reg":
                return _expectation_loss(predicted, pairs.offsets)
        offsets = pairs.offsets if self.variant == "signed" else pairs.offsets.abs()  # Eq. 3, Eq. 1
        return F.l1_loss(predicted, self._scale_offsets(offsets, pairs.size))

    def _scale_offsets(self, offsets: Tensor, size: Size) -> Tensor:
        """Divide each axis by its side, as the target asks."""
        if self.target == "offset":
            return offsets.float()
        less = 1 if self.target == "offset/(k-1)" else 0
        axes = [offsets[..., axis] / max(side - less, 1) for axis, side in enumerate(size)]
        return torch.stack(axes, dim=-1)


def _classification_loss(predicted: Tensor, offsets: Tensor) -> Tensor:
    """Compute Eq. 4 and 5; the classes of an axis are the offsets -k ... k."""
    logits = predicted.unflatten(-1, (2, -1))
    k = logits.shape[-1] // 2
    return 2 * F.cross_entropy(logits.flatten(0, -2), (offsets + k).flatten())


def _expectation_loss(predicted: Tensor, offsets: Tensor) -> Tensor:
    """Compute Eq. 6: the squared distance of the offset to the distribution's mean, over its variance."""
    p = predicted.unflatten(-1, (2, -1)).softmax(-1)
    k = p.shape[-1] // 2
    c = torch.arange(-k, k + 1, device=p.device, dtype=p.dtype)
    mean = (p * c).sum(-1)
    variance = (p * (c - mean[..., None]) ** 2).sum(-1) + 1e-8  # a certain prediction has none
    return 2 * ((offsets - mean) ** 2 / variance + ALPHA * 0.5 * variance.log()).mean()


class DRLocTerm(nn.Module):
    """DRLoc as an auxiliary term of any objective. Draws depend on seed, step and instance only: processes, passes and
    a resume do not change them, and no generator is used."""

    capturable = True  # see Objective.capturable

    def __init__(self, drloc: DRLoc, seed: int = 0, norm: GridNorm = "published"):
        super().__init__()
        self.drloc, self.seed, self.norm = drloc, seed, norm
        self.wants_blocks = drloc.variant == "all"

    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        grids = features.stages if self.wants_blocks else features.select_grid(self.norm)
        if grids is None:
            raise UserError(
                f"This backbone has no {'grids of its blocks' if self.wants_blocks else 'grid of tokens'}, which DRLoc "
                f"{self.drloc.variant!r} needs. Leave out --aux drloc or choose a different --backbone."
            )
        images = len(features.pooled)
        view = torch.arange(images, device=batch.ids.device) // len(batch.ids)  # views follow each other
        names = batch.ids.repeat(images // len(batch.ids)) + (batch.first_view + view) * 2**40
        return self.drloc(grids, names + make_key("drloc", self.seed) + batch.key)


def make_drloc_term(backbone: Backbone, config: DRLocConfig, seed: int = 0) -> DRLocTerm:
    """Build the term for a backbone; raise UserError if its grid has a single token."""
    height, width = backbone.grid_size()
    if height * width < 2:
        raise UserError(
            f"DRLoc needs two tokens or more, but {backbone.name} at {backbone.size} px has one. Use a larger --size "
            "or a different --backbone, or leave out --aux drloc."
        )
    dim = _block_dims(backbone) if config.variant == "all" else backbone.dim
    with torch.random.fork_rng(devices=[]):  # later initialisations stay as they are without DRLoc
        torch.default_generator.manual_seed(make_key("drloc", seed) % 2**63)
        drloc = DRLoc(
            dim, config.variant, config.pairs, config.hidden, config.grid, config.target, config.pooling, config.init
        )
    return DRLocTerm(drloc, seed, config.norm)


@torch.no_grad()
def _block_dims(backbone: Backbone) -> list[int]:
    """Run one image in evaluation mode, which draws nothing and updates no statistics; return the blocks' widths."""
    training = backbone.training
    device = next(backbone.parameters()).device
    image = torch.zeros(1, backbone.channels, backbone.size, backbone.size, device=device)
    blocks = backbone.eval().forward(image, stages="blocks").stages or []
    backbone.train(training)
    return [block.shape[1] for block in blocks]
