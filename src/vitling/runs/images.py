"""The images of a run: open its data once, split it for each stage, decode it."""

from __future__ import annotations

import time
from dataclasses import replace

from vitling import data
from vitling.data.cache import decode_all
from vitling.data.dataset import Dataset, Splits, merge_unlabelled
from vitling.data.host import count_cores, has_bf16
from vitling.data.inspection import describe_leakage, describe_two_labels
from vitling.data.sources import read_source
from vitling.data.sources.source import Source
from vitling.data.splits import read_splits, require_labels
from vitling.data.store import Store, build_store, choose_normalisation, measure_median_side
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.runs.opening import OpenRun
from vitling.settings.checks import check_task
from vitling.settings.config import LabelledConfig, PretrainConfig, RunConfig
from vitling.settings.facts import Facts


def gather_facts(config: RunConfig, source: Source, gpu: bool) -> Facts:
    """Gather the facts for the plan. The test split is counted, not opened."""
    splits = read_splits(source, config.data)
    labelled = splits.train.task != "none"
    if labelled:
        check_labels(config, splits)
    return Facts(
        images=len(splits.train) + len(splits.val or ()),
        pool=len(splits.pool or ()),
        classes=len(splits.train.class_names) if labelled else 0,
        multi_label=splits.train.task == "multi",
        own_val=len(splits.val or ()),
        has_test=splits.has_test and getattr(config, "test", True),
        side=measure_median_side(splits.train),
        gpu=gpu,
        cores=count_cores(),
        bf16=has_bf16(),
    )


def gather_stage_facts(splits: Splits, gpu: bool) -> Facts:
    """Gather the facts for one stage from the images it trains on."""
    return Facts(len(splits.train), side=measure_median_side(splits.train), gpu=gpu)


def open_labelled(config: RunConfig, source: Source) -> Splits:
    """Split data for training on its labels."""
    splits = data.open(source, config.data, val=config.val, seed=config.hold_out_seed())
    check_labels(config, splits)
    if isinstance(config, LabelledConfig) and not config.test:
        splits.hidden_test = None
    return splits


def open_labels(settings: RunConfig) -> tuple[Splits, list[str]]:
    """Open train and val as one split, and name the split of each of its images."""
    source = read_source(settings.source, settings.data, settings.labels)
    names = [name for name in ("train", "val") for _ in range(len(source.splits.get(name, ())))]
    splits = read_splits(source, settings.data, merge_val=True)
    require_labels(splits)
    if splits.train.task == "multi":
        raise UserError("The images have several labels each; `vitling doctor` checks images with one label.")
    return splits, names


def open_for_pretraining(config: PretrainConfig, source: Source) -> Splits:
    """Split data for pre-training; an unlabelled pool joins in unless the method needs labels."""
    labels = METHODS[config.method].labels
    if labels == "ignored":
        splits = data.open(source, config.data, val=config.val, seed=config.hold_out_seed())
        check_sampler(config, splits.train)
        return _add_pool(splits)
    splits = open_labelled(config, source)
    check_task(config.method, splits.train.task)
    if splits.val is None:
        note = "k-NN accuracy is optimistic: its labels are trained on. --val 0.1 holds some images out."
        splits = replace(splits, notes=[*splits.notes, note])
    return _add_pool(splits) if labels == "some" else _drop_pool(splits, config.method)


def check_labels(config: RunConfig, splits: Splits) -> None:
    """Raise UserError if the data has no labels to train on, or the sampler cannot use them."""
    require_labels(splits)
    check_sampler(config, splits.train)


def check_sampler(config: RunConfig, train: Dataset) -> None:
    if config.loop.sampler != "balanced":
        return
    if not train.has_labels:
        raise UserError("--loop.sampler balanced needs labels, and these images have none. Leave it out.")
    if train.task == "multi":
        raise UserError(
            "--loop.sampler balanced needs one class per image, but these images have several labels. Leave it out; in "
            "train and finetune, --objective.class-weights inverse weighs rare labels more."
        )


def _add_pool(splits: Splits) -> Splits:
    if splits.pool is None:
        return splits
    notes = [*splits.notes, f"{len(splits.train)} images and {len(splits.pool)} of the unlabelled pool."]
    return replace(splits, train=merge_unlabelled(splits.train, splits.pool), pool=None, notes=notes)


def _drop_pool(splits: Splits, method: str) -> Splits:
    if splits.pool is None:
        return splits
    note = f"The unlabelled pool ({len(splits.pool)} images) is not used: --method {method} needs labels."
    return replace(splits, pool=None, notes=[*splits.notes, note])


class Stores:
    """The decoded splits of a run. The test split is decoded when it is opened, at the end."""

    def __init__(self, config: RunConfig, splits: Splits, run: OpenRun):
        self.config, self.splits = config, splits
        self.run, self.processes = run.directory, run.processes
        self.bad = list(splits.bad)
        self.hashes: dict[str, str] = {}  # of the splits decoded so far
        began = time.monotonic()
        self.train = self._build(splits.train, "train")
        self.seconds_per_image = (time.monotonic() - began) / max(len(self.train), 1)
        self.train.mean, self.train.std = choose_normalisation(self.train, config.data)
        self.val = None if splits.val is None else self._build_like_train(splits.val, "val")
        self.run.report_bad_files(self.bad)
        for store in (self.train, self.val):
            if store is not None and (warning := describe_two_labels(store.dataset, store.facts)):
                self.run.log.warning(warning)
        if self.val is not None:
            self._warn_of_leaks("val", self.val)

    def open_test(self, reason: str) -> Store:
        store = self._build_like_train(self.splits.open_test(reason), "test")
        self.run.report_bad_files(self.bad)
        self._warn_of_leaks("test", store)
        return store

    def decode_test(self) -> None:
        """Decode the test split into the cache without opening it."""
        if self.splits.hidden_test is not None and self.config.cache:
            decode_all(self.splits.hidden_test, self.config.store_size or 0, self.config.data, in_memory=False)

    def describe(self) -> str:
        size, store = self.train.gigabytes, self.train
        amount = f"{size:.1f} GB" if size >= 1 else f"{1000 * size:.1f} MB"
        several = f", {self.processes.world} processes" if self.processes.world > 1 else ""
        return f"store {store.size} px on {store.placement}, {amount}; {self.processes.device}{several}."

    def _build_like_train(self, dataset: Dataset, split: str) -> Store:
        store = self._build(dataset, split)
        store.mean, store.std = self.train.mean, self.train.std
        return store

    def _build(self, dataset: Dataset, split: str) -> Store:
        c, log, device, bad = self.config, self.run.log, self.processes.device, self.splits.bad
        with self.processes.main_first(), log.progress(f"Decoding {split}", len(dataset)) as progress:
            placement = (c.store_size or 0, c.data, device, c.store, c.allow_bad)
            store = build_store(dataset, *placement, split, c.cache, progress, log.warning, known_bad=bad)
        self.bad += store.bad
        self.hashes[split] = store.content_hash
        return store

    def _warn_of_leaks(self, split: str, store: Store) -> None:
        warning = describe_leakage({"train": self.train.facts, split: store.facts})
        if warning:
            self.run.log.warning(warning)
