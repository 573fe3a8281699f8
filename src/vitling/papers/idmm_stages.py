"""How the IDMM paper's runs are put together: a first stage of any method, then its fine-tuning. No torch here."""

from __future__ import annotations

from dataclasses import replace

from vitling.methods import METHODS, MethodName
from vitling.methods import idmm as recipe
from vitling.methods.method import SIZE, Recipe
from vitling.methods.optim import IDMMPreset
from vitling.methods.supervised import SupervisedConfig
from vitling.papers.stages import StagedTask, pretrain_config
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
COLUMNS = tuple(CLASSES)  # Flowers-102 first: what is at hand


def finetune_config(
    stage: Recipe[SupervisedConfig], preset: IDMMPreset = "paper", keep_head: bool = False
) -> FinetuneConfig:
    config = FinetuneConfig(
        backbone=stage.backbone,
        preset=preset,
        epochs=stage.epochs,
        batch=stage.batch,
        size=stage.size,
        val="none",
        keep_head=keep_head,
        optim=stage.optim,
        objective=stage.objective,
    )
    return mark_all_explicit(config)


def finetune_only(net: str, epochs: int, preset: IDMMPreset = "paper", size: int = 224) -> StagedTask:
    """Also from ImageNet weights, for a run that has them."""
    return StagedTask(finetune_config(recipe.finetune_recipe(NETWORKS[net], preset, epochs, size), preset))


def after(
    stage: Recipe, epochs: int, preset: IDMMPreset = "paper", method: MethodName = "idmm", size: int = 224
) -> StagedTask:
    """`epochs` and `size` are those of fine-tuning."""
    second = recipe.finetune_recipe(stage.backbone, preset, epochs, size)
    return StagedTask(finetune_config(second, preset), pretrain_config(stage, preset, method))


def pretrain_by_method(net: str, method: MethodName, epochs: int = 200, pretrain_epochs: int = 800) -> StagedTask:
    """`before` is the epochs of pre-training."""
    return after(METHODS[method].recipe(NETWORKS[net], "paper", pretrain_epochs, SIZE), epochs, method=method)


def enlarge_to_448(task: StagedTask) -> StagedTask:
    stage = recipe.finetune_recipe(task.finetune.backbone or "", size=448)
    return replace(task, enlarge=finetune_config(stage, keep_head=True))
