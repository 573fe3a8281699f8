"""What a probe sees of a frozen network: its pooled features, or those of the last blocks side by side.

As EsViT's and DINO's linear probes have it: of each block the class token, or where a network has none the mean over
its tokens; the network's final norm goes over the blocks of the last stage, which it fits, and those of earlier stages
stay as they are. The last four blocks of Swin-T are 384 + 384 + 768 + 768 = 2304 wide, of Swin-B 3072.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.t2t import TokensToToken
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.features import eval_mode, iterate_views
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.config import Plan
from vitling.views.renderer import Normaliser, Renderer

BATCH = 256


class FrozenFeatures(NamedTuple):
    """Features of a split, in its order, on the store's device."""

    pooled: Tensor  # [N, D]
    blocks: Tensor  # [N, widths of the last blocks]; [N, 0] if none were asked for


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
    """Both kinds in one pass over the evaluation views."""
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
    """Features of the last blocks of random views, those of this epoch, of the images with `ids`."""
    key = BatchKey(seed, epoch, 0, ids, len(store))
    view_batch = ViewBatch(plan, key, np.arange(len(ids)))
    renderer = Renderer(Normaliser(tuple(store.mean), tuple(store.std)))
    (views,) = view_batch.render(*store.fetch(view_batch.instances), renderer)
    with eval_mode(backbone):
        return compute_batch_features(backbone, views.pixels, blocks).blocks


def compute_batch_features(backbone: Backbone, images: Tensor, blocks: int) -> FrozenFeatures:
    """Of normalised images, by a backbone in evaluation mode."""
    with outputs_of(last_blocks(backbone, blocks)) as seen:
        pooled = backbone.forward(images).pooled.float()
    vectors = [_vector(backbone, output).float() for output in seen]
    return FrozenFeatures(pooled, torch.cat(vectors, dim=1) if vectors else pooled[:, :0])


def last_blocks(backbone: Backbone, count: int) -> Sequence[nn.Module]:
    there = [part for part in backbone.blocks() if not isinstance(part, TokensToToken)]
    if not 0 <= count <= len(there):
        raise UserError(f"--linear.blocks {count}: {backbone.name} has {len(there)} blocks.")
    return there[len(there) - count :]


@contextmanager
def outputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What these modules give while the block runs, in the order of their calls."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _, args, output: seen.append(output)) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _vector(backbone: Backbone, output: Tensor) -> Tensor:
    """[B, width] of what a block gave: tokens [B, N, D], maps [B, h, w, D] or, of a ResNet, [B, D, h, w]."""
    model: Any = backbone.timm_model
    if isinstance(model, ResNet):
        return output.mean(dim=(2, 3))
    if output.shape[-1] != backbone.dim:  # of an earlier stage
        return output.flatten(1, -2).mean(dim=1)
    norm: Any = model.stages[-1].norm if isinstance(model, PyramidVisionTransformerV2) else model.norm
    tokens = (output if norm is None else norm(output)).flatten(1, -2)
    if isinstance(model, VisionTransformer):
        return model.forward_head(tokens, pre_logits=True)  # its class token, or the mean, as its head has it
    return tokens.mean(dim=1) if getattr(model, "cls_token", None) is None else tokens[:, 0]
