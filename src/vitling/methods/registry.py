"""The methods of pre-training by name. Plain data, no torch: an objective is imported when it is made.

A new method is a file in objectives/, settings in objectives/config.py and `MethodsConfig`, a stage in recipes/, and an
entry here with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitling.errors import UserError
from vitling.methods import baselines, esvit, idmm
from vitling.methods.idmm import Stage
from vitling.objectives.config import dino_plan, idmm_plan
from vitling.training.config import OptimConfig
from vitling.views import policies
from vitling.views.config import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.data.store import Store
    from vitling.objectives.objective import Objective
    from vitling.settings.config import PretrainConfig

Name = Literal["idmm", "supervised", "simclr", "supcon", "moco-v2", "moco-v3", "byol", "dino", "esvit", "densecl"]
Preset = Literal["paper", "released", "adamw"]  # every method has the first
SIZE = 112  # pixels of a view


@dataclass(frozen=True)
class Method:
    """What sets a method apart from the others."""

    what: str
    stage: Callable[..., Stage]
    """Its settings, for (backbone, preset, epochs, size)."""
    plan: Callable[[Any, int], Plan]
    """The views, for (its settings, size)."""
    objective: Callable[[PretrainConfig, Backbone, Plan, Store], Objective]
    settings: str | None = None
    """The field of `PretrainConfig` and `TrainConfig` that has its settings."""
    labels: Literal["ignored", "some", "every"] = "ignored"
    """Whether it trains on labels: an unlabelled pool beside them serves too (some), or does not (every)."""
    compares: bool = False
    """The images of a pass with each other: it needs two."""
    epochs_for: Callable[[int], int] | None = None
    """Its epochs for a number of images, where they are not those of all methods."""
    fitted_to: Callable[[Stage, int, int | None], Stage] | None = None
    """Its settings for (stage, images, batch or None), where its paper's are for a million images."""
    usual_preset: Preset = "paper"

    def settings_of(self, config: Any) -> Any:
        return getattr(config, self.settings) if self.settings else None


def _make_idmm(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.idmm import IDMM

    return IDMM(backbone, plan, len(store), config.idmm, config.seed)


def _make_supervised(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.supervised import Supervised

    classes, several = len(store.dataset.class_names), store.dataset.task == "multi"
    return Supervised(backbone, plan, classes, several, stage_of(config).objective.smoothing)


def _make_simclr(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.simclr import SimCLR

    return SimCLR(backbone, plan, config.simclr, _batches(config, store))


def _make_supcon(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from torch import from_numpy

    from vitling.objectives.supcon import SupCon

    labels = store.dataset.labels if store.dataset.labels is not None else store.dataset.partial_labels
    if labels is None:
        raise ValueError(f"{store.dataset.name} has no labels")
    return SupCon(backbone, plan, from_numpy(labels), config.supcon, _batches(config, store))


def _make_moco_v2(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.moco_v2 import MoCoV2

    return MoCoV2(backbone, plan, config.moco_v2)


def _make_moco_v3(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.moco_v3 import MoCoV3

    return MoCoV3(backbone, plan, config.moco_v3, _batches(config, store))


def _make_byol(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.byol import BYOL

    return BYOL(backbone, plan, config.byol)


def _make_dino(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.dino import DINO

    return DINO(backbone, plan, config.dino)


def _make_esvit(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.esvit import EsViT

    return EsViT(backbone, plan, config.esvit)


def _make_densecl(config: PretrainConfig, backbone: Backbone, plan: Plan, store: Store) -> Objective:
    from vitling.objectives.densecl import DenseCL

    return DenseCL(backbone, plan, config.densecl)


def _batches(config: PretrainConfig, store: Store) -> list[int]:
    """For losses that compare the images of a pass; unknown where a batch has several."""
    if config.optim.accumulate > 1:
        return []
    from vitling.training.feed import choose_batch_sizes

    return choose_batch_sizes(config.for_the_loop(), len(store), store.device)


METHODS: dict[str, Method] = {
    "idmm": Method("tells every image from every other", idmm.pretrain, idmm_plan, _make_idmm, "idmm"),
    "supervised": Method(
        "learns the classes",
        idmm.supervised,
        lambda settings, size: policies.idmm_finetune(size),
        _make_supervised,
        labels="every",
    ),
    "simclr": Method(
        "finds an image's other view among those of a batch",
        baselines.simclr,
        lambda settings, size: policies.simclr(size),
        _make_simclr,
        "simclr",
        compares=True,
        usual_preset="adamw",
    ),
    "supcon": Method(
        "finds the views of the same class among those of a batch",
        baselines.supcon,
        lambda settings, size: policies.simclr(size),
        _make_supcon,
        "supcon",
        labels="some",
        compares=True,
        usual_preset="adamw",
    ),
    "moco-v2": Method(
        "finds an image's other view among the keys of a queue",
        baselines.moco_v2,
        lambda settings, size: policies.moco_v2(size),
        _make_moco_v2,
        "moco_v2",
        usual_preset="adamw",
    ),
    "moco-v3": Method(
        "finds what a slower copy says of the other view among those of a batch",
        baselines.moco_v3,
        lambda settings, size: policies.moco_v3(size),
        _make_moco_v3,
        "moco_v3",
        compares=True,
    ),
    "byol": Method(
        "predicts what a slower copy says of the other view",
        baselines.byol,
        lambda settings, size: policies.byol(size),
        _make_byol,
        "byol",
    ),
    "dino": Method(
        "says of every view what a slower teacher says of a global one",
        baselines.dino,
        dino_plan,
        _make_dino,
        "dino",
    ),
    "esvit": Method(
        "says of every view and of its regions what a slower teacher says",
        esvit.pretrain,
        dino_plan,
        _make_esvit,
        "esvit",
        epochs_for=esvit.epochs_for,
        fitted_to=esvit.for_images,
    ),
    "densecl": Method(
        "finds an image's other view, and its regions, among the keys of queues",
        baselines.densecl,
        lambda settings, size: policies.moco_v2(size),
        _make_densecl,
        "densecl",
        usual_preset="adamw",
    ),
}


def stage_of(config: PretrainConfig) -> Stage:
    """What the preset of the method says."""
    return METHODS[config.method].stage(config.backbone or "", preset_of(config), config.epochs, config.size or SIZE)


def preset_of(config: PretrainConfig) -> Preset:
    if config.preset == "adamw" and config.optim.name == "sgd":
        raise UserError("The preset adamw has AdamW, and SGD is asked for. Leave out one of the two.")
    return usual_preset(config.method, config.optim) if config.preset == "auto" else config.preset


def usual_preset(method: str, optim: OptimConfig) -> Preset:
    """Whoever asks for SGD has that of the paper, with its rate and warm-up, if there is one."""
    usual = METHODS[method].usual_preset
    return "paper" if usual == "adamw" and optim.name == "sgd" else usual


def plan_of(config: PretrainConfig, size: int) -> Plan:
    """The views of the method, with the changes that were asked for."""
    return config.views.apply(_own_plan(config, size))


def _own_plan(config: PretrainConfig, size: int) -> Plan:
    method = METHODS[config.method]
    return method.plan(method.settings_of(config), size)


def views_in_vain(config: PretrainConfig) -> list[str]:
    """Changes that were asked for and that the method's views have no place for, in words."""
    return config.views.list_unused(_own_plan(config, config.size or SIZE))


def check_views(config: PretrainConfig, backbone: Backbone) -> None:
    """A UserError for views that the network cannot take."""
    for group in plan_of(config, backbone.size).groups:
        if group.size > backbone.size:
            raise UserError(f"Local crops of {group.size} px are larger than the global ones of {backbone.size} px.")
        backbone.grid_size(group.size)
    side, stride = min(backbone.grid_size()), config.esvit.region_stride
    if config.method == "esvit" and config.esvit.region_weight and stride > side:
        raise UserError(
            f"--esvit.region-stride {stride}: a view has {side} regions down or across, so one would be left."
        )


def make_objective(config: PretrainConfig, backbone: Backbone, store: Store) -> Objective:
    return METHODS[config.method].objective(config, backbone, plan_of(config, backbone.size), store)


def check_settings(config: Any) -> None:
    """A UserError for settings that cannot be meant, or are those of another method."""
    for name, method in METHODS.items():
        settings = method.settings_of(config)
        if settings is None:
            continue
        settings.check()
        if config.method not in ("auto", name) and settings != type(settings)():
            raise UserError(f"--{name} is for --method {name}, and --method {config.method} does not use it.")


def check_batch(config: PretrainConfig, images: int) -> None:
    """A UserError where a method that compares images with each other would see one at a time."""
    if METHODS[config.method].compares and min(config.batch // config.optim.accumulate, images) < 2:
        raise UserError(
            f"--method {config.method} compares images with each other, and here each pass has one: it takes a --batch "
            "of at least 2 for each of --optim.accumulate, and 2 images."
        )


def check_task(name: str, task: str) -> None:
    """A UserError for labels of which the method can make nothing."""
    if METHODS[name].labels == "some" and task == "multi":
        raise UserError(
            f"--method {name} needs one class an image: it asks whether two images are of the same, and these have "
            "several labels. --method idmm needs none."
        )
