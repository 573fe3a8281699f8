"""Method: the parts of a pre-training method. Plain data, no torch: a loss is imported when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from vitling.backbones.names import find_entry
from vitling.errors import UserError
from vitling.training.config import OptimConfig
from vitling.views.plan import Plan

if TYPE_CHECKING:
    import numpy as np

    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective

MethodPreset = Literal["paper", "released", "adamw"]  # every method has the first
Projection = Literal["none", "mlp"]
Config = TypeVar("Config")  # a method's settings

SIZE = 112  # pixels of a view, IDMM Sec. 4.2
NARROWEST = 192  # width of DeiT-Tiny's tokens: the narrowest ViT that the presets' learning rates were published for


@dataclass(frozen=True)
class Recipe(Generic[Config]):
    """A preset of a method: everything a run needs but the images."""

    backbone: str
    epochs: int
    batch: int
    size: int
    optim: OptimConfig
    objective: Config
    drop_path: float = 0.1

    def lr_for(self, batch: int, optimiser: str | None = None) -> float:
        """Scale the recipe's learning rate to another batch size.

        SGD's scales linearly. Those of AdamW and Muon scale with the square root, because their steps hardly depend on
        the size of the gradient (for AdamW: Malladi et al., NeurIPS 2022); for a ViT narrower than DeiT-Tiny they grow
        by the ratio of the widths (results/rates-digits.json, with AdamW).
        """
        own, ratio = self.optim.peak_lr(self.batch), batch / self.batch
        if (optimiser or self.optim.name) == "sgd":
            return own * ratio
        known = find_entry(self.backbone)
        narrower = max(1.0, NARROWEST / known.dim) if known and is_plain_vit(self.backbone) else 1.0
        return own * math.sqrt(ratio) * narrower


@dataclass(frozen=True)
class TrainingData:
    """Facts about the training images that a method may need to build its loss."""

    images: int
    classes: int
    labels: np.ndarray | None  # one class per image, below 0 for an unlabelled one
    multi_label: bool
    seed: int
    batch_sizes: Sequence[int]  # of one epoch; empty if a batch is split into several passes


class Remark(NamedTuple):
    """A line for the log."""

    text: str
    is_warning: bool = True


@dataclass(frozen=True)
class Method:
    """A method of pre-training. Its settings, recipes, hooks and loss live in one folder of this package.

    `config` in the signatures below is an instance of the method's own settings class. Hooks are None where a method
    has no use for them; they are called in this order:

    1. `adapt(recipe, images, batch)` fits the recipe to the number of images.
    2. `complete(config, explicit)` fills in settings that follow from others. `explicit` holds the names that the user
       passed; those never change.
    3. `fit_views(config, plan, explicit)` adapts the settings to the final views and explains it in a list of notes. It
       raises a UserError if an explicit setting contradicts the views.
    4. `check_run(config, backbone, epochs)` raises a UserError for a run that cannot work. Call it again when the
       number of epochs changes.
    5. `remarks(config, backbone, device)` gives lines for the log. `device` is "cpu" or "cuda".
    """

    name: str
    summary: str
    """One line for `vitling list methods`."""
    recipe: Callable[..., Recipe]
    """Takes (backbone, preset, epochs, size)."""
    views: Callable[[Any, int], Plan]
    """Takes (config, size)."""
    config: type | None = None
    """Its settings, a dataclass with ranges on its fields and a method `check` if fields depend on each other; None
    if it has none."""
    labels: Literal["ignored", "some", "every"] = "ignored"
    """some: trains on labels where there are any; every: needs a label for each image."""
    compares_images: bool = False
    """Compares the images of a pass with each other, so it needs at least two."""
    default_epochs: Callable[[int], int] | None = None
    """Takes the number of images; None: the same number as other methods."""
    default_preset: MethodPreset = "paper"
    adapt: Callable[[Recipe, int, int | None], Recipe] | None = None
    adapted: tuple[str, ...] = ()
    """Names of the settings that `adapt` changes, besides the batch."""
    adapted_to_epochs: tuple[str, ...] = ()
    """Those of `adapted` that depend on the number of epochs."""
    shapes: tuple[str, ...] = ()
    """Settings that fix the shapes of its heads: a run that continues another one (--continue-from) inherits them."""
    continued: tuple[str, ...] = ()
    """Further settings that a run inherits from one of the same method."""
    complete: Callable[[Any, Collection[str]], Any] | None = None
    fit_views: Callable[[Any, Plan, Collection[str]], tuple[Any, list[str]]] | None = None
    check_run: Callable[[Any, Backbone, int], None] | None = None
    remarks: Callable[[Any, Backbone, str], list[Remark]] | None = None

    @property
    def field(self) -> str | None:
        """The name of its settings in a run's config."""
        return self.name.replace("-", "_") if self.config else None

    def config_of(self, run_config: Any) -> Any:
        return getattr(run_config, self.field) if self.field else None

    def build(self, backbone: Backbone, plan: Plan, config: Any, data: TrainingData) -> Objective:
        """Build its loss with `build` in loss.py of its folder."""
        loss = import_module(f"vitling.methods.{self.name.replace('-', '_')}.loss")
        return loss.build(backbone, plan, config, data)


def epochs_for_views(views: float, images: int, crops: int) -> int:
    """Return the epochs after which a run with these images and crops has seen about `views` views (EsViT, C.6)."""
    return max(1, round(views / (images * crops)))


def is_plain_vit(backbone: str) -> bool:
    return backbone.startswith(("deit", "vit"))


def check_preset(method: str, preset: str, allowed: Sequence[str] = ("paper",)) -> None:
    if preset not in allowed:
        raise UserError(f"{method} has no preset {preset!r}; use {' or '.join(allowed)}.")
