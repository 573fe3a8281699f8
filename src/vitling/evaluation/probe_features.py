"""Features of a frozen network for probes: pooled, or of the last blocks concatenated.

As in the linear probes of EsViT and DINO, a block gives its class token, or the mean over its tokens if its stage has
no class token. (ViL's stages have one, called global, except the last.) The final norm is applied to the blocks of the
last stage only, whose width it has. The last four blocks of Swin-T are 384 + 384 + 768 + 768 = 2304 wide, those of
Swin-B 3072.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from timm.models.convnext import ConvNeXt
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.pyramid import Pyramid
from vitling.backbones.t2t import TokensToToken
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.features import eval_mode, iterate_views
from vitling.views.batch import render_batch
from vitling.views.plan import Plan
from vitling.views.renderer import Normaliser

BATCH = 256


class FrozenFeatures(NamedTuple):
    """Features of a split, in its order, on the store's device."""

    pooled: Tensor  # [N, D]
    blocks: Tensor  # [N, widths of the last blocks]; [N, 0] for no blocks


@torch.inference_mode()
def compute_probe_features(
    backbone: Backbone,
    store: Store,
    size: int,
    crop_fraction: float,
    blocks: int = 0,
    batch: int = BATCH,
    on_progress: Callable[[int], None] = lambda done: None,
) -> FrozenFeatures:
    """Compute both kinds of features in one pass over the evaluation views."""
    parts: list[FrozenFeatures] = []
    with eval_mode(backbone):
        for images in iterate_views(store, size, crop_fraction, batch=batch):
            parts.append(compute_batch_features(backbone, images, blocks))
            on_progress(min(len(parts) * batch, len(store)))
    return FrozenFeatures(*(torch.cat(kind) for kind in zip(*parts)))


@torch.inference_mode()
def compute_augmented_features(
    backbone: Backbone, store: Store, ids: np.ndarray, plan: Plan, seed: int, epoch: int, blocks: int
) -> Tensor:
    """Compute features of the last blocks for this epoch's random views of the images with `ids`."""
    (views,) = render_batch(plan, store, ids, Normaliser(store.mean, store.std), seed, epoch)
    with eval_mode(backbone):
        return compute_batch_features(backbone, views.pixels, blocks).blocks


def compute_batch_features(backbone: Backbone, images: Tensor, blocks: int) -> FrozenFeatures:
    """Compute features of normalised images; the backbone must be in evaluation mode."""
    with capture_outputs(get_last_blocks(backbone, blocks)) as seen:
        pooled = backbone.forward(images).pooled.float()
    vectors = [_pool_block(backbone, output).float() for output in seen]
    return FrozenFeatures(pooled, torch.cat(vectors, dim=1) if vectors else pooled[:, :0])


def get_last_blocks(backbone: Backbone, count: int) -> Sequence[nn.Module]:
    there = [part for part in backbone.blocks() if not isinstance(part, TokensToToken)]
    if not 0 <= count <= len(there):
        raise UserError(f"--linear.blocks {count} is not between 0 and the {len(there)} blocks of {backbone.name}.")
    return there[len(there) - count :]


@contextmanager
def capture_outputs(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the outputs of these modules within the block, in the order of their calls."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _, args, output: seen.append(output)) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _pool_block(backbone: Backbone, output: Tensor) -> Tensor:
    """Pool a block's output to [B, width]: tokens [B, N, D], maps [B, h, w, D] or, for convolutions, [B, D, h, w]."""
    model: Any = backbone.timm_model
    if isinstance(model, ResNet):
        return output.mean(dim=(2, 3))
    if isinstance(model, ConvNeXt):  # its norm follows the pooling
        pooled, last_norm = output.mean(dim=(2, 3), keepdim=True), cast(nn.Module, model.head.norm)
        return (last_norm(pooled) if output.shape[1] == backbone.dim else pooled).flatten(1)
    if output.shape[-1] != backbone.dim:  # an earlier stage
        tokens = output.flatten(1, -2)
        has_class_token = isinstance(model, Pyramid) and model.has_class_token(output.shape[-1])
        return tokens[:, 0] if has_class_token else tokens.mean(dim=1)
    norm: Any = model.stages[-1].norm if isinstance(model, PyramidVisionTransformerV2) else model.norm
    tokens = (output if norm is None else norm(output)).flatten(1, -2)
    if isinstance(model, VisionTransformer):
        return model.forward_head(tokens, pre_logits=True)  # class token or mean, as in its head
    return tokens.mean(dim=1) if getattr(model, "cls_token", None) is None else tokens[:, 0]
