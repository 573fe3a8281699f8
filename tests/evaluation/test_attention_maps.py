from __future__ import annotations

import math

import pytest
import torch

from vitling.backbones import Features, create
from vitling.errors import UserError
from vitling.evaluation.attention_maps import RankedHeads, rank_heads


def heads(maps):
    maps = torch.as_tensor(maps, dtype=torch.float32)
    zeros = torch.zeros(len(maps))
    return RankedHeads((0, 0), torch.arange(len(maps)), maps, zeros, zeros)


def test_masks_are_the_fewest_regions_with_60_percent():
    masks = heads([[[0.5, 0.2], [0.2, 0.1]], [[0.25, 0.25], [0.25, 0.25]], [[0.0, 0.7], [0.3, 0.0]]]).masks()
    assert masks.sum(dim=(1, 2)).tolist() == [2, 3, 1]
    assert masks[0, 0, 0]
    assert masks[2].tolist() == [[False, True], [False, False]]


def test_masks_match_the_released_code():
    """The release sorts in ascending order and keeps what lies above 40 % of the sum."""
    maps = torch.rand(8, 5, 5, generator=torch.Generator().manual_seed(0)).flatten(1).softmax(dim=1).view(8, 5, 5)
    values, places = maps.flatten(1).sort(dim=1)
    kept = values.cumsum(dim=1) > 1 - 0.6
    expected = torch.zeros(8, 25, dtype=torch.bool).scatter(1, places, kept).view(8, 5, 5)
    assert torch.equal(heads(maps).masks(0.6), expected)


def test_redundant_heads_correlate_with_an_earlier_one():
    one, other = [[0.7, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.1, 0.7]]
    nearly = [[0.69, 0.11], [0.1, 0.1]]
    assert heads([one, other, nearly, one]).redundant().tolist() == [False, False, True, True]
    assert heads([one, other, nearly]).redundant(threshold=0.99999).tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("name", "size", "shape", "prefix"),
    [
        ("vit_micro_patch4_32", 32, (8, 8), 1),
        ("swin_tiny_patch4_window7_224", 96, (3, 3), 0),  # in a window of 7 x 7
        ("pvt_v2_b0", 96, (3, 3), 0),
        ("cvt_13_official", 96, (3, 3), 1),  # of 6 x 6 tokens
        ("t2t_vit_7", 48, (3, 3), 1),
        ("vil_tiny", 96, (3, 3), 0),
        ("pvt_small", 96, (3, 3), 1),
        ("cvt_tiny", 96, (3, 3), 0),
    ],
)
@torch.no_grad()
def test_maps_of_every_network(name, size, shape, prefix):
    backbone = create(name, size, seed=0).eval()
    features = backbone(torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)), attention=True)
    found = rank_heads(backbone, features, (1, 2))
    count = features.attention.shape[1]
    assert found.maps.shape == (count, *shape)
    torch.testing.assert_close(found.maps.sum(dim=(1, 2)), torch.ones(count))
    assert sorted(found.order.tolist()) == list(range(count))
    assert (found.entropy.diff() <= 0).all()
    assert found.entropy.max() <= math.log2(shape[0] * shape[1]) + 1e-5
    across = 7 if name.startswith("swin") else backbone.grid_size()[1]
    row = features.attention[0, found.order[0], prefix + across + 2]  # row 1, column 2
    row = row.view(7, 7)[:3, :3].flatten() if name.startswith("swin") else row[prefix:]
    torch.testing.assert_close(found.maps[0].flatten(), row / row.sum())
    torch.testing.assert_close(found.elsewhere[0], 1 - row.sum())
    literal = -sum(p * math.log2(p) for p in (row / row.sum()).tolist() if p > 0)
    assert float(found.entropy[0]) == pytest.approx(literal, abs=1e-4)


def test_query_is_on_the_object_or_the_background():
    backbone = create("vit_micro_patch4_32", seed=0)
    grid = torch.zeros(1, 4, 2, 3)
    grid[0, :, 0, 2] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    grid[0, :, 1, 0] = -grid[0, :, 0, 2]
    attention = torch.full((1, 2, 7, 7), 1 / 7)
    features = Features(grid[:, :, 0, 2], grid, attention=attention)
    assert rank_heads(backbone, features, "object").query == (0, 2)
    assert rank_heads(backbone, features, "background").query == (1, 0)
    with pytest.raises(UserError, match="2 x 3 regions"):
        rank_heads(backbone, features, (2, 0))
