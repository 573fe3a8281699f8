"""What can be counted without training: images and classes, parameters, epochs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from vitling.papers.study import RunContext


@dataclass(frozen=True)
class CountTask:
    """The images of a split. They are not decoded; their number, and that of the classes, is what a run would get."""

    split: Literal["train", "test"]
    classes: int  # by the paper

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling import data

        found = data.open(f"train={getattr(context, self.split)}", val="none").train
        classes = len(found.class_names)
        other = {} if classes == self.classes else {"caution": f"{classes} classes, not {self.classes}"}
        return {"value": len(found), "classes": classes, **other}


@dataclass(frozen=True)
class ParametersTask:
    """Of a network without its head."""

    backbone: str

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.backbones import create

        return {"value": sum(p.numel() for p in create(self.backbone).parameters())}


@dataclass(frozen=True)
class ViewsBudgetTask:
    """The epochs in which so many images give as many views as EsViT's run on ImageNet-1K has."""

    images: int

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.methods import esvit
        from vitling.methods.dino import dino_plan

        plain = esvit.recipe()
        crops = dino_plan(plain.objective, plain.size).crops
        return {"value": esvit.epochs_for_views(plain.epochs * esvit.IMAGENET * crops, self.images, crops)}
