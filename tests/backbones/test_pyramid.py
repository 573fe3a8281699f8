"""The 4-stage networks of EsViT's Table 4 that timm lacks: ViL-T, CvT-T and PVT-Small, in small versions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitling.backbones import create, load_weights
from vitling.backbones.backbone import build
from vitling.backbones.cvt4 import WindowedConvAttention
from vitling.backbones.pvt import ReducedAttention
from vitling.backbones.vil import FullAttention, SlidingAttention
from vitling.evaluation.probe_features import compute_batch_features

COMMON = {"dims": (8, 16, 24, 32), "depths": (1, 2, 1, 2), "heads": (1, 2, 3, 4)}
ARGUMENTS = {
    "cvt4": {"window": 7},
    "pvt": {"mlp_ratios": (8, 8, 4, 4), "reductions": (8, 4, 2, 1), "img_size": 64},
    "vil": {"form": "released", "chunk": 3, "img_size": 64},
    "vil-paper": {"form": "paper", "chunk": 3, "img_size": 64},
}
KINDS = list(ARGUMENTS)


def tiny(kind, size=64, seed=0, **more):
    arguments = COMMON | ARGUMENTS[kind] | more
    return build(f"tiny {kind}", kind.removesuffix("-paper"), {"in_chans": 3, **arguments}, size, seed)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(module):
    """Randomise biases and running statistics, which start as the identity and would hide errors."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for values in (*module.parameters(), *module.buffers()):
            if values.is_floating_point():
                values.add_(torch.rand(values.shape, generator=generator) * 0.3)
    return module.eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (7, 7)), ((96, 96), (3, 3)), ((36, 100), (2, 4)), ((4, 8), (1, 1))]
)
@torch.no_grad()
def test_every_input_size(kind, size, grid):
    backbone = tiny(kind).eval()
    features = backbone(drawn(2, 3, *size), stages=True)
    assert features.pooled.shape == (2, 32)
    assert features.grid.shape == (2, 32, *grid)
    assert backbone.grid_size(size) == grid
    assert [stage.shape[1] for stage in features.stages] == [8, 16, 24, 32]
    assert features.stages[0].shape[2:] == (size[0] // 4, size[1] // 4)
    assert torch.equal(features.stages[-1], features.raw_grid)
    blocks = backbone(drawn(2, 3, *size), stages="blocks").stages
    assert [block.shape[1] for block in blocks] == [8, 16, 16, 24, 32, 32]
    assert torch.equal(blocks[-1], features.stages[-1])
    assert features.grid.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_pooled_features(kind):
    features = shaken(tiny(kind))(drawn(2, 3, 64, 64))
    mean = features.grid.mean(dim=(2, 3))
    assert torch.allclose(features.pooled, mean, atol=1e-5) == (kind != "pvt")  # PVT has a class token
    normed = F.layer_norm(features.raw_grid.permute(0, 2, 3, 1), (32,))
    assert not torch.allclose(normed.permute(0, 3, 1, 2), features.raw_grid, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_probe_features_of_the_last_block_are_the_pooled_ones(kind):
    """The class token for PVT, the mean for the others."""
    frozen = compute_batch_features(shaken(tiny(kind)), drawn(2, 3, 64, 64), blocks=2)
    assert torch.allclose(frozen.blocks[:, -32:], frozen.pooled, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_probe_features_of_earlier_stages_are_vils_global_token_or_a_mean(kind):
    """EsViT's probe takes a stage's first token where it has a global one, without the final norm; here stage 3."""
    backbone, x = shaken(tiny(kind)), drawn(2, 3, 64, 64)
    frozen = compute_batch_features(backbone, x, blocks=3).blocks
    maps = x
    for stage in backbone.timm_model.stages[:3]:
        blocks, (rows, columns) = stage(maps)
        tokens = blocks[-1]
        maps = tokens[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
    expected = tokens[:, 0] if kind.startswith("vil") else tokens.mean(dim=1)
    assert torch.allclose(frozen[:, :24], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 96])
def test_a_gradient_reaches_every_parameter(kind, size):
    """Except the global token's bias to itself, because the global token of a stage's last block is not used."""
    backbone = shaken(tiny(kind)).train()
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(drawn(2, 3, size, size))
    side = features.grid.shape[-1]
    loss = (features.grid.float() * drawn(2, 32, side, side, seed=1)).sum()
    (loss + (features.pooled.float() * drawn(2, 32, seed=2)).sum()).backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0 or name.endswith(".global_position_bias"), name


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_state_dict_gives_the_same_features_at_any_size(kind):
    one, two = shaken(tiny(kind)), tiny(kind, seed=2).eval()
    transfer = load_weights(two, one.state_dict())
    assert transfer.skipped == {}
    assert transfer.missing == transfer.resized == []
    for size in (64, 96):
        assert torch.equal(one(drawn(1, 3, size, size)).grid, two(drawn(1, 3, size, size)).grid)


@pytest.mark.parametrize(("kind", "resized"), [("cvt4", 0), ("pvt", 4), ("vil", 3)])
@torch.no_grad()
def test_a_network_built_for_another_size_takes_the_weights(kind, resized):
    larger = {} if kind == "cvt4" else {"img_size": 96}
    transfer = load_weights(tiny(kind, 96, **larger), tiny(kind).state_dict())
    assert transfer.skipped == {}
    assert transfer.missing == []
    assert len(transfer.resized) == resized


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_attention_reproduces_the_output(kind):
    backbone, seen = shaken(tiny(kind)), {}
    mix = backbone.timm_model.stages[-1].blocks[-1].attn.mix
    mix.register_forward_hook(lambda m, args, out: seen.update(args=args, out=out))
    attention = backbone(drawn(2, 3, 96, 96), attention=True).attention
    tokens = 9 + (kind == "pvt")
    assert attention.shape == (2, 4, tokens, tokens)
    torch.testing.assert_close(attention @ seen["args"][2], seen["out"])


@pytest.mark.parametrize("kind", KINDS)
def test_drop_rates_grow_over_all_blocks(kind):
    stages = tiny(kind, drop_path_rate=0.5).timm_model.stages
    rates = [block.drop_path.drop_prob for stage in stages for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("cvt4", 0), ("pvt", 5), ("vil", 3 + 6 + 4 * 2)],  # global tokens, tables, and two biases of a global token
)
def test_no_decay_names_are_parameter_names(kind, kinds):
    backbone = tiny(kind)
    assert len(backbone.no_decay()) == kinds
    assert backbone.no_decay() <= dict(backbone.named_parameters()).keys()


def test_vil_below_224_px_keeps_the_tables_of_224_px():
    with torch.device("meta"):
        small, native = create("vil_tiny", 96), create("vil_tiny")
        assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in native.parameters())
        assert small(torch.empty(1, 3, 96, 96)).grid.shape == (1, 768, 3, 3)
        assert [stage.cls_token is not None for stage in native.timm_model.stages] == [True, True, True, False]


def rank_heads(projected, heads):
    """Split [N, D] to [heads, N, d]."""
    return projected.unflatten(1, (heads, -1)).transpose(0, 1)


@pytest.mark.parametrize("grid", [(6, 6), (5, 7), (3, 8), (2, 2)])
@torch.no_grad()
def test_sliding_attention_is_dense_attention_with_a_mask(grid):
    """Two tokens attend to each other if their 3 x 3 chunks touch; the global token attends to all."""
    torch.manual_seed(0)
    attn, heads = shaken(SlidingAttention(8, 2, side=3)), 2
    tokens = drawn(2, 1 + grid[0] * grid[1], 8)
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    count = 1 + len(places)
    bias = torch.full((heads, count, count), float("-inf"))
    from_global, to_global = attn.global_bias.local_position_bias[:, :, 0]
    bias[:, 0, 1:], bias[:, 1:, 0] = from_global[:, None], to_global[:, None]
    bias[:, 0, 0] = attn.global_bias.global_position_bias[:, 0, 0]
    for q, (i, j) in enumerate(places):
        for k, (m, n) in enumerate(places):
            if abs(i // 3 - m // 3) <= 1 and abs(j // 3 - n // 3) <= 1:
                bias[:, 1 + q, 1 + k] = attn.relative_position_bias_table[(i - m + 5) * 11 + j - n + 5]
    for image, out in zip(tokens, attn(tokens, grid)):
        q, (k, v) = rank_heads(attn.query(image), heads), (rank_heads(t, heads) for t in attn.kv(image).chunk(2, dim=1))
        weights = (q @ k.transpose(1, 2) * 4**-0.5 + bias).softmax(dim=-1)
        expected = attn.proj((weights @ v).transpose(0, 1).flatten(1))
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_global", [True, False])
@pytest.mark.parametrize("form", ["released", "paper"])
@torch.no_grad()
def test_the_bias_of_full_attention(form, has_global):
    attn = shaken(FullAttention(8, 2, side=4, has_global=has_global, form=form))
    table = attn.relative_position_bias_table

    def literal(grid):
        places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
        rows = [[table[(i - m + 3) * 7 + j - n + 3] for m, n in places] for i, j in places]
        return torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)

    assert torch.equal(attn.compute_bias((4, 4)), literal((4, 4)))
    if form == "paper":
        assert torch.equal(attn.compute_bias((2, 3)), literal((2, 3)))
        larger = F.interpolate(table.T.reshape(1, 2, 7, 7), size=(11, 11), mode="bicubic")
        torch.testing.assert_close(attn.compute_bias((6, 6))[:, 0, -1], larger[0, :, 0, 0])
    else:
        resized = F.interpolate(literal((4, 4))[None], size=(6, 6), mode="bicubic")[0]
        torch.testing.assert_close(attn.compute_bias((2, 3)), resized)
    tokens = drawn(1, has_global + 6, 8)
    q, k, v = (rank_heads(t, 2) for t in attn.qkv(tokens[0]).chunk(3, dim=1))
    scores = q @ k.transpose(1, 2) * 4**-0.5
    scores[:, -6:, -6:] += attn.compute_bias((2, 3))
    if has_global:
        scores[:, 0, 1:] += attn.global_bias.local_position_bias[0]
        scores[:, 1:, 0] += attn.global_bias.local_position_bias[1]
        scores[:, 0, 0] += attn.global_bias.global_position_bias[:, 0, 0]
    expected = attn.proj((scores.softmax(dim=-1) @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(attn(tokens, (2, 3))[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", [(8, 8), (5, 6), (3, 3), (2, 9)])
@torch.no_grad()
def test_cvt_windows_match_a_literal_version(grid):
    """Pad, convolve across window borders, attend window by window, scale by the whole width."""
    torch.manual_seed(0)
    attn = shaken(WindowedConvAttention(8, 2, window=4))
    tokens, side = drawn(1, grid[0] * grid[1], 8), min(4, *grid)
    rows, columns = (-(-length // side) * side for length in grid)
    maps = torch.zeros(1, 8, rows, columns)
    maps[:, :, : grid[0], : grid[1]] = tokens.transpose(1, 2).reshape(1, 8, *grid)
    maps = attn.conv.bn(F.conv2d(maps, attn.conv.conv.weight, padding=1, groups=8))
    expected = torch.zeros(rows, columns, 8)
    for top in range(0, rows, side):
        for left in range(0, columns, side):
            window = maps[0, :, top : top + side, left : left + side].flatten(1).T
            q, k, v = (rank_heads(t, 2) for t in attn.qkv(window).chunk(3, dim=1))
            mixed = (q @ k.transpose(1, 2) * 8**-0.5).softmax(dim=-1) @ v
            expected[top : top + side, left : left + side] = mixed.transpose(0, 1).reshape(side, side, 8)
    expected = attn.proj(expected[: grid[0], : grid[1]].flatten(0, 1))
    torch.testing.assert_close(attn(tokens, grid)[0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pvt_keys_are_patches_of_the_map():
    torch.manual_seed(0)
    attn = shaken(ReducedAttention(8, 2, reduction=2))
    tokens = drawn(1, 4 * 6, 8)
    maps = tokens.transpose(1, 2).reshape(1, 8, 4, 6)
    keys = [
        (maps[0, None, :, i : i + 2, j : j + 2] * attn.sr.weight).sum(dim=(1, 2, 3)) + attn.sr.bias
        for i in (0, 2)
        for j in (0, 2, 4)
    ]
    k, v = (rank_heads(t, 2) for t in attn.kv(attn.norm(torch.stack(keys))).chunk(2, dim=1))
    q = rank_heads(attn.q(tokens[0]), 2)
    mixed = (q @ k.transpose(1, 2) * 4**-0.5).softmax(dim=-1) @ v
    expected = attn.proj(mixed.transpose(0, 1).flatten(1))
    torch.testing.assert_close(attn(tokens, (4, 6))[0], expected, rtol=1e-4, atol=1e-5)
