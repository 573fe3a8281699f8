"""Functions of a `PretrainConfig` over METHODS, until they move to the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitling.errors import UserError
from vitling.methods import METHODS, MethodName, default_preset
from vitling.methods.method import SIZE, MethodPreset, Recipe, TrainingData
from vitling.training.config import OptimConfig
from vitling.views.config import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.data.store import Store
    from vitling.objectives.objective import Objective
    from vitling.settings.config import PretrainConfig

Name = MethodName
Preset = MethodPreset


def stage_of(config: PretrainConfig) -> Recipe:
    return METHODS[config.method].recipe(config.backbone or "", preset_of(config), config.epochs, config.size or SIZE)


def preset_of(config: PretrainConfig) -> MethodPreset:
    if config.preset == "adamw" and config.optim.name == "sgd":
        raise UserError("The preset adamw has AdamW, and SGD is asked for. Leave out one of the two.")
    return usual_preset(config.method, config.optim) if config.preset == "auto" else config.preset


def usual_preset(method: str, optim: OptimConfig) -> MethodPreset:
    return default_preset(method, optim.name)


def plan_of(config: PretrainConfig, size: int) -> Plan:
    """The views of the method, with the changes that were asked for."""
    return config.views.apply(_own_plan(config, size))


def _own_plan(config: PretrainConfig, size: int) -> Plan:
    method = METHODS[config.method]
    return method.views(method.config_of(config), size)


def views_in_vain(config: PretrainConfig) -> list[str]:
    """Changes that were asked for and that the method's views have no place for, in words."""
    return config.views.list_unused(_own_plan(config, config.size or SIZE))


def check_views(config: PretrainConfig, backbone: Backbone) -> None:
    """Raise UserError for views that the network cannot take."""
    for group in plan_of(config, backbone.size).groups:
        if group.size > backbone.size:
            raise UserError(f"Local crops of {group.size} px are larger than the global ones of {backbone.size} px.")
        backbone.grid_size(group.size)
    method = METHODS[config.method]
    if method.check_run:
        method.check_run(method.config_of(config), backbone, config.epochs)


def make_objective(config: PretrainConfig, backbone: Backbone, store: Store) -> Objective:
    method, dataset = METHODS[config.method], store.dataset
    data = TrainingData(
        images=len(store),
        classes=len(dataset.class_names),
        labels=dataset.labels if dataset.labels is not None else dataset.partial_labels,
        multi_label=dataset.task == "multi",
        seed=config.seed,
        batch_sizes=_batches(config, store) if method.compares_images else (),
    )
    return method.build(backbone, plan_of(config, backbone.size), method.config_of(config), data)


def _batches(config: PretrainConfig, store: Store) -> list[int]:
    """For losses that compare the images of a pass; unknown where a batch has several."""
    if config.optim.accumulate > 1:
        return []
    from vitling.training.feed import choose_batch_sizes

    return choose_batch_sizes(config.for_the_loop(), len(store), store.device)


def check_settings(config: Any) -> None:
    """Raise UserError for settings that are out of range, or belong to another method."""
    for name, method in METHODS.items():
        settings = method.config_of(config)
        if settings is None:
            continue
        settings.check()
        if config.method not in ("auto", name) and settings != type(settings)():
            raise UserError(f"--{name} is for --method {name}, and --method {config.method} does not use it.")


def check_batch(config: PretrainConfig, images: int) -> None:
    """Raise UserError where a method that compares images with each other would see one at a time."""
    if METHODS[config.method].compares_images and min(config.batch // config.optim.accumulate, images) < 2:
        raise UserError(
            f"--method {config.method} compares images with each other, and here each pass has one: it takes a --batch "
            "of at least 2 for each of --optim.accumulate, and 2 images."
        )


def check_task(name: str, task: str) -> None:
    """Raise UserError for labels of which the method can make nothing."""
    if METHODS[name].labels == "some" and task == "multi":
        raise UserError(
            f"--method {name} needs one class an image: it asks whether two images are of the same, and these have "
            "several labels. --method idmm needs none."
        )
