"""The beginning of a training stage and the figures of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vitling.backbones.backbone import Backbone
from vitling.data.dataset import Splits
from vitling.data.store import Store
from vitling.evaluation.meta import BundleMeta
from vitling.objectives.objective import Objective
from vitling.runs.images import Stores
from vitling.runs.network import start_from
from vitling.runs.opening import OpenRun
from vitling.settings.config import RunConfig
from vitling.settings.resolve import Resolved
from vitling.training.compiler_start import start_compiler
from vitling.training.result import FitResult

Evaluated = TypeVar("Evaluated")


def begin_run(
    resolved: Resolved,
    splits: Splits,
    backbone: Backbone,
    run: OpenRun,
    start: str | None = None,
    keep_head: bool = False,
) -> Stores:
    """Load the weights to start from, open the run directory, write config.json and decode the images, while the
    compiler is loaded.

    Call it after all checks: --overwrite deletes an earlier run here. `start` replaces --from after a first stage.
    """
    source = None if run.saved is not None and run.has_checkpoint else start or resolved.config.from_
    notes = [*splits.notes, *resolved.notes, *start_from(backbone, source, keep_head)]
    run.prepare()
    splits.on_test_opened = run.directory.log_test_opening
    for note in notes:
        run.directory.log.info(note)
    for warning in splits.warnings:
        run.directory.log.warning(warning)
    run.write_settings(resolved, resolved.config.loop.trackers)
    start_compiler(resolved.config.loop, run.processes.device, backbone)
    return Stores(resolved.config, splits, run)


def evaluate_weights(
    objective: Objective,
    fitted: FitResult,
    evaluate: Callable[[str, int], Evaluated],
    save: Callable[[str, Evaluated], None],
) -> dict[str, Evaluated]:
    """Evaluate the weights of the last epoch and the best ones, by name and epoch, and save each in its folder.

    If the last epoch is the best, it is evaluated once.
    """
    objective.eval()
    found = {"last": evaluate("last", fitted.epochs)}
    save("model", found["last"])
    if fitted.best:
        found["best"] = found["last"]
        if fitted.best.epoch != fitted.epochs:
            objective.load_state_dict(fitted.best.weights)
            found["best"] = evaluate("best", fitted.best.epoch)
        save("best", found["best"])
    return found


def open_test_split(stores: Stores, fitted: FitResult) -> Store | None:
    """Open the test split, if there is one, for the weights that `evaluate_weights` evaluates."""
    reason = f"final evaluation of last{' and best' if fitted.best else ''}"
    return stores.open_test(reason) if stores.splits.has_test else None


def make_meta(config: RunConfig, store: Store, **head: Any) -> BundleMeta:
    """Describe a saved model: its input, and its head if it has one."""
    about: dict[str, Any] = {"task": "none", "class_names": (), "size": config.size or 0} | head
    return BundleMeta(
        store_size=store.size,
        mean=store.mean,
        std=store.std,
        channels=config.data.channels,
        bits=config.data.bits,
        max_pixels=config.data.max_pixels,
        **about,
    )


def summarise_fit(config: RunConfig, stores: Stores, fitted: FitResult) -> dict[str, Any]:
    """Return the entries that every result.json has."""
    return {
        "finished": True,
        "aux": config.aux,
        "backbone": config.backbone,
        "size": config.size,
        "store_size": stores.train.size,
        "images": len(stores.train),
        "epochs": fitted.epochs,
        "steps": fitted.steps,
        "seed": config.seed,
        "seconds": round(fitted.seconds, 2),
        "seconds_compiling": round(fitted.seconds_compiling, 2),
        "images_per_second": round(fitted.images_per_second, 1),
        "accumulate": fitted.accumulate,
        "bad_files": len(stores.bad),
        "data_hashes": stores.hashes,
    }
