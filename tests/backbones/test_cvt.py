from __future__ import annotations

import pytest
import torch
from torch import nn

from vitling.backbones import create, load_weights
from vitling.backbones.backbone import build
from vitling.backbones.cvt import FORMS, ChannelNorm, ConvAttention

FORM_NAMES = ["drloc", "official"]
TINY = {"dims": (8, 16, 32), "depths": (1, 1, 2), "heads": (1, 2, 4)}


def tiny(form, size=64, seed=0, **more):
    return build("cvt_tiny", "cvt", {**TINY, "form": form, "in_chans": 3, **more}, size, seed)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# DRLoc's version, and the authors': their paper says 19.98 M, their code gives this
@pytest.mark.parametrize(("name", "published"), [("cvt_13", 19_936_296), ("cvt_13_official", 19_997_480)])
def test_parameter_counts_match_the_papers(name, published):
    with torch.device("meta"):
        backbone = create(name)
    assert sum(p.numel() for p in backbone.parameters()) + 385 * 1000 == published


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (14, 14)), ((112, 112), (7, 7)), ((96, 96), (6, 6)), ((36, 100), (3, 7))]
)
@torch.no_grad()
def test_other_input_sizes(form, size, grid):
    backbone = tiny(form).eval()
    features = backbone(drawn(1, 3, *size), stages=True)
    assert features.pooled.shape == (1, 32)
    assert features.grid.shape == (1, 32, *grid)
    assert [s.shape[1] for s in features.stages] == [8, 16, 32]
    assert features.stages[0].shape[2:] == (size[0] // 4, size[1] // 4)
    assert backbone.grid_size(size) == grid


@torch.no_grad()
def test_pooled_features():
    x = drawn(2, 3, 64, 64)
    mean, token = tiny("drloc").eval()(x, stages=True), tiny("official").eval()(x, stages=True)
    torch.testing.assert_close(mean.pooled, mean.grid.mean(dim=(2, 3)))
    assert mean.raw_grid is None
    assert torch.equal(mean.stages[-1], mean.grid)
    assert torch.equal(token.stages[-1], token.raw_grid)
    assert not torch.allclose(token.pooled, token.grid.mean(dim=(2, 3)), atol=1e-3)


@pytest.mark.parametrize("form", FORM_NAMES)
def test_a_gradient_reaches_every_parameter(form):
    """Except what shifts all keys alike without a class token, because softmax cancels it.

    The loss uses the grid too: the pooled class token needs only its own query, which is not convolved.
    """
    backbone = tiny(form)
    features = backbone(drawn(2, 3, 64, 64))
    (features.grid * drawn(2, 32, 4, 4, seed=1)).sum().add((features.pooled * drawn(2, 32, seed=2)).sum()).backward()
    cancelled = ("proj_k.bias", "conv_k.bn.bias")
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith(cancelled), name


def literal_attention(attn, tokens, grid):
    """Compute attention for one image without a class token, with explicit sums over neighbours and queries."""

    def convolved(layer, stride):
        maps = tokens.T.reshape(-1, *grid)
        rows = []
        for top in range(0, grid[0], stride):
            for left in range(0, grid[1], stride):
                total = torch.zeros(len(maps))
                for i in range(3):
                    for j in range(3):
                        y, x = top + i - 1, left + j - 1
                        if 0 <= y < grid[0] and 0 <= x < grid[1]:
                            total += maps[:, y, x] * layer.conv.weight[:, 0, i, j]
                rows.append(total)
        bn = layer.bn
        return (torch.stack(rows) - bn.running_mean) / (bn.running_var + bn.eps).sqrt() * bn.weight + bn.bias

    keys = convolved(attn.conv_k, 2)
    values = keys if attn.conv_v is None else convolved(attn.conv_v, 2)
    q, k, v = attn.proj_q(convolved(attn.conv_q, 1)), attn.proj_k(keys), attn.proj_v(values)
    width = q.shape[1] // attn.heads
    outputs = []
    for h in range(attn.heads):
        part = slice(h * width, (h + 1) * width)
        for_head = [torch.softmax(query[part] @ k[:, part].T * attn.mix.scale, dim=0) @ v[:, part] for query in q]
        outputs.append(torch.stack(for_head))
    return attn.proj(torch.cat(outputs, dim=1))


@pytest.mark.parametrize("form", FORM_NAMES)
@torch.no_grad()
def test_attention_matches_a_literal_version(form):
    torch.manual_seed(0)
    attn = ConvAttention(8, 2, FORMS[form]).eval()
    for module in attn.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                values.add_(torch.rand_like(values))
    assert attn.mix.scale == pytest.approx({"drloc": 4**-0.5, "official": 8**-0.5}[form])
    tokens = drawn(1, 5 * 6, 8)
    expected = literal_attention(attn, tokens[0], (5, 6))
    torch.testing.assert_close(attn(tokens, (5, 6))[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("form", "prefix"), [("drloc", 0), ("official", 1)])
def test_keys_are_halved_and_attention_reproduces_the_output(form, prefix):
    """Also in training, and without a second pass through batch norm."""
    backbone = tiny(form)
    seen = {}
    attn = backbone.timm_model.stages[-1].blocks[-1].attn
    attn.mix.register_forward_hook(lambda m, args, out: seen.update(args=args, out=out))
    features = backbone(drawn(2, 3, 96, 112), attention=True)  # 6 x 7 tokens, so 3 x 4 keys
    _, keys, values = seen["args"]
    assert keys.shape == values.shape == (2, 4, prefix + 12, 8)
    assert features.attention.shape == (2, 4, prefix + 42, prefix + 12)
    torch.testing.assert_close(features.attention @ values, seen["out"])
    assert attn.conv_k.bn.num_batches_tracked == 1


def test_channel_norm_adds_epsilon_to_the_std():
    norm = ChannelNorm(4)
    nn.init.normal_(norm.weight)
    tokens = 1e-5 * drawn(3, 5, 4)
    mean, deviation = tokens.mean(-1, keepdim=True), tokens.std(-1, keepdim=True, correction=0)
    expected = (tokens - mean) / (deviation + 1e-5) * norm.weight + norm.bias
    torch.testing.assert_close(norm(tokens), expected, rtol=1e-4, atol=1e-5)
    flat = torch.ones(1, 2, 4, requires_grad=True)
    norm(flat).sum().backward()
    assert flat.grad.isfinite().all()


@pytest.mark.parametrize("form", FORM_NAMES)
@torch.no_grad()
def test_a_state_dict_gives_the_same_features_at_any_size(form):
    one, two = tiny(form, seed=1), tiny(form, size=96, seed=2)
    one(drawn(4, 3, 64, 64))  # running statistics that are not the initial ones
    transfer = load_weights(two, one.state_dict())
    assert transfer.skipped == {}
    assert transfer.missing == transfer.resized == []
    x = drawn(1, 3, 64, 64)
    assert torch.equal(one.eval()(x).grid, two.eval()(x).grid)


@pytest.mark.parametrize("form", FORM_NAMES)
def test_drop_path_applies_to_the_last_stage_only(form):
    stages = tiny(form, drop_path_rate=0.2).timm_model.stages
    assert [[block.drop_path.drop_prob for block in stage.blocks] for stage in stages] == [[0.0], [0.0], [0.0, 0.2]]


def test_no_decay_names_are_parameter_names():
    assert tiny("drloc").no_decay() == set()
    assert tiny("official").no_decay() == {"timm_model.cls_token"}


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains(form, dtype):
    backbone = tiny(form, drop_path_rate=0.1)
    with torch.autocast("cpu", dtype):
        features = backbone(drawn(2, 3, 64, 64))
    features.pooled.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in backbone.parameters())


def test_block_outputs_on_request():
    backbone = create("cvt_13", 64)
    blocks = backbone(torch.zeros(2, 3, 64, 64), stages="blocks").stages
    stages = backbone(torch.zeros(2, 3, 64, 64), stages=True).stages
    assert [b.shape[1] for b in blocks] == [64, 192, 192] + 10 * [384]
    assert [s.shape for s in stages] == [blocks[0].shape, blocks[2].shape, blocks[-1].shape]
