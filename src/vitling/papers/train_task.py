"""A run of `vitling train` as part of a study."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitling.papers.study import RunContext
from vitling.settings.config import Config, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.names import leaves, replace_leaf
from vitling.settings.pretraining import resolve_preset
from vitling.settings.views import views_of
from vitling.views.config import Group

POINTS = 10  # of a curve
FOR_WANT = "for want of memory"
PACE = ("seconds", "seconds_compiling", "images_per_second")  # of a result; older ones have less
_NO_TERM = ("kind", "step", "epoch", "lr", "images_per_second", "data_wait", "grad_norm")


@dataclass(frozen=True)
class TrainTask:
    """`watch`: the figure is a curve, so the test images are looked at every so many epochs; it chooses nothing."""

    config: TrainConfig
    watch: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        return changed_settings(self.config) | ({"watch": self.watch} if self.watch else {})

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.runs.train import train

        result = train(self.configured(context))
        self._tidy(context.out)
        split = "val" if self.watch else "test"
        return {
            "value": round(100 * result["last"][split]["top1"], 4),
            "epochs": result["epochs"],
            "images": result["images"],
            **{name: result[name] for name in PACE if name in result},
            **history(context.out / "metrics.jsonl", result["epochs"]),
            **({"caution": words} if (words := describe_passes(self.config, result)) else {}),
        }

    def configured(self, context: RunContext) -> TrainConfig:
        """The config of one start. A watched run is given its test images as val."""
        config = shorten(self.config, context.epochs)
        if self.watch:
            config = replace(config, val=None, eval_every=self.watch)
        source = f"train={context.train},{'val' if self.watch else 'test'}={context.test}"
        return replace(
            config,
            source=source,
            out=str(context.out),
            seed=context.seed,
            from_=context.weights or None,
            resume=True,
            explicit=(*config.explicit, "test_size"),  # a study is judged at the size of its table
        )

    def _tidy(self, out: Path) -> None:
        from vitling.training.rundir import RunDirectory

        drop_checkpoints(out)
        if self.watch and not (out / "test-openings.jsonl").exists():
            RunDirectory(out).log_test_opening(f"a curve of the study, every {self.watch} epochs")


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that are not the verb's defaults, and the side of the decoded images where the crops want another
    than the usual one (of as many images as studies have)."""
    default = dict(leaves(type(config)()))
    if isinstance(config, PretrainConfig):
        config = replace(config, preset=resolve_preset(config))
        default["preset"] = "paper"  # these are as they were when the first rows were trained, whose fingerprints stay
        if config.method == "esvit":
            default["esvit.match"] = "argmax"
    own = {name: value for name, value in leaves(config) if value != default[name] and name != "explicit"}
    if isinstance(config, PretrainConfig) and config.size and config.store_size is None:
        side, usual = views_of(config, config.size).store_side(0), Group(config.size).store_side
        own |= {"store_size": side} if side != usual else {}
    return own


def describe_passes(config: RunConfig, result: dict[str, Any]) -> str:
    """Of a run that found too little memory, shared with others perhaps: batch norm, and losses that compare images,
    saw parts of its batches, and dropout other draws."""
    more = result["accumulate"] > config.optim.accumulate
    return f"each batch in {result['accumulate']} passes, {FOR_WANT}" if more else ""


def drop_checkpoints(out: Path) -> None:
    """Of a finished run they serve nobody, and those of a whole table would fill a disk."""
    for checkpoint in (out / "checkpoints").glob("*"):
        checkpoint.unlink()


def free_memory() -> None:
    """The GPU's, of which the graphs of a finished run hold some. What was compiled stays, for runs with the same
    network."""
    from vitling.training import precision

    gc.collect()
    precision.free_memory()


def shorten(config: Config, epochs: int | None) -> Config:
    """A trial of so many epochs, with the same share of warm-up. A region loss that comes later comes after the same
    share too, and in the last epoch at the latest: a trial is to try it."""
    if epochs is None:
        return config
    share = epochs / config.epochs
    optim = replace(config.optim, warmup_epochs=config.optim.warmup(config.epochs) * min(1.0, share))
    if isinstance(config, PretrainConfig) and config.esvit.region_from:
        later = min(epochs - 1, round(config.esvit.region_from * share))
        config = replace_leaf(config, "esvit.region_from", later)
    return replace(config, epochs=epochs, optim=optim)


def history(metrics: Path, epochs: int) -> dict[str, Any]:
    """The terms of the last epoch, and curves of the auxiliary term and of what was watched: k-NN whole, for its looks
    are few."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    by_epoch = {line["epoch"]: line for line in lines if line["kind"] == "epoch"}
    terms = {name: value for name, value in by_epoch[epochs].items() if name not in _NO_TERM and "/" not in name}
    shown = [line for epoch, line in by_epoch.items() if epoch % max(1, epochs // POINTS) == 0]
    curves = {"drloc": _curve(shown, "drloc"), "top1": _curve(shown, "val/top1", 100)}
    curves["knn"] = _curve(list(by_epoch.values()), "knn/top1", 100)
    return {"terms": terms, "curves": {name: curve for name, curve in curves.items() if curve["epoch"]}}


def _curve(lines: list[dict[str, Any]], key: str, scale: float = 1.0) -> dict[str, list[float]]:
    there = [line for line in lines if key in line]
    return {"epoch": [line["epoch"] for line in there], "value": [round(scale * line[key], 4) for line in there]}
