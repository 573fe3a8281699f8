from __future__ import annotations

import pytest
import torch

from vitling.backbones import create
from vitling.backbones.attention import NoAttention


def attention_and_output(backbone, x):
    """Return the attention that the backbone reports for its last block, and that block's input and output."""
    blocks = backbone.timm_model
    for part in ("stages", "layers"):
        blocks = getattr(blocks, part)[-1] if hasattr(blocks, part) else blocks
    attn = blocks.blocks[-1].attn
    seen = {}
    handle = attn.register_forward_hook(lambda m, args, out: seen.update(x=args[0], out=out))
    features = backbone(x, attention=True)
    handle.remove()
    return features.attention, attn, seen


def rebuild(attention, values, attn):
    """Rebuild the block's output from our attention and its values: equal only if it used that attention."""
    mixed = (attention @ values).transpose(1, 2).flatten(2)
    return attn.proj(mixed)


def values_of(projected, parts, heads):
    batch, count = projected.shape[:2]
    return projected.reshape(batch, count, parts, heads, -1)[:, :, -1].transpose(1, 2)


@pytest.mark.parametrize(
    ("name", "size", "heads", "queries", "keys"),
    [
        ("vit_micro_patch4_32", 32, 4, 65, 65),
        ("vit_micro_patch4_32", 24, 4, 37, 37),
        ("swin_tiny_patch4_window7_224", 224, 24, 49, 49),
        ("swin_tiny_patch4_window7_224", 96, 24, 49, 49),  # 3 x 3 tokens in a padded window
        ("pvt_v2_b0", 64, 8, 4, 4),
    ],
)
@torch.no_grad()
def test_attention_reproduces_the_blocks_output(name, size, heads, queries, keys):
    backbone = create(name, seed=0).eval()
    for parameter in backbone.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)  # biases and tables start at zero and would hide errors
    attention, attn, seen = attention_and_output(backbone, torch.randn(2, 3, size, size))
    assert attention.shape == (2, heads, queries, keys)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, heads, queries))
    projected = attn.qkv(seen["x"]) if hasattr(attn, "qkv") else attn.kv(seen["x"])
    values = values_of(projected, 3 if hasattr(attn, "qkv") else 2, heads)
    torch.testing.assert_close(rebuild(attention, values, attn), seen["out"], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_query_and_key_norms_are_respected():
    backbone = create("vit_micro_patch4_32", seed=0).eval()
    attn = backbone.timm_model.blocks[-1].attn
    attn.q_norm = torch.nn.LayerNorm(32)
    attention, attn, seen = attention_and_output(backbone, torch.randn(1, 3, 32, 32))
    values = values_of(attn.qkv(seen["x"]), 3, 4)
    torch.testing.assert_close(rebuild(attention, values, attn), seen["out"], rtol=1e-4, atol=1e-4)


def test_networks_without_a_single_attention_map_are_refused():
    with torch.device("meta"):
        with pytest.raises(NoAttention, match="no attention"):
            create("resnet18")(torch.empty(1, 3, 64, 64), attention=True)
        with pytest.raises(NoAttention, match="several windows"):
            create("swin_tiny_patch4_window7_224")(torch.empty(1, 3, 448, 448), attention=True)
