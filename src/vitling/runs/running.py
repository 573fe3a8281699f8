"""What every training verb does round its work: processes, the run directory, resuming, decoded splits."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitling import data
from vitling.backbones.backbone import Backbone, create
from vitling.backbones.names import get_native_size
from vitling.backbones.transfer import load_weights
from vitling.console import Log
from vitling.data.cache import decode_all
from vitling.data.dataset import Dataset, Splits
from vitling.data.inspection import describe_leakage
from vitling.data.splits import require_labels
from vitling.data.store import Store, build_store, choose_normalisation, measure_median_side
from vitling.errors import UserError
from vitling.evaluation.bundle import WEIGHTS, find_bundle
from vitling.evaluation.meta import BundleMeta
from vitling.methods.registry import plan_of
from vitling.runs.auxiliary import settle_auxiliary
from vitling.settings.checks import check
from vitling.settings.config import Config, LabelledConfig, PretrainConfig, RunConfig
from vitling.settings.names import resumed, saved_config
from vitling.settings.plan import TINY, smaller_view
from vitling.training.processes import Processes, init_processes
from vitling.training.result import FitResult
from vitling.training.rundir import RunDirectory
from vitling.training.trackers import check_trackers
from vitling.views.config import Plan

Work = Callable[[Config, RunDirectory, Processes], dict[str, Any]]
Then = Callable[[Config, dict[str, Any], Processes], dict[str, Any]]


def running(config: Config, verb: str, work: Work[Config], then: Then[Config] | None = None) -> dict[str, Any]:
    """Does the work in the run directory, or goes on with it; gives what is also in the run's result.json. `then` is
    for what comes after a finished run, also one that an earlier start finished."""
    if not config.source and not config.resume:
        raise UserError(f"Which images? Name a folder, a CSV, a Parquet file, a tar or an npz: vitling {verb} DATA ...")
    if not config.out:
        raise UserError("Where should the run go? Pass --out DIR, for example --out runs/first.")
    with init_processes(config.loop.device) as processes:
        result = in_directory(config, verb, work, processes)
        return then(config, result, processes) if then else result


def in_directory(config: Config, verb: str, work: Work[Config], processes: Processes) -> dict[str, Any]:
    """`running` for processes that were started already: a stage of a run has a directory of its own. What it wrote is
    there for all of them when it is over."""
    run = RunDirectory(config.out, writes=processes.is_main)
    try:
        result = _resumed_or_new(config, verb, work, run, processes)
        processes.barrier()
        return result
    except UserError:
        run.abandon()
        raise
    except Exception:
        with suppress(OSError):  # the directory may not be there yet, and must not hide what went wrong
            run.log.debug(traceback.format_exc())
        raise
    finally:
        run.close()


def _resumed_or_new(
    config: Config, verb: str, work: Work[Config], run: RunDirectory, processes: Processes
) -> dict[str, Any]:
    if config.resume and (run.path / "config.json").exists():
        prepare(config, run, processes)
        config = resumed(config, saved_config(type(config), run.read("config.json")))
        if (run.path / "result.json").exists():
            run.log.info(f"{run.path} is finished; there is nothing to resume.")
            return run.read("result.json")
    elif "resume" in config.said and config.source:
        Log(silent=not run.writes).info(f"There is nothing in {run.path} to resume: this run begins.")
    if not config.source:
        raise UserError(
            f"There is no run in {config.out} to resume. To start one, name the images: vitling {verb} DATA"
        )
    check(config)
    check_trackers(config.loop.trackers)
    return work(config, run, processes)


def open_labelled(config: RunConfig) -> Splits:
    """The data, for what trains on its labels."""
    splits = data.open(config.source, config.data, val=config.val, seed=config.held_out_by())
    check_labels(config, splits)
    if isinstance(config, LabelledConfig) and not config.test:
        splits.hidden_test = None
    return splits


def check_labels(config: RunConfig, splits: Splits) -> None:
    """A UserError where the labels do not serve."""
    require_labels(splits)
    check_sampler(config, splits.train)


def check_sampler(config: RunConfig, train: Dataset) -> None:
    if config.loop.sampler != "balanced":
        return
    if not train.has_labels:
        raise UserError("--loop.sampler balanced draws classes equally often, and these images have none.")
    if train.task == "multi":
        raise UserError(
            "--loop.sampler balanced needs one class an image, and these have several labels. Leave it out; in `train` "
            "and `finetune` --objective.class-weights inverse makes rare labels count more."
        )


def settle_network(config: Config, train: Dataset, view: int) -> tuple[Config, list[str]]:
    """Fills in size, backbone, store size and the weight of an auxiliary term from the images, with a note that says
    so. `view` is the usual size of a view; images that have too little for it get a smaller one, and so does a network
    that is made for less: patches of 4 px, meant for 32 px, are 3,136 at 224."""
    longer = measure_median_side(train)
    size = config.size or usual_size(config.backbone, longer, view)
    backbone = config.backbone or ("vit_micro_patch4_32" if size <= TINY else "pvt_v2_b0")
    useful = max(_views(config, size).store_side(len(train)), _to_judge(config), config.store_least)
    store_size = config.store_size or min(useful, longer or useful)
    settled = replace(config, size=size, backbone=backbone, store_size=store_size)
    chosen = [f"--backbone {backbone}"] * (config.backbone is None) + [f"--size {size}"] * (config.size is None)
    return settle_auxiliary(settled, backbone), [f"Chosen: {' '.join(chosen)}."] if chosen else []


def usual_size(backbone: str | None, longer: int | None, view: int) -> int:
    """For images whose longer side is usually that, where it is known, and for the backbone if one is named."""
    view = min(view, get_native_size(backbone) or view)
    return view if longer is None or longer >= view * 5 // 7 else smaller_view(longer)


def _to_judge(config: RunConfig) -> int:
    """Pixels that views in validation and test are cut from, where they have a size of their own."""
    if not isinstance(config, LabelledConfig) or config.test_size is None:
        return 0
    return math.ceil(config.test_size / config.views.crop_fraction)


def check_test_size(config: RunConfig, backbone: Backbone) -> None:
    """A UserError where the network cannot take views of that size."""
    if isinstance(config, LabelledConfig) and config.test_size is not None:
        try:
            backbone.grid_size(config.test_size)
        except UserError as problem:
            raise UserError(f"--test-size {config.test_size}: {problem}") from None


def _views(config: RunConfig, size: int) -> Plan:
    if isinstance(config, PretrainConfig):
        return plan_of(config, size)
    assert isinstance(config, LabelledConfig)
    return config.views.plan(size)


def new_backbone(config: RunConfig, drop_path: float) -> Backbone:
    torch.manual_seed(config.seed)
    return create(config.backbone or "", config.size, config.data.channels, drop_path)


def begin(
    config: RunConfig,
    splits: Splits,
    backbone: Backbone,
    notes: list[str],
    run: RunDirectory,
    processes: Processes,
    keeps_head: bool = False,
    start: str | None = None,
) -> Stores:
    """Fills the backbone, opens the run directory and decodes. Not before all else was checked: --overwrite deletes,
    and a name or a size may have been mistyped. `start` stands for the config's own, where a stage came before."""
    source = weights_of(replace(config, from_=start or config.from_), run)
    notes = [*splits.notes, *notes, *start_from(backbone, source, keeps_head)]
    prepare(config, run, processes)
    splits.on_test_opened = run.log_test_opening
    for note in notes:
        run.log.info(note)
    run.start(config, config.loop.trackers)
    return Stores(config, splits, run, processes)


def prepare(config: RunConfig, run: RunDirectory, processes: Processes) -> None:
    if processes.is_main:
        run.prepare(config.resume, config.overwrite)
    processes.barrier()


class Stores:
    """The decoded splits. The test split is decoded when it is opened, at the end."""

    def __init__(self, config: RunConfig, splits: Splits, run: RunDirectory, processes: Processes):
        self.config, self.splits, self.run, self.processes = config, splits, run, processes
        self.bad = list(splits.bad)
        began = time.monotonic()
        self.train = self._build(splits.train, "train")
        self.seconds_per_image = (time.monotonic() - began) / max(len(self.train), 1)
        self.train.mean, self.train.std = choose_normalisation(self.train, config.data)
        self.val = None if splits.val is None else self._like_train(splits.val, "val")
        run.report_bad_files(self.bad)
        if self.val is not None:
            self._warn_of_leaks("val", self.val)

    def open_test(self, why: str) -> Store:
        store = self._like_train(self.splits.open_test(why), "test")
        self.run.report_bad_files(self.bad)
        self._warn_of_leaks("test", store)
        return store

    def decode_test(self) -> None:
        """Into the cache, unopened: whoever opens it later finds it there."""
        if self.splits.hidden_test is not None and self.config.cache:
            decode_all(self.splits.hidden_test, self.config.store_size or 0, self.config.data, in_memory=False)

    def _like_train(self, dataset: Dataset, split: str) -> Store:
        store = self._build(dataset, split)
        store.mean, store.std = self.train.mean, self.train.std
        return store

    def _build(self, dataset: Dataset, split: str) -> Store:
        c, log = self.config, self.run.log
        with self.processes.main_first(), log.progress(f"Decoding {split}", len(dataset)) as progress:
            store = build_store(
                dataset,
                c.store_size or 0,
                c.data,
                self.processes.device,
                c.store,
                c.allow_bad,
                split,
                c.cache,
                progress,
                log.warning,
                known_bad=self.splits.bad,
            )
        self.bad += store.bad
        return store

    def _warn_of_leaks(self, split: str, store: Store) -> None:
        warning = describe_leakage({"train": self.train.facts, split: store.facts})
        if warning:
            self.run.log.warning(warning)


def begun(run: RunDirectory) -> bool:
    """It has a checkpoint, which has the weights."""
    return any(run.checkpoints.glob("step-*.pt"))


def weights_of(config: RunConfig, run: RunDirectory) -> str | None:
    """What the run starts from. A run that is resumed from a checkpoint has its weights there."""
    return None if config.resume and begun(run) else config.from_


def start_from(backbone: Backbone, source: str | None, keeps_head: bool) -> list[str]:
    """Fills the backbone; the head is another's task. Gives what to say of both."""
    if source is None:
        return []
    path = Path(source)
    transfer = load_weights(backbone, find_bundle(path) / WEIGHTS if path.is_dir() else path)
    notes = [f"Started from {source}: {transfer.summary()}."]
    if transfer.dropped_heads:
        notes.append(f"Its head is {'kept' if keeps_head else 'dropped'}: {', '.join(sorted(transfer.dropped_heads))}.")
    if transfer.missing:
        notes.append(f"Not in it, so left as initialised: {', '.join(transfer.missing[:5])} ...")
    return notes


def setting(stores: Stores) -> str:
    """Where the run has its pixels and its work, in words."""
    store, processes = stores.train, stores.processes
    gigabytes = store.gigabytes
    amount = f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{1000 * gigabytes:.1f} MB"
    several = f", {processes.world} processes" if processes.world > 1 else ""
    return f"store {store.size} px on {store.placement}, {amount}; {processes.device}{several}."


def auxiliary_in_words(config: RunConfig) -> str:
    return "" if config.aux == "none" else f", {config.aux} with weight {config.drloc.weight:g}"


def meta_of(config: RunConfig, store: Store, **of_the_head: Any) -> BundleMeta:
    about: dict[str, Any] = {"task": "none", "class_names": (), "size": config.size or 0} | of_the_head
    return BundleMeta(
        store_size=store.size,
        mean=store.mean,
        std=store.std,
        channels=config.data.channels,
        bits=config.data.bits,
        max_pixels=config.data.max_pixels,
        **about,
    )


def figures(config: RunConfig, stores: Stores, outcome: FitResult) -> dict[str, Any]:
    """What every result.json has."""
    return {
        "finished": True,
        "aux": config.aux,
        "backbone": config.backbone,
        "size": config.size,
        "store_size": stores.train.size,
        "images": len(stores.train),
        "epochs": config.epochs,
        "steps": outcome.steps,
        "seed": config.seed,
        "seconds": round(outcome.seconds, 2),
        "seconds_compiling": round(outcome.seconds_compiling, 2),
        "images_per_second": round(outcome.images_per_second, 1),
        "accumulate": outcome.accumulate,
        "bad_files": len(stores.bad),
    }
