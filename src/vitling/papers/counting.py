"""Tasks that count without training: images and classes, parameters, epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vitling.papers.study import FieldsTask, RunContext


@dataclass(frozen=True)
class CountTask(FieldsTask):
    """Count the images and classes of a split that a run would get, without decoding."""

    split: Literal["train", "test"]
    classes: int  # according to the paper

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling import data
        from vitling.data.content import hash_content

        found = data.open(f"train={getattr(context, self.split)}", val="none").train
        classes = len(found.class_names)
        other = {} if classes == self.classes else {"caution": f"{classes} classes, not {self.classes}"}
        return {"value": len(found), "classes": classes, "data_hashes": {self.split: hash_content(found)}, **other}


@dataclass(frozen=True)
class ParametersTask(FieldsTask):
    """Count the parameters of a network without its head."""

    backbone: str

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.backbones import create

        return {"value": sum(p.numel() for p in create(self.backbone).parameters())}


@dataclass(frozen=True)
class ViewsBudgetTask(FieldsTask):
    """Compute the epochs in which `images` give as many views as EsViT's run on ImageNet-1K."""

    images: int

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.methods.dino.settings import dino_plan
        from vitling.methods.esvit import settings as esvit
        from vitling.methods.method import epochs_for_views

        plain = esvit.recipe()
        crops = dino_plan(plain.objective, plain.size).crops
        return {"value": epochs_for_views(plain.epochs * esvit.IMAGENET * crops, self.images, crops)}
