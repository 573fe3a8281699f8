"""Recipes of the IDMM paper's runs: a first stage of any method, then fine-tuning. No torch here."""

from __future__ import annotations

from dataclasses import replace

from vitling.methods import METHODS, MethodName
from vitling.methods.idmm import settings as idmm
from vitling.methods.idmm.settings import IDMMConfig
from vitling.methods.idmm_optim import IDMMPreset
from vitling.methods.method import SIZE, Recipe
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.papers.stages import FinetuneTask, pretrain_config
from vitling.settings.config import FinetuneConfig
from vitling.settings.names import mark_all_explicit

NETWORKS = {
    "deit-tiny": "deit_tiny_patch16_224",
    "deit-base": "deit_base_patch16_224",
    "pvtv2-b0-small": "pvt_v2_b0_small",
    "pvtv2-b0": "pvt_v2_b0",
    "pvtv2-b3": "pvt_v2_b3",
    "t2t-vit-7": "t2t_vit_7",
}
CLASSES = {"flowers102": 102, "pets": 37, "dtd": 47, "indoor67": 67, "cub": 200, "aircraft": 100, "cars": 196}
COLUMNS = tuple(CLASSES)


def finetune_config(
    recipe: Recipe[SupervisedConfig], preset: IDMMPreset = "paper", keep_head: bool = False
) -> FinetuneConfig:
    """Write out a recipe for fine-tuning, with every value explicit."""
    config = FinetuneConfig(
        backbone=recipe.backbone,
        preset=preset,
        epochs=recipe.epochs,
        batch=recipe.batch,
        size=recipe.size,
        val="none",
        keep_head=keep_head,
        optim=recipe.optim,
        objective=recipe.objective,
    )
    return mark_all_explicit(config)


def finetune_only(net: str, epochs: int, preset: IDMMPreset = "paper", size: int = 224) -> FinetuneTask:
    """Fine-tune from random weights, or from the run's ImageNet weights if it has them."""
    return FinetuneTask(finetune_config(idmm.finetune_recipe(NETWORKS[net], preset, epochs, size), preset))


def pretrain_and_finetune(
    recipe: Recipe, epochs: int, preset: IDMMPreset = "paper", method: MethodName = "idmm", size: int = 224
) -> FinetuneTask:
    """Pre-train by a recipe, then fine-tune for `epochs` at `size`."""
    second = idmm.finetune_recipe(recipe.backbone, preset, epochs, size)
    return FinetuneTask(finetune_config(second, preset), pretrain_config(recipe, preset, method))


def pretrain_by_method(net: str, method: MethodName, epochs: int = 200, pretrain_epochs: int = 800) -> FinetuneTask:
    """Pre-train by the paper's recipe for a method, then fine-tune."""
    recipe = METHODS[method].recipe(NETWORKS[net], "paper", pretrain_epochs, SIZE)
    return pretrain_and_finetune(recipe, epochs, method=method)


def enlarge_to_448(task: FinetuneTask) -> FinetuneTask:
    """Add a third stage at 448 px."""
    recipe = idmm.finetune_recipe(task.finetune.backbone or "", size=448)
    return replace(task, enlarge=finetune_config(recipe, keep_head=True))


def make_ablation(
    backbone: str = "deit_tiny_patch16_224", preset: IDMMPreset = "paper", crops: int | None = None
) -> dict[str, Recipe[IDMMConfig]]:
    """Build the rows of Table 8, each of which adds one part.

    The paper does not give the number of crops without multi-crop: by default one (see `idmm_plan`), and two in
    "released", whose scripts always train on two. DeiT's released code does not smooth, so "released" has no such row.
    Table 9 is another setting: IDMMConfig(projection="mlp").
    """
    full = idmm.recipe(backbone, preset).objective
    crops = crops or (2 if preset == "released" else 1)
    bare = replace(full, smoothing=0.0, multi_crop=False, crops=crops, cutmix=False)
    smooth = replace(bare, smoothing=full.smoothing)
    several = replace(full, cutmix=False)
    rows = {
        "plain": (bare, 224),
        "smoothing": (smooth, 224),
        "112 px": (smooth, 112),
        "multi-crop": (several, 112),
        "CutMix": (full, 112),
    }
    return {
        name: replace(idmm.recipe(backbone, preset, size=size), objective=objective)
        for name, (objective, size) in rows.items()
        if name != "smoothing" or full.smoothing
    }
