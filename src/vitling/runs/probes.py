"""What the features of a trained network are worth: probes of it, frozen, on a labelled data set.

`vitling evaluate RUN DATA --with knn linear logistic few-shot`. Probes are trained on the data's train split. What is
to be chosen (k, a learning rate, C) is chosen on validation, which is the data's own val split or held out of train;
then a probe is trained on both, and judged on test or, where there is none, on val or on images held out of train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitling import data
from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset, Splits
from vitling.data.holdout import hold_out
from vitling.data.inspection import describe_leakage
from vitling.data.scan import ImageFacts
from vitling.data.splits import DEFAULT_HOLD_OUT, read_splits, require_labels
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation import few_shot, linear_probe, logistic
from vitling.evaluation.classify import get_labels
from vitling.evaluation.config import KS, Probe, ProbesConfig
from vitling.evaluation.knn import knn_votes
from vitling.evaluation.metrics import METRICS, resolve_metric, summarise
from vitling.evaluation.model import Model
from vitling.evaluation.probe_features import FrozenFeatures, compute_probe_features
from vitling.files import write_json
from vitling.formatting import shorten_list
from vitling.metric_names import MetricFlag
from vitling.runs.evaluate import (
    decode_split,
    format_command,
    make_opening_recorder,
    prepare_evaluation,
    was_trained_on,
)
from vitling.settings.evaluation import EvaluationConfig
from vitling.views.config import Group, Plan, Policy

EPSILON = 1e-6  # of a share of votes, whose logarithm is a logit


def evaluate_probes(config: EvaluationConfig) -> dict[str, Any]:
    """A figure for each probe, with what was chosen and everything that `summarise` says; also in `out` (JSON)."""
    model, data_config = prepare_evaluation(config)
    log, probes = Log(), tuple(dict.fromkeys(config.probes))
    parts = open_probe_splits(config.source, data_config, config.split, config.settings)
    settings = settled(config.settings, probes, parts)
    parts.splits.on_test_opened = make_opening_recorder(config.run)
    judged = parts.open_eval_split(f"{format_command(config)} --with {' '.join(probes)}")
    for note in parts.notes:
        log.info(note)
    if was_trained_on(config.run, config.source, parts.judged, settings.seed if parts.held_out else None):
        log.warning("The network was trained on the judged images, with labels or without; expect less of new ones.")
    found = compute_split_features(model, parts, judged, data_config, config.allow_bad, probes, settings, log)
    bench = ProbeTask(model, settings, parts.train.class_names, found)
    result = {
        "model": config.run,
        "weights": config.weights,
        "size": model.meta.size,
        "data": config.source,
        "split": parts.judged,
        "trained_on": "train and validation",
        "chosen_on": parts.chosen,
        "images": {name: len(part.labels) for name, part in bench.parts.items()},
        "classes": bench.classes,
        "metric": bench.metric,
        "seed": settings.seed,
        "notes": parts.notes,
        "probes": {name: PROBES[name](bench, log) for name in probes},
        "bad_files": [vars(file) for part in found.values() if part.store for file in part.store.bad],
    }
    if config.out:
        write_json(Path(config.out), result)
    return result


@dataclass
class ProbeSplits:
    """Train and validation as data sets; the judged split behind `open_judged`, which leaves a trace if it is test."""

    splits: Splits
    train: Dataset
    validation: Dataset
    judged: str
    held_out: bool  # the judged images are held out of train, for want of another split
    chosen: str  # where the images to choose on come from, in words
    notes: list[str]

    def open_eval_split(self, why: str) -> Dataset:
        part = self.splits.open_test(why) if self.judged == "test" else self.splits.val
        if part is None or part.labels is None:
            raise UserError(f"The {self.judged} split has no labels, so nothing can be judged on it.")
        return part


def open_probe_splits(source: str, config: DataConfig, split: str, settings: ProbesConfig) -> ProbeSplits:
    """Which images train a probe, which choose, and which judge."""
    if split == "train":
        raise UserError("--split train: probes are trained on it, so it cannot judge them. Leave out --split.")
    own = read_splits(source, config)
    require_labels(own)
    if split == "test" and not own.has_test:
        raise UserError("The data has no test split of its own. Leave out --split, and val or held-out images judge.")
    on_test = own.has_test and split != "val"
    fraction = None if settings.val is None else str(settings.val)
    splits = data.open(source, config, val=fraction if on_test else None, seed=settings.seed)
    assert splits.val is not None
    own_val = own.val is not None and not config.folds
    if on_test:
        chosen = "val" if own_val and fraction is None else "held out of train"
        parts = ProbeSplits(splits, splits.train, splits.val, "test", False, chosen, splits.notes)
    else:
        train, validation = _halved(splits.train, settings.val or DEFAULT_HOLD_OUT, settings.seed)
        note = f"{len(validation):,} of {len(splits.train):,} train images are held out to choose on."
        notes = [*splits.notes, note]
        parts = ProbeSplits(splits, train, validation, "val", not own_val, "held out of train", notes)
    parts.notes = parts.notes + _lone_classes(parts)
    return parts


def settled(settings: ProbesConfig, probes: Sequence[Probe], parts: ProbeSplits) -> ProbesConfig:
    """With what the images allow; a UserError where they allow nothing, before the judged split is opened."""
    labels = parts.train.labels
    assert labels is not None
    resolve_metric(settings.metric, labels.ndim == 2)
    if "knn" in probes:
        ks = settings.knn.k or default_ks(len(labels))
        if max(ks) > len(labels):
            raise UserError(
                f"--knn.k {max(ks)} needs as many images to train on; there are {len(labels)}. Use a smaller k."
            )
        settings = replace(settings, knn=replace(settings.knn, k=tuple(dict.fromkeys(ks))))
    if "few-shot" in probes:
        every = np.concatenate([labels, parts.validation.labels])
        shots = few_shot.select_shots(torch.from_numpy(every), settings.few_shot.shots)
        if left_out := [str(n) for n in settings.few_shot.shots if n not in shots]:
            parts.notes.append(f"Few-shot: {', '.join(left_out)} images are more than some class has, and left out.")
        settings = replace(settings, few_shot=replace(settings.few_shot, shots=tuple(shots)))
    return settings


def default_ks(images: int) -> tuple[int, ...]:
    """EsViT's numbers of them, as far as there are images."""
    return tuple(k for k in KS if k <= images) or (images,)


class SplitFeatures(NamedTuple):
    store: Store | None  # None: features of before, which cannot be drawn anew
    frozen: FrozenFeatures
    labels: Tensor


@dataclass
class ProbeTask:
    """A frozen network's features of three splits, and how probes on them are scored."""

    model: Model
    settings: ProbesConfig
    class_names: tuple[str, ...]
    parts: dict[str, SplitFeatures]  # train, validation, judged

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def metric(self) -> MetricFlag:
        return resolve_metric(self.settings.metric, self.parts["train"].labels.ndim == 2)

    @property
    def score(self) -> Callable[[Tensor, Tensor], float]:
        return METRICS[self.metric]

    def pooled(self, *names: str) -> tuple[Tensor, Tensor]:
        """Features and labels of these parts together."""
        some = [self.parts[name] for name in names]
        return torch.cat([part.frozen.pooled for part in some]), torch.cat([part.labels for part in some])

    def judge(self, logits: Tensor) -> dict[str, Any]:
        """Of the judged images."""
        labels = self.parts["judged"].labels
        logits = logits.float()
        return {
            "value": self.score(logits, labels),
            "metrics": summarise(logits.cpu(), labels.cpu(), self.class_names),
        }


def _knn(bench: ProbeTask, log: Log) -> dict[str, Any]:
    config, classes = bench.settings.knn, bench.classes
    several = bench.parts["train"].labels.ndim == 2

    def logits(bank: tuple[Tensor, Tensor], asked: Tensor) -> dict[int, Tensor]:
        votes = knn_votes(*bank, asked, config.k, classes, config.temperature)
        return {k: v.logit(EPSILON) if several else v.clamp_min(EPSILON).log() for k, v in votes.items()}

    held, labels = bench.pooled("validation")
    on_validation = {k: bench.score(v, labels) for k, v in logits(bench.pooled("train"), held).items()}
    best = max(on_validation, key=lambda k: (on_validation[k], -k))
    asked, truth = bench.pooled("judged")
    judged = logits(bench.pooled("train", "validation"), asked)
    values = {str(k): {"validation": on_validation[k], "value": bench.score(judged[k], truth)} for k in config.k}
    return {"chosen": {"k": best}, "validation": on_validation[best], **bench.judge(judged[best]), "each_k": values}


def _linear(bench: ProbeTask, log: Log) -> dict[str, Any]:
    config, parts = bench.settings.linear, bench.parts
    train, validation = parts["train"], parts["validation"]
    sources = [_source(bench, [train]), _source(bench, [train, validation])]
    with log.progress("Linear probe", 2 * config.epochs) as progress:
        found = linear_probe.fit_probe(
            sources[0],
            (validation.frozen.blocks, validation.labels),
            sources[1],
            bench.classes,
            bench.score,
            config.lr,
            config.epochs,
            config.batch,
            bench.settings.seed,
            progress,
        )
    if len(config.lr) > 1 and found.lr in (min(config.lr), max(config.lr)):
        end = "largest" if found.lr == max(config.lr) else "smallest"
        log.info(f"Linear probe: the best rate, {found.lr:g}, is the {end} of --linear.lr; one beyond may be better.")
    return {
        "chosen": {"lr": found.lr},
        "validation": found.score,
        **bench.judge(found.logits(parts["judged"].frozen.blocks)),
        "width": train.frozen.blocks.shape[1],
        "each_lr": {f"{rate:g}": value for rate, value in found.scores.items()},
    }


def _source(bench: ProbeTask, parts: Sequence[SplitFeatures]) -> linear_probe.FeatureSource:
    labels = torch.cat([part.labels for part in parts])
    if not bench.settings.linear.augment:
        return linear_probe.CachedFeatures(torch.cat([part.frozen.blocks for part in parts]), labels)
    plan = Plan((Group(bench.model.meta.size, policy=Policy(filter="bilinear")),))  # EsViT's: scale 0.08 to 1, flip
    blocks, stores = _blocks(bench.model, bench.settings), [part.store for part in parts if part.store]
    return linear_probe.AugmentedFeatures(bench.model.backbone, stores, labels, plan, blocks, bench.settings.seed)


def _logistic(bench: ProbeTask, log: Log) -> dict[str, Any]:
    train, validation, judged = (_on_host_or_gpu(bench.pooled(name)) for name in ("train", "validation", "judged"))
    with log.progress("Logistic probe", 16) as progress:
        found = logistic.fit_probe(
            train, validation, bench.classes, bench.score, bench.settings.logistic.backend, progress
        )
    if found.not_converged:
        count, most = len(found.not_converged), logistic.ITERATIONS
        log.info(
            f"L-BFGS was cut off after {most:,} iterations for {count} of {len(found.scores)} C, as in the papers."
        )
    return {
        "chosen": {"C": found.C},
        "validation": found.score,
        **bench.judge(found.fit.logits(judged[0]).to(bench.parts["judged"].labels.device, torch.float32)),
        "backend": found.backend,
        "each_C": {f"{C:.4g}": value for C, value in found.scores.items()},
        "iterations": {f"{C:.4g}": n for C, n in found.iterations.items()},
        "not_converged": found.not_converged,
        "converged": found.fit.converged,
    }


def _few_shot(bench: ProbeTask, log: Log) -> dict[str, Any]:
    config = bench.settings.few_shot
    bank, judged = (_on_host_or_gpu(bench.pooled(*names)) for names in (("train", "validation"), ("judged",)))
    with log.progress("Few-shot curves", config.draws) as progress:
        curves = few_shot.measure_few_shot(
            *bank,
            *judged,
            bench.classes,
            bench.score,
            config.shots,
            config.draws,
            bench.settings.seed,
            bench.settings.logistic.backend,
            progress,
        )
    return {"draws": config.draws, **{way: {str(n): v for n, v in curve.items()} for way, curve in curves.items()}}


PROBES: dict[str, Callable[[ProbeTask, Log], dict[str, Any]]] = {
    "knn": _knn,
    "linear": _linear,
    "logistic": _logistic,
    "few-shot": _few_shot,
}


def compute_split_features(
    model: Model,
    parts: ProbeSplits,
    judged: Dataset,
    config: DataConfig,
    allow_bad: bool,
    probes: Sequence[Probe],
    settings: ProbesConfig,
    log: Log,
) -> dict[str, SplitFeatures]:
    """Every image goes through the network once."""
    blocks = _blocks(model, settings) if "linear" in probes else 0
    found: dict[str, SplitFeatures] = {}
    facts: dict[str, ImageFacts] = {}
    for name, dataset in (("train", parts.train), ("validation", parts.validation), ("judged", judged)):
        split = parts.judged if name == "judged" else name
        own = "val" if name == "validation" and parts.chosen == "val" else split
        known = [replace(file, split=split) for file in parts.splits.bad if file.split == own]
        store, meta = decode_split(model, dataset, split, config, allow_bad, log, known), model.meta
        with log.progress(f"Features of {split}", len(store)) as progress:
            frozen = compute_probe_features(
                model.backbone, store, meta.size, meta.crop_fraction, blocks, on_progress=progress
            )
        facts[name] = store.facts
        found[name] = SplitFeatures(store, frozen, get_labels(store).to(frozen.pooled.device))
    for name in ("train", "validation"):  # what is judged was fitted on both
        if warning := describe_leakage({"train": facts[name], parts.judged: facts["judged"]}, name):
            log.warning(warning)
    return found


def _blocks(model: Model, settings: ProbesConfig) -> int:
    return min(settings.linear.blocks, len(model.backbone.blocks()))


def _on_host_or_gpu(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """L-BFGS wants float64, which some devices lack."""
    features, labels = part
    return (features, labels) if features.device.type == "cuda" else (features.cpu(), labels.cpu())


def _halved(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    held = hold_out(dataset.labels, dataset.groups, len(dataset), fraction, seed)
    if not held.any() or held.all():
        raise UserError(
            f"{dataset.name} has too few images or groups to hold out {fraction:.0%} of them, which a probe "
            "chooses on. Pass a larger fraction: --val 0.5"
        )
    return dataset.take(np.flatnonzero(~held)), dataset.take(np.flatnonzero(held))


def _lone_classes(parts: ProbeSplits) -> list[str]:
    """Classes that cannot be chosen by, because their one image is in train."""
    train, validation = parts.train.labels, parts.validation.labels
    assert train is not None
    assert validation is not None
    counts = [
        labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=len(parts.train.class_names))
        for labels in (train, validation)
    ]
    lone = [parts.train.class_names[c] for c in np.flatnonzero((counts[0] == 1) & (counts[1] == 0))]
    return [f"Of one image each, which trains and cannot choose: {shorten_list(lone)}."] if lone else []
