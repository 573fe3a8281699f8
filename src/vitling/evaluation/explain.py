"""`vitling explain`: pictures of matching regions in two views, and of the attention of each head."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.attention import NoAttention
from vitling.backbones.features import Features
from vitling.backbones.position import Grid
from vitling.errors import UserError
from vitling.evaluation import pictures
from vitling.evaluation.attention_maps import REDUNDANT_ABOVE, Query, rank_heads
from vitling.evaluation.bundle import load
from vitling.evaluation.config import Weights
from vitling.evaluation.correspondence import (
    Grey,
    match_regions,
    measure_correspondence,
    measure_mirror_errors,
    mirror_views,
)
from vitling.evaluation.inputs import list_sources
from vitling.evaluation.model import Model
from vitling.files import check_writable, write_json
from vitling.views.sheet import to_rgb

FILE = "explained.json"
PICTURES = ("correspondence.png", "attention-masks.png", "attention-maps.png", "entropy.png")
REGIONS, MASKS, MAPS, ENTROPIES = PICTURES


def explain(
    model_path: str | os.PathLike,
    image: str,
    second: str | None = None,
    out: str | os.PathLike = "explained",
    query: str = "object",
    grey: Grey = "paper",
    seed: int = 0,
    weights: Weights = "last",
) -> dict[str, Any]:
    """Write pictures and `explained.json`, and return its content; a folder as `image` is measured without pictures."""
    region = _parse_query(query)
    out = Path(out)
    check_writable(out / FILE)
    model = load(model_path, weights)
    if Path(image).is_dir():
        if second is not None:
            raise UserError("A folder is compared with its own mirrored images. Give one folder, or one or two images.")
        found: dict[str, Any] = {
            "correspondence": asdict(measure_correspondence(model, list_sources(image), grey, seed))
        }
        _delete_earlier(out)
    else:
        found = _draw_pictures(model, [image] if second is None else [image, second], out, region, grey, seed)
    write_json(out / FILE, {"model": str(model_path), "images": [image, second], **found})
    return found


def _delete_earlier(out: Path) -> None:
    """Delete the files of an earlier call, which may be of another network or image."""
    for name in (FILE, *PICTURES):
        (out / name).unlink(missing_ok=True)


@torch.inference_mode()
def _draw_pictures(model: Model, images: list[str], out: Path, query: Query, grey: Grey, seed: int) -> dict[str, Any]:
    views = torch.cat([_load_view(model, name) for name in images])
    if len(images) == 1:
        views = torch.cat([views, mirror_views(model, views, [0], grey, seed)])
    _delete_earlier(out)
    found = {"correspondence": _draw_correspondences(model, views, images, out / REGIONS)}
    try:
        return found | {"attention": _draw_attention(model, views[:1], query, out)}
    except UserError as problem:
        key = "no_attention" if isinstance(problem, NoAttention) else "wrong_query"
        return found | {key: str(problem)}


def _draw_correspondences(model: Model, views: Tensor, images: list[str], out: Path) -> dict[str, Any]:
    features = model.backbone(views)
    if not features.grid.isfinite().all():
        raise UserError("The network's features are not finite; the weights may be damaged.")
    matches = match_regions(features.grid[:1], features.grid[1:])
    errors = measure_mirror_errors(matches, model.meta.size)[0].cpu().numpy() if len(images) == 1 else None
    names = (Path(images[0]).name, Path(images[1]).name if len(images) > 1 else "mirrored")
    shown = [np.asarray(to_rgb(view, model.meta.mean, model.meta.std)) for view in views]
    nearest = [(_find_nearest(features, i, i), _find_nearest(features, i, 1 - i)) for i in range(2)]
    pictures.draw_correspondences(shown, matches, nearest, errors, names, out)
    found: dict[str, Any] = {
        "first": [list(divmod(int(region), matches.grid[1])) for region in matches.first[0]],
        "second": [list(divmod(int(region), matches.grid[1])) for region in matches.second[0]],
        "similarity": matches.similarity[0].tolist(),
        "nearest_to_global": [{"own": list(own), "other": list(other)} for own, other in nearest],
    }
    if errors is not None:
        found |= {"accuracy": float((errors == 0).mean()), "distance": float(errors.mean())}
    return found


def _find_nearest(features: Features, view: int, other: int) -> Grid:
    """Find the region of a view most similar to the pooled feature of the other view, or of the same one."""
    regions = features.grid[view].float().flatten(1)
    similar = F.cosine_similarity(regions, features.pooled[other].float()[:, None], dim=0)
    return divmod(int(similar.argmax()), features.grid.shape[-1])


def _draw_attention(model: Model, view: Tensor, query: Query, out: Path) -> dict[str, Any]:
    features = model.backbone(view, attention=True)
    heads = rank_heads(model.backbone, features, query)
    shown = np.asarray(to_rgb(view[0], model.meta.mean, model.meta.std))
    grid = (features.grid.shape[-2], features.grid.shape[-1])
    pictures.draw_heads(shown, heads, grid, True, out / MASKS)
    pictures.draw_heads(shown, heads, grid, False, out / MAPS)
    pictures.draw_entropies(heads, out / ENTROPIES)
    return {
        "query": list(heads.query),
        "heads": heads.order.tolist(),
        "entropy_bits": heads.entropy.tolist(),
        "elsewhere": heads.elsewhere.tolist(),
        "redundant": int(heads.redundant().sum()),
        "redundant_above": REDUNDANT_ABOVE,
    }


def _load_view(model: Model, name: str) -> Tensor:
    sources = list_sources(name)
    if len(sources) != 1:
        raise UserError(f"{name} matches {len(sources)} images. Give one or two images, or a folder.")
    (batch,) = model.batches(sources)
    if batch.errors:
        raise UserError(f"{name} cannot be read: {batch.errors[0]}.")
    return batch.images


def _parse_query(text: str) -> Query:
    if text in ("object", "background"):
        return cast(Query, text)
    if found := re.fullmatch(r"(\d+),(\d+)", text):
        return int(found[1]), int(found[2])
    raise UserError(f"--query {text} is not object, background, or ROW,COLUMN such as 3,5 (counted from 0).")
