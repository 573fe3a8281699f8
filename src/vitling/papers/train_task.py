"""A run of `vitling train` as the task of a study, and what all training tasks share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitling.backbones.names import find_entry
from vitling.loading import read_json_lines
from vitling.methods.drloc.settings import constant_loss
from vitling.papers.study import RunContext
from vitling.records import MetricsLine
from vitling.settings.config import Config, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.names import leaves, replace_leaf
from vitling.settings.pretraining import resolve_preset
from vitling.views.plan import Group

POINTS = 100  # of a stored curve at most; up to as many epochs, it has every epoch
OUT_OF_MEMORY = "for want of memory"  # in rows of results/, so it stays as it is
SPEED = ("seconds", "seconds_compiling", "images_per_second")  # keys of a result; older ones lack some
_NOT_TERMS = ("kind", "step", "epoch", "lr", "images_per_second", "data_wait", "grad_norm")


@dataclass(frozen=True)
class TrainTask:
    """Train and evaluate. `watch`: epochs between evaluations on test, for figures that are curves; chooses nothing."""

    config: TrainConfig
    watch: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        return changed_settings(self.config) | ({"watch": self.watch} if self.watch else {})

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.runs.train import train

        result = train(self.make_config(context))
        self._clean_up(context.out)
        split = "val" if self.watch else "test"
        return {
            "value": round(100 * result["last"][split]["top1"], 4),
            "epochs": result["epochs"],
            "images": result["images"],
            **{name: result[name] for name in SPEED if name in result},
            "data_hashes": self._name_hashes(result),
            **read_history(context.out / "metrics.jsonl", result["epochs"]),
            **_describe_guess(self.config),
            **({"caution": words} if (words := describe_passes(self.config, result)) else {}),
        }

    def make_config(self, context: RunContext) -> TrainConfig:
        """Complete the config for one start. A watched run gets its test images as val."""
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
            report=False,
            explicit=(*config.explicit, "test_size"),  # evaluate at the size of the table
        )

    def _name_hashes(self, result: dict[str, Any]) -> dict[str, str]:
        """Return the hashes of the data's splits; the val split of a watched run is its test split."""
        hashes = dict(result.get("data_hashes", {}))
        if self.watch and "val" in hashes:
            hashes["test"] = hashes.pop("val")
        return hashes

    def _clean_up(self, out: Path) -> None:
        from vitling.training.rundir import RunDirectory

        drop_checkpoints(out)
        if self.watch and not (out / "test-openings.jsonl").exists():
            RunDirectory(out).log_test_opening(f"a curve of the study, every {self.watch} epochs")


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Collect the settings that differ from the command's defaults; fingerprints are made of them.

    The side of the decoded images is included if the crops need another than the usual one.
    """
    default = dict(leaves(type(config)()))
    if isinstance(config, PretrainConfig):
        config = replace(config, preset=resolve_preset(config))
        default["preset"] = "paper"  # as when the first rows were trained, whose fingerprints stay
        if config.method == "esvit":
            default["esvit.match"] = None  # always named, because its default has changed; see `ledger.fingerprint`
    own = {name: value for name, value in leaves(config) if value != default[name] and name != "explicit"}
    if isinstance(config, PretrainConfig) and config.size and config.store_size is None:
        side, usual = config.make_views(config.size).store_side(0), Group(config.size).store_side
        own |= {"store_size": side} if side != usual else {}
    return own


def _describe_guess(config: TrainConfig) -> dict[str, float]:
    """Return DRLoc's loss of the best constant prediction, to set beside its term."""
    entry = find_entry(config.backbone or "")
    if config.aux != "drloc" or entry is None or config.size != entry.size:
        return {}
    loss = constant_loss(config.drloc, min(entry.grid, config.drloc.grid))
    return {} if loss is None else {"drloc_constant": round(loss, 4)}


def describe_passes(config: RunConfig, result: dict[str, Any]) -> str:
    """Describe the passes of a run that ran out of memory; "" if it did not.

    Batch norm and losses that compare images saw parts of its batches, and dropout drew otherwise.
    """
    more = result["accumulate"] > config.optim.accumulate
    return f"each batch in {result['accumulate']} passes, {OUT_OF_MEMORY}" if more else ""


def drop_checkpoints(out: Path) -> None:
    """Delete the checkpoints of a finished run: those of a whole table would fill a disk."""
    for checkpoint in (out / "checkpoints").glob("*"):
        checkpoint.unlink()


def free_graphs() -> None:
    """Free the GPU memory and the graphs of a finished run."""
    from vitling.training.compilation import free_graphs

    free_graphs()


def shorten(config: Config, epochs: int | None) -> Config:
    """Shorten a run to a trial of `epochs`, with the same share of warm-up.

    A region loss that starts later starts after the same share too, in the last epoch at the latest.
    """
    if epochs is None:
        return config
    share = epochs / config.epochs
    optim = replace(config.optim, warmup_epochs=config.optim.warmup(config.epochs) * min(1.0, share))
    if isinstance(config, PretrainConfig) and config.esvit.region_from:
        later = min(epochs - 1, round(config.esvit.region_from * share))
        config = replace_leaf(config, "esvit.region_from", later)
    return replace(config, epochs=epochs, optim=optim)


def read_history(metrics: Path, epochs: int) -> dict[str, Any]:
    """Read the terms of the last epoch, and curves of all terms, of the watched accuracy (top1) and of k-NN."""
    lines = read_json_lines(metrics, MetricsLine)
    by_epoch = {line["epoch"]: line for line in lines if line["kind"] == "epoch"}
    terms = {name: value for name, value in by_epoch[epochs].items() if name not in _NOT_TERMS and "/" not in name}
    every = math.ceil(epochs / POINTS)
    shown = [line for epoch, line in by_epoch.items() if epoch % every == 0 or epoch == epochs]
    curves = {name: _make_curve(shown, name) for name in terms} | {"top1": _make_curve(shown, "val/top1", 100)}
    curves["knn"] = _make_curve(list(by_epoch.values()), "knn/top1", 100)
    return {"terms": terms, "curves": {name: curve for name, curve in curves.items() if curve["epoch"]}}


def _make_curve(lines: list[dict[str, Any]], key: str, scale: float = 1.0) -> dict[str, list[float]]:
    points = [line for line in lines if key in line]
    return {"epoch": [line["epoch"] for line in points], "value": [round(scale * line[key], 4) for line in points]}
