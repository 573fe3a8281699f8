"""Mimetic initialisation of plain ViTs (Trockman and Kolter, ICML 2023): attention that starts as trained ones end up.

In trained ViTs the product of query and key weights is close to a multiple of the identity, and that of value and
projection weights to a negative multiple. Both are set so here, with noise, and positions start as sines and cosines.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.errors import UserError

QUERY_KEY, VALUE_PROJECTION = 0.7, -0.4  # the paper's: factor of the identity; its absolute value is that of the noise


def check(model: nn.Module, name: str) -> None:
    """Raise UserError for a network that is no plain ViT."""
    if not _is_plain(model):
        raise UserError(f"--init mimetic is for plain ViTs such as deit_tiny_patch16_224, not for {name}.")


@torch.no_grad()
def initialise(vit: Any) -> None:
    """Initialise attention and positions of a plain ViT, which takes seconds for a large one."""
    for block in vit.blocks:
        _initialise_attention(block.attn)
    positions = build_sincos2d_pos_embed(list(vit.patch_embed.grid_size), dim=vit.embed_dim)
    vit.pos_embed[0, -len(positions) :] = positions


def _is_plain(model: nn.Module) -> bool:
    if not isinstance(model, VisionTransformer) or getattr(model, "pos_embed", None) is None or model.embed_dim % 4:
        return False
    attentions = [getattr(block, "attn", None) for block in model.blocks]
    return all(hasattr(attention, "qkv") and hasattr(attention, "proj") for attention in attentions)


def _initialise_attention(attention: Any) -> None:
    width, heads = attention.qkv.in_features, attention.num_heads
    queries, keys, values = attention.qkv.weight.unflatten(0, (3, heads, -1))  # each [heads, head width, width]
    for head in range(heads):
        left, right = _factorise(width, QUERY_KEY, len(queries[head]))
        queries[head].copy_(left.mT)
        keys[head].copy_(right.mT)
    left, right = _factorise(width, VALUE_PROJECTION, width)
    values.copy_(left.mT.view_as(values))
    attention.proj.weight.copy_(right)


def _factorise(width: int, identity: float, rank: int) -> tuple[Tensor, Tensor]:
    """Factorise identity * I + |identity| * Z into L R^T of this rank, with Z_ij ~ N(0, 1 / width)."""
    noise = torch.randn(width, width) / math.sqrt(width)
    u, s, vh = torch.linalg.svd(identity * torch.eye(width) + abs(identity) * noise)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vh[:rank].mT * root
