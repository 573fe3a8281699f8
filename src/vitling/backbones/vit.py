"""ViT as DRLoc's released code has it (lucidrains' vit-pytorch), in timm's modules."""

from __future__ import annotations

from typing import Any

import timm
from timm.models.vision_transformer import VisionTransformer
from torch import nn

DROPOUT = 0.1  # after the attention's projection and after both layers of the MLP


def create_drloc_vit(**model_args: Any) -> VisionTransformer:
    """Create a ViT that differs from timm's.

    Queries, keys and values have no biases, there is dropout, and norms have an epsilon of 1e-5 (timm: 1e-6). Layers
    use torch's default initialisation (timm: std 0.02), positions and class token start from N(0, 1) (timm: std 0.02
    and 1e-6).
    """
    model: Any = timm.create_model(
        "vit_base_patch16_224",
        pretrained=False,
        num_classes=0,
        qkv_bias=False,
        proj_drop_rate=DROPOUT,
        norm_layer=nn.LayerNorm,
        weight_init="skip",
        **model_args,
    )
    nn.init.normal_(model.pos_embed)
    nn.init.normal_(model.cls_token)
    return model
