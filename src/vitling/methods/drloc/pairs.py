"""Random pairs of tokens of a grid, an MLP over the two tokens of a pair, and pooling of grids."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.views.draws import Draws

Size = tuple[int, int]  # tokens down and across


class Pairs(NamedTuple):
    """Pairs of places in a grid of `size` = (h, w), as row * w + column; [B, m] each."""

    first: Tensor
    second: Tensor
    size: Size

    @property
    def offsets(self) -> Tensor:
        """The integer offsets (i - p, j - h) of Eq. 3, [B, m, 2]."""
        width = self.size[1]
        down = self.first // width - self.second // width
        across = self.first % width - self.second % width
        return torch.stack((down, across), dim=-1)


def draw_random_pairs(names: Tensor, operation: str, size: Size, count: int) -> Pairs:
    """Draw pairs uniformly with replacement (Eq. 2); a token may be paired with itself."""
    first, second = _draw_places(names, operation, size, 2 * count).chunk(2, dim=1)
    return Pairs(first, second, size)


def draw_exhaustive_pairs(names: Tensor, operation: str, size: Size) -> Pairs:
    """Pair every token with a random partner (Eq. 8)."""
    tokens = size[0] * size[1]
    first = torch.arange(tokens, device=names.device).expand(len(names), -1)
    return Pairs(first, _draw_places(names, operation, size, tokens), size)


def _draw_places(names: Tensor, operation: str, size: Size, count: int) -> Tensor:
    uniform = Draws.from_integers(names, count).uniform(operation, count)
    return (uniform * (size[0] * size[1])).long()


class PairMLP(nn.Module):
    """The MLP f of Sec. 4: two concatenated tokens [a; b] -> hidden -> hidden -> outputs, with ReLU."""

    def __init__(self, dim: int, hidden: int, outputs: int):
        super().__init__()
        self.first = nn.Linear(2 * dim, hidden)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Map tokens [B, h * w, D] to [B, m, outputs]; the first layer takes the order with fewer multiplications."""
        (_, count, dim), m = tokens.shape, pairs.first.shape[1]
        few_tokens = count * dim + m * count <= m * dim
        first_layer = _project_then_choose if few_tokens else _choose_then_project
        return self.rest(first_layer(self.first, tokens, pairs))


def _project_then_choose(linear: nn.Linear, tokens: Tensor, pairs: Pairs) -> Tensor:
    """Compute W [a; b] = W_a a + W_b b: project every token once, then choose and add by a product with two ones per
    row. Unlike a gather, it is as fast backwards and deterministic on a GPU."""
    halves = linear.weight.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 1)
    bias = torch.cat((linear.bias, torch.zeros_like(linear.bias)))
    projected = F.linear(tokens, halves, bias).unflatten(2, (2, -1)).flatten(1, 2)  # [B, 2 h w, hidden], alternating
    columns = torch.arange(projected.shape[1], device=tokens.device)
    chosen = (columns == 2 * pairs.first[..., None]) | (columns == 2 * pairs.second[..., None] + 1)
    return torch.bmm(chosen.to(projected.dtype), projected)


def _choose_then_project(linear: nn.Linear, tokens: Tensor, pairs: Pairs) -> Tensor:
    batch, count, dim = tokens.shape
    places = torch.stack((pairs.first, pairs.second), dim=-1)  # [B, m, 2]
    rows = places + count * torch.arange(batch, device=tokens.device)[:, None, None]
    chosen = tokens.reshape(-1, dim).index_select(0, rows.flatten())
    return linear(chosen.view(batch, -1, 2 * dim))


def pool_grid(grid: Tensor, longest: int, how: str) -> Tensor:
    """Average sides longer than `longest` down to it, by a matrix product: its gradient is deterministic on a GPU, that
    of torch's adaptive pooling is not."""
    size = (grid.shape[-2], grid.shape[-1])
    if max(size) <= longest:
        return grid
    averages, new = _averaging_matrix(size, longest, how, grid.device)
    with torch.autocast(grid.device.type, enabled=False):  # half precision rounds a ninth
        tokens = torch.bmm(averages.expand(len(grid), -1, -1), grid.flatten(2).transpose(1, 2).float())
    return tokens.transpose(1, 2).unflatten(2, new)


@lru_cache
def _averaging_matrix(size: Size, longest: int, how: str, device: torch.device) -> tuple[Tensor, Size]:
    """Return the matrix [new places, places], each row an average over places, and the new size."""
    with torch.inference_mode(False):  # cached, so training may use it next
        down, across = (_average_axis(side, longest, how) for side in size)
        return torch.kron(down, across).to(device), (len(down), len(across))


def _average_axis(side: int, longest: int, how: str) -> Tensor:
    averages = torch.eye(side)
    while len(averages) > longest:
        if how == "adaptive":
            averages = F.adaptive_avg_pool1d(averages.T, longest).T
        else:
            averages = F.avg_pool1d(averages.T, 3, stride=2, padding=1, count_include_pad=False).T
    return averages.contiguous()
