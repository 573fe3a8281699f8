"""The rows of the IDMM paper's ablation, as recipes."""

from __future__ import annotations

from dataclasses import replace

from vitling.methods.idmm import IDMMConfig, recipe
from vitling.methods.method import Recipe
from vitling.methods.optim import IDMMPreset


def ablation(backbone: str = "deit_tiny_patch16_224", preset: IDMMPreset = "paper") -> dict[str, Recipe[IDMMConfig]]:
    """Table 8: what is added from row to row. Top-1 on Flowers-102 after fine-tuning: 69.6, 70.4, 73.1, 76.9, 79.9.

    The paper does not say how many views the rows without multi-crop have: here one (see `idmm_plan`). DeiT's released
    code does not smooth, and has no such row. Table 9 is another flag: IDMMConfig(projection="mlp").
    """
    full = recipe(backbone, preset).objective
    bare = replace(full, smoothing=0.0, multi_crop=False, cutmix=False)
    smooth = replace(bare, smoothing=full.smoothing)
    crops = replace(smooth, multi_crop=True)
    rows = {
        "plain": (bare, 224),
        "smoothing": (smooth, 224),
        "112 px": (smooth, 112),
        "multi-crop": (crops, 112),
        "CutMix": (replace(crops, cutmix=True), 112),
    }
    return {
        name: replace(recipe(backbone, preset, size=size), objective=objective)
        for name, (objective, size) in rows.items()
        if name != "smoothing" or full.smoothing
    }
