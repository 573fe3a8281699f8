"""Networks of the papers' released code that differ from timm's: DRLoc's ViT and torchvision's ResNet."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitling.backbones import create
from vitling.backbones.backbone import build
from vitling.evaluation.bundle import load_bundle, save_bundle
from vitling.evaluation.meta import BundleMeta

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32, "in_chans": 3}


def tiny_vit(seed=0):
    return build("vit_tiny.drloc", "vit_drloc", TINY, 32, seed)


def literal_vit(w, x):
    """A pre-norm ViT in evaluation mode, written out; `w` has timm's names."""
    patches = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
    tokens = patches @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"]
    tokens = torch.cat([w["cls_token"].expand(len(x), -1, -1), tokens], dim=1) + w["pos_embed"]
    for i in range(2):
        block = {name.removeprefix(f"blocks.{i}."): value for name, value in w.items() if f"blocks.{i}." in name}
        normed = F.layer_norm(tokens, (32,), block["norm1.weight"], block["norm1.bias"], 1e-5)
        q, k, v = (normed @ block["attn.qkv.weight"].T).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT * 16**-0.5).softmax(-1) @ v
        projected = mixed.transpose(1, 2).flatten(2) @ block["attn.proj.weight"].T + block["attn.proj.bias"]
        tokens = tokens + projected
        normed = F.layer_norm(tokens, (32,), block["norm2.weight"], block["norm2.bias"], 1e-5)
        hidden = F.gelu(normed @ block["mlp.fc1.weight"].T + block["mlp.fc1.bias"])
        tokens = tokens + hidden @ block["mlp.fc2.weight"].T + block["mlp.fc2.bias"]
    return tokens, F.layer_norm(tokens, (32,), w["norm.weight"], w["norm.bias"], 1e-5)[:, 0]


@torch.no_grad()
def test_drlocs_vit_matches_a_literal_version():
    backbone, x = tiny_vit().eval(), torch.randn(2, 3, 32, 32)
    for norm in (m for m in backbone.modules() if isinstance(m, nn.LayerNorm)):
        norm.weight.uniform_(0.5, 1.5)
    x[1] *= 1e-3  # the epsilon of the norms counts where tokens vary little
    tokens, pooled = literal_vit(backbone.timm_model.state_dict(), x)
    features = backbone(x)
    assert torch.allclose(features.pooled, pooled, atol=1e-5)
    assert torch.allclose(features.select_grid("published").flatten(2).mT, tokens[:, 1:], atol=1e-5)


def test_drlocs_vit_starts_with_torchs_layers_and_normal_positions():
    model = create("vit_base_patch16_224.drloc", seed=0).timm_model
    assert model.pos_embed.std().item() == pytest.approx(1.0, abs=0.01)
    assert model.cls_token.std().item() == pytest.approx(1.0, abs=0.1)
    for layer in (
        model.blocks[0].attn.qkv,
        model.blocks[0].attn.proj,
        model.blocks[11].mlp.fc2,
        model.patch_embed.proj,
    ):
        bound = layer.weight[0].numel() ** -0.5  # uniform in +-1 / sqrt(fan in), weights and biases
        assert bound * 0.99 < layer.weight.abs().max().item() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
        assert layer.bias is None or bound * 0.9 < layer.bias.abs().max().item() <= bound
    assert model.blocks[0].attn.qkv.bias is None
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p}
    assert rates == {f"blocks.{i}.{at}": 0.1 for i in range(12) for at in ("attn.proj_drop", "mlp.drop1", "mlp.drop2")}
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}


@torch.no_grad()
def test_a_saved_drloc_vit_loads_again(tmp_path):
    backbone, x = tiny_vit().eval(), torch.randn(1, 3, 32, 32)
    head = nn.Linear(32, 2)
    meta = BundleMeta("single", ("a", "b"), size=32, store_size=36, mean=(0.5,) * 3, std=(0.2,) * 3)
    save_bundle(tmp_path, backbone, head, meta)
    assert torch.allclose(load_bundle(tmp_path).logits(x), head(backbone(x).pooled), atol=1e-6)


def test_torchvisions_resnet_starts_with_ones():
    """timm's own starts with residual branches that are 0; all other weights have the same distribution."""
    from torchvision.models import resnet50

    ours, timms = (create(name, seed=0).timm_model for name in ("resnet50.torchvision", "resnet50"))
    torch.manual_seed(0)
    reference = dict(resnet50().named_parameters())
    for name, value in ours.named_parameters():
        assert value.shape == reference[name].shape
        assert value.std(correction=0).item() == pytest.approx(
            reference[name].std(correction=0).item(), rel=0.1, abs=1e-6
        )
        assert value.mean().item() == pytest.approx(reference[name].mean().item(), abs=0.01)
    assert all(torch.all(block.bn3.weight == 1) for block in ours.layer4)
    assert all(torch.all(block.bn3.weight == 0) for block in timms.layer4)
