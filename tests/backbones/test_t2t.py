from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vitling.backbones import create, load_weights
from vitling.backbones.backbone import build
from vitling.backbones.position import resize_positions
from vitling.backbones.t2t import (
    EPSILON,
    TokenPerformer,
    draw_orthogonal_features,
    performer_attention,
    sinusoids,
    soft_split,
)
from vitling.errors import UserError

TINY = {"dim": 32, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "token_dropout": 0.1}


def tiny(tokens="performer", size=64, seed=0, **more):
    return build("t2t_tiny", "t2t_vit", {**TINY, "tokens": tokens, "img_size": size, "in_chans": 3, **more}, size, seed)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# parameters with a head of 1000 classes, and how many of them are fixed
@pytest.mark.parametrize(
    ("name", "published", "fixed"),
    [
        ("t2t_vit_7", 4_310_222, 197 * 256 + 2 * 2048),
        ("t2t_vit_14", 21_545_550, 197 * 384 + 2 * 2048),
        (
            "t2t_vit_t_7",
            4_310_222 - 2 * (2048 + 192),
            197 * 256,
        ),  # no features, no bias of 3 x 64
        ("t2t_vit_t_14", 21_541_070, 197 * 384),
    ],
)
def test_parameter_counts_match_the_papers(name, published, fixed):
    with torch.device("meta"):
        backbone = create(name)
    trained = sum(p.numel() for p in backbone.parameters())
    head = (backbone.dim + 1) * 1000
    assert sum(b.numel() for b in backbone.buffers()) == fixed
    assert trained + fixed + head == published


@pytest.mark.parametrize("tokens", ["performer", "transformer"])
@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (14, 14)), ((112, 112), (7, 7)), ((96, 96), (6, 6)), ((36, 100), (3, 7))]
)
@torch.no_grad()
def test_other_input_sizes(tokens, size, grid):
    backbone = tiny(tokens).eval()
    features = backbone(drawn(1, 3, *size), stages=True)
    assert features.pooled.shape == (1, 32)
    assert features.grid.shape == (1, 32, *grid)
    assert [s.shape for s in features.stages] == [(1, 32, *grid)] * 2
    assert backbone.grid_size(size) == grid


@torch.no_grad()
def test_448_px_gives_a_28_x_28_grid():
    assert tiny(size=448).eval()(drawn(1, 3, 448, 448)).grid.shape == (1, 32, 28, 28)


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="90 px"):
        create("t2t_vit_7", size=90)


@pytest.mark.parametrize("tokens", ["performer", "transformer"])
def test_a_gradient_reaches_every_parameter(tokens):
    backbone = tiny(tokens)
    features = backbone(drawn(2, 3, 64, 64))
    (features.pooled * drawn(2, 32, seed=1)).sum().backward()
    still = [name for name, p in backbone.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert still == []


def literal_split(image, kernel, stride, padding):
    """Extract patches one by one from an image padded with zeros."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    padded[:, padding : padding + height, padding : padding + width] = image
    tokens = []
    for top in range(0, height + 2 * padding - kernel + 1, stride):
        for left in range(0, width + 2 * padding - kernel + 1, stride):
            tokens.append(padded[:, top : top + kernel, left : left + kernel].flatten())
    return torch.stack(tokens)


@pytest.mark.parametrize("split", [(7, 4, 2), (3, 2, 1)])
@pytest.mark.parametrize("size", [(16, 24), (15, 9)])
def test_soft_split_matches_a_literal_version(split, size):
    images = drawn(2, 3, *size)
    tokens, grid = soft_split(images, *split)
    assert torch.equal(tokens, torch.stack([literal_split(image, *split) for image in images]))
    assert tokens.shape[1] == math.prod(grid)


def literal_performer(q, k, v, w):
    """Compute attention for one sequence with explicit weights."""

    def phi(x):
        return torch.stack([torch.exp(row @ x - (x @ x) / 2) for row in w]) / math.sqrt(len(w))

    outputs = []
    for query in q:
        weights = torch.stack([phi(query) @ phi(key) for key in k])
        outputs.append(sum(weight * value for weight, value in zip(weights, v)) / (weights.sum() + EPSILON))
    return torch.stack(outputs)


def test_performer_attention_matches_a_literal_version():
    q, k, v = (drawn(2, 9, 8, seed=s) for s in range(3))
    w = draw_orthogonal_features(4, 8, torch.Generator().manual_seed(0))
    expected = torch.stack([literal_performer(*one, w) for one in zip(q, k, v)])
    torch.testing.assert_close(performer_attention(q, k, v, w), expected)


def test_more_features_approximate_softmax_attention_better():
    q, k, v = (drawn(1, 50, 8, seed=s) * 0.4 for s in range(3))
    exact = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    generator = torch.Generator().manual_seed(0)

    def error(count):
        trials = []
        for _ in range(10):
            w = torch.randn(count, 8, generator=generator)  # as in Lemma 1, so that the estimate has no bias
            trials.append((performer_attention(q, k, v, w) - exact).square().mean())
        return torch.stack(trials).mean()

    few, some, many = error(16), error(256), error(4096)
    assert few > 4 * some > 16 * many


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_performer_attention_is_fp32_under_autocast(dtype):
    q, k, v = (drawn(2, 30, 8, seed=s) for s in range(3))
    w = draw_orthogonal_features(4, 8, torch.Generator().manual_seed(0))
    expected = performer_attention(q, k, v, w)
    with torch.autocast("cpu", dtype):
        inside = performer_attention(q, k, v, w)
        from_half = performer_attention(q.to(dtype), k.to(dtype), v.to(dtype), w)
    assert torch.equal(inside, expected)
    assert from_half.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_inputs_stay_finite_in_half_precision(dtype):
    performer = TokenPerformer(20, 16, 0.0, torch.Generator().manual_seed(0))
    with torch.no_grad():
        performer.kqv.weight.mul_(500)
    tokens = (drawn(2, 40, 20) * 1e4).requires_grad_()
    with torch.autocast("cpu", dtype):
        out = performer(tokens)
    (out.float() * drawn(2, 40, 16, seed=1)).mean().backward()
    queries = performer.kqv(performer.norm1(tokens)).chunk(3, dim=-1)[1]
    assert queries.square().sum(dim=-1).max() > torch.finfo(torch.float16).max  # so half precision would overflow
    assert out.isfinite().all()
    assert tokens.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in performer.parameters())


def test_random_features_are_orthogonal_fixed_saved_and_follow_the_seed():
    one = tiny(seed=1)
    w = one.timm_model.tokens_to_token.attention1.w
    torch.testing.assert_close(w @ w.T, 32 * torch.eye(32))
    assert not w.requires_grad
    assert "timm_model.tokens_to_token.attention1.w" in one.state_dict()
    assert not torch.equal(w, one.timm_model.tokens_to_token.attention2.w)
    assert torch.equal(w, tiny(seed=1).timm_model.tokens_to_token.attention1.w)
    assert not torch.equal(w, tiny(seed=2).timm_model.tokens_to_token.attention1.w)
    torch.manual_seed(1)
    torch.randn(7)
    assert torch.equal(w, tiny(seed=None).timm_model.tokens_to_token.attention1.w)


def test_positions_are_fixed_sinusoids():
    positions = sinusoids(5, 6)
    for position in range(5):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert positions[0, position, 2 * i] == pytest.approx(math.sin(angle))
            assert positions[0, position, 2 * i + 1] == pytest.approx(math.cos(angle))
    backbone = tiny(size=96)
    assert torch.equal(backbone.timm_model.pos_embed, sinusoids(37, 32))
    assert backbone.no_decay() == {"timm_model.cls_token"}


@torch.no_grad()
def test_positions_are_resized_for_other_inputs_and_on_transfer():
    source = tiny(size=64, seed=1).eval()
    target = tiny(size=96, seed=2).eval()
    transfer = load_weights(target, source.state_dict())
    assert transfer.resized == ["pos_embed"]
    assert transfer.missing == []
    assert torch.equal(target.timm_model.pos_embed, resize_positions(sinusoids(17, 32), (4, 4), (6, 6)))
    x = drawn(2, 3, 96, 96)
    assert torch.equal(source(x).pooled, target(x).pooled)


@torch.no_grad()
def test_recomputed_positions_number_the_tokens_of_any_grid():
    source = tiny(size=64, seed=1, positions="recomputed").eval()
    target = tiny(size=96, seed=2).eval()  # built for 96 px, so its positions are those of 6 x 6 tokens
    load_weights(target, {k: v for k, v in source.timm_model.state_dict().items() if k != "pos_embed"})
    x = drawn(2, 3, 96, 96)
    assert torch.equal(source(x).pooled, target(x).pooled)
    assert not torch.allclose(source(x).pooled, tiny(size=64, seed=1).eval()(x).pooled, atol=1e-4)
    larger = tiny(size=96, seed=3, positions="recomputed")
    assert load_weights(larger, source.state_dict()).resized == ["pos_embed"]
    assert torch.equal(larger.timm_model.pos_embed, sinusoids(37, 32))
    assert create("t2t_vit_7.sinusoid", size=32).timm_model.positions == "recomputed"
    assert create("t2t_vit_7", size=32).timm_model.positions == "resized"


@torch.no_grad()
def test_a_state_dict_gives_the_same_features():
    one, two = tiny(seed=1).eval(), tiny(seed=2).eval()
    two.load_state_dict(one.state_dict())
    x = drawn(2, 3, 64, 64)
    assert torch.equal(one(x).grid, two(x).grid)


def test_drop_path_grows_with_depth_and_only_performers_drop_tokens():
    backbone = create("t2t_vit_7", size=32, drop_path=0.3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in backbone.timm_model.blocks]
    assert rates == pytest.approx([0.05 * i for i in range(7)])
    dropouts = [m.p for m in backbone.timm_model.tokens_to_token.modules() if isinstance(m, torch.nn.Dropout)]
    assert dropouts == [0.1] * 4
    other = create("t2t_vit_t_7", size=32).train()
    x = drawn(1, 3, 32, 32)
    assert torch.equal(other(x).pooled, other(x).pooled)


@torch.no_grad()
def test_attention_reproduces_the_last_blocks_output():
    backbone = tiny().eval()
    attn = backbone.timm_model.blocks[-1].attn
    seen = {}
    handle = attn.register_forward_hook(lambda m, args, out: seen.update(x=args[0], out=out))
    attention = backbone(drawn(2, 3, 64, 64), attention=True).attention
    handle.remove()
    assert attention.shape == (2, 2, 17, 17)
    values = attn.qkv(seen["x"]).reshape(2, 17, 3, 2, 16)[:, :, 2].transpose(1, 2)
    torch.testing.assert_close(attn.proj((attention @ values).transpose(1, 2).flatten(2)), seen["out"])


def test_bf16_autocast_trains():
    backbone = tiny(drop_path_rate=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(drawn(2, 3, 64, 64))
    features.pooled.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in backbone.parameters())
