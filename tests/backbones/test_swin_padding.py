"""Swin at sizes that its windows do not divide: padded first, then rolled, as in EsViT's release."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock

from vitling.backbones import create
from vitling.backbones.swin import WindowBlock, make_shift_mask

SWIN = "swin_tiny_patch4_window7_224"


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(module):
    """Randomise biases and tables, which start at zero and would hide who attends to padding."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return module.eval()


def literal(block, maps):
    """Compute the block query by query for one image, with windows of the padded map moved by the shift. What lies
    beyond a border comes from the other side and is masked by −100."""
    window, shift, heads = block.window_size[0], block.shift_size[0], block.attn.num_heads
    normed = block.norm1(maps)[0]
    high, wide, dim = normed.shape
    down, across = -high % window, -wide % window
    padded = F.pad(normed, (0, 0, 0, across, 0, down))
    rows, columns = padded.shape[:2]
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in block.attn.qkv(padded).chunk(3, dim=-1))
    table = block.attn.relative_position_bias_table
    mixed = torch.zeros(rows, columns, dim)
    for top in range(shift, rows + shift, window):
        for left in range(shift, columns + shift, window):
            places = [(top + i, left + j) for i in range(window) for j in range(window)]
            for i, j in places:
                scores = []
                for m, n in places:
                    score = (q[i % rows, j % columns] * k[m % rows, n % columns]).sum(-1) * (dim // heads) ** -0.5
                    score = score + table[(i - m + window - 1) * (2 * window - 1) + j - n + window - 1]
                    apart = (i >= rows) != (m >= rows) or (j >= columns) != (n >= columns)
                    scores.append(score - 100 * apart)
                weights = torch.stack(scores).softmax(dim=0)
                values = torch.stack([v[m % rows, n % columns] for m, n in places])
                mixed[i % rows, j % columns] = (weights[:, :, None] * values).sum(0).flatten()
    maps = maps + block.attn.proj(mixed)[None, :high, :wide]
    return maps + block.mlp(block.norm2(maps))


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("grid", [(8, 8), (6, 6), (3, 3), (5, 9)])
@torch.no_grad()
def test_a_block_matches_a_literal_version(grid, shift):
    torch.manual_seed(0)
    block = shaken(WindowBlock(SwinTransformerBlock(8, (16, 16), num_heads=2, window_size=4, shift_size=shift)))
    maps = drawn(1, *grid, 8)
    torch.testing.assert_close(block(maps), literal(block, maps), rtol=1e-4, atol=1e-5)


def reordered(block, maps):
    """Run timm's steps in the release's order: pad, roll, partition, attend, merge, roll back, crop."""
    window, shift = block.window_size, block.shift_size
    normed = block.norm1(maps)
    batch, high, wide, dim = normed.shape
    padded = F.pad(normed, (0, 0, 0, -wide % window[1], 0, -high % window[0]))
    rolled = torch.roll(padded, (-shift[0], -shift[1]), (1, 2))
    rows, columns = rolled.shape[1] // window[0], rolled.shape[2] // window[1]
    windows = rolled.reshape(batch, rows, window[0], columns, window[1], dim).transpose(2, 3)
    attended = block.attn(windows.reshape(-1, window[0] * window[1], dim), mask=block.get_attn_mask(padded))
    merged = attended.reshape(windows.shape).transpose(2, 3).reshape(rolled.shape)
    maps = maps + torch.roll(merged, shift, (1, 2))[:, :high, :wide]
    return maps + block.mlp(block.norm2(maps))


def by_timm(twin, x, step):
    maps = twin.patch_embed(x)
    for layer in twin.layers:
        maps = layer.downsample(maps)
        for block in layer.blocks:
            maps = step(block, maps)
    return twin.norm(maps).permute(0, 3, 1, 2)


@pytest.fixture(scope="module", params=["", ".window14"])
def pair(request):
    """Make our network, and timm's with the same weights."""
    backbone = shaken(create(SWIN + request.param, seed=0))
    twin = timm.create_model(backbone.architecture, num_classes=0, **backbone.model_args).eval()
    twin.load_state_dict(backbone.timm_model.state_dict())
    return backbone, twin


@pytest.mark.parametrize("size", [(96, 96), (112, 112), (100, 176), (32, 32)])
@torch.no_grad()
def test_the_network_pads_and_then_rolls(pair, size):
    backbone, twin = pair
    x = drawn(1, 3, *size)
    features = backbone(x, stages=True)
    torch.testing.assert_close(features.grid, by_timm(twin, x, reordered), rtol=1e-5, atol=1e-5)
    assert features.grid.shape[2:] == backbone.grid_size(size)
    halved = [(size[0] // 4, size[1] // 4)]
    for _ in range(3):
        halved.append((-(-halved[-1][0] // 2), -(-halved[-1][1] // 2)))  # merging pads odd sides
    assert [tuple(stage.shape[2:]) for stage in features.stages] == halved


@torch.no_grad()
def test_timm_differs_at_96_and_is_equal_at_224(pair):
    backbone, twin = pair
    x = drawn(1, 3, 224, 224)
    assert torch.equal(backbone(x).grid, twin.forward_features(x).permute(0, 3, 1, 2))
    assert (backbone(x[..., :96, :96]).grid - by_timm(twin, x[..., :96, :96], lambda b, m: b(m))).abs().max() > 0.01


def test_windows_and_shifts_stay_those_of_224(pair):
    backbone, _ = pair
    wide = backbone.name.endswith("window14")
    for size in (224, 96):
        layers = create(backbone.name, size, seed=0).timm_model.layers
        last = [layer.blocks[-1] for layer in layers]
        assert [block.window_size for block in last] == [(w, w) for w in ((14, 14, 14, 7) if wide else (7,) * 4)]
        assert [block.shift_size for block in last] == [(s, s) for s in ((7, 7, 0, 0) if wide else (3, 3, 3, 0))]


@torch.no_grad()
def test_masks_are_cached_by_size(pair):
    backbone, twin = pair
    block, theirs = backbone.timm_model.layers[0].blocks[1], twin.layers[0].blocks[1]
    for side in (56, 24):
        maps = torch.zeros(1, side, side, 96)
        pad = -side % block.window_size[0]  # timm below 1.0.31 pads here too, later versions expect padded maps
        assert torch.equal(block.make_mask(maps), theirs.get_attn_mask(F.pad(maps, (0, 0, 0, pad, 0, pad))))
        assert block.make_mask(maps) is block.make_mask(maps[:, :side])
    with torch.inference_mode():
        assert not block.make_mask(torch.zeros(1, 12, 12, 96)).is_inference()
    assert backbone.timm_model.layers[-1].blocks[-1].make_mask(torch.zeros(1, 7, 7, 768)) is None


def test_traced_masks_are_not_cached():
    block = WindowBlock(SwinTransformerBlock(8, (8, 8), num_heads=2, window_size=4, shift_size=2)).eval()
    before = make_shift_mask.cache_info().currsize
    exported = torch.export.export(block, (drawn(1, 8, 8, 8),)).module()
    assert make_shift_mask.cache_info().currsize == before
    torch.testing.assert_close(exported(drawn(1, 8, 8, 8, seed=2)), block(drawn(1, 8, 8, 8, seed=2)))


def test_a_gradient_reaches_every_parameter_at_96_px():
    backbone = shaken(create(SWIN + ".window14", 96, seed=0))
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(drawn(2, 3, 96, 96))
    (features.grid.float() * drawn(2, 768, 3, 3, seed=1)).sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
