"""Tasks on frozen networks: probes of their features, correspondence and matching of regions.

A network is pre-trained as a stage (see stages.py: runs that need the same one train it once), or comes from a weights
file, or has random weights.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vitling.errors import RunAborted
from vitling.files import write_json
from vitling.loading import read_record
from vitling.papers.datasets.entry import Metric
from vitling.papers.stages import StageRun, make_stage, name_hashes, open_test_images, summarise_stage
from vitling.papers.study import RunContext, StudyRun
from vitling.papers.train_task import changed_settings, free_graphs
from vitling.records import TaskResult
from vitling.settings.config import PretrainConfig

Figure = Literal["knn", "linear", "logistic", "correspondence", "distance", "matching"]
MATCHED = 1000  # test images at most
SUITE: Literal["esvit-t10"] = "esvit-t10"


@dataclass(frozen=True)
class FixedNetwork:
    """A network with the run's weights file, or with random weights of its seed."""

    backbone: str
    size: int = 224


Network = PretrainConfig | FixedNetwork


@dataclass(frozen=True)
class NetworkTask(ABC):
    """Base of tasks that make a network and evaluate it."""

    network: Network

    @property
    def settings(self) -> dict[str, Any]:
        if isinstance(self.network, FixedNetwork):
            return asdict(self.network)
        return {f"pretrain.{name}": value for name, value in changed_settings(self.network).items()}

    def stages(self, context: RunContext) -> list[StageRun]:
        if isinstance(self.network, FixedNetwork):
            return []
        return [make_stage("pretrain", self.network, context, context.seed, context.weights)]

    def __call__(self, context: RunContext) -> dict[str, Any]:
        """Make the network and evaluate it once; the answer is kept in result.json.

        The recorded machine is the one that evaluates; a stage may have been trained on another.
        """
        from vitling.training.rundir import describe_environment

        network, answer = self.network, context.out / "result.json"
        make: Callable[[], dict[str, Any]]
        if isinstance(network, FixedNetwork):
            folder = _name_folder(network, context)
            make = partial(_save_network, network, folder, context)
        else:
            (stage,) = self.stages(context)
            folder, make = stage.out, partial(_train_network, stage, context)
        if answer.exists() and (given := read_record(answer, TaskResult)).get("folder") == folder.name:
            return given
        made, began = make(), time.monotonic()
        write_json(context.out / "environment.json", describe_environment())
        given = {"folder": folder.name, **made, **self.evaluate(folder, context)}
        given["data_hashes"] = made.get("data_hashes", {}) | given["data_hashes"]
        given["seconds"] = round(made.get("seconds", 0.0) + time.monotonic() - began, 2)
        write_json(answer, given)
        free_graphs()
        return given

    @abstractmethod
    def evaluate(self, folder: Path, context: RunContext) -> dict[str, Any]:
        """Evaluate the network in `folder`; return its part of the row, with `data_hashes`."""


@dataclass(frozen=True)
class FrozenTask(NetworkTask):
    """Measure a figure on the run's test images, in percent.

    knn, linear, logistic: a probe trained on the run's train images (runs/probes.py). correspondence: regions found
    again in the mirrored view; distance: their distance from where they should be, in pixels. matching: regions of
    training views whose most similar region in another view lies in the same place.
    """

    figure: Figure
    metric: Metric = "accuracy"  # of the probe
    paced: bool = False  # also measure the network's images per second without gradients

    @property
    def settings(self) -> dict[str, Any]:
        metric = {} if self.metric == "accuracy" else {"metric": self.metric}
        return {**super().settings, "figure": self.figure, **metric, **({"paced": True} if self.paced else {})}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.papers.costs import ThroughputTask

        if not self.paced:
            return super().__call__(context)
        pace = ThroughputTask(self.network.backbone or "")(replace(context, out=context.out / "pace"))
        return {**super().__call__(context), "images_per_second": pace["value"]}

    def evaluate(self, folder: Path, context: RunContext) -> dict[str, Any]:
        if self.figure == "correspondence" or self.figure == "distance":
            return self._measure_correspondence(folder, self.figure, context)
        if self.figure == "matching":
            return self._measure_matching(folder, context)
        from vitling.evaluation.config import ProbesConfig
        from vitling.metric_names import flag_of_paper_metric
        from vitling.runs.probes import evaluate_probes
        from vitling.settings.evaluation import EvaluationConfig

        settings = ProbesConfig(metric=flag_of_paper_metric(self.metric), seed=context.seed)
        source = f"train={context.train},test={context.test}"
        found = evaluate_probes(EvaluationConfig(str(folder), source, probes=(self.figure,), settings=settings))
        probe, seen = found["probes"][self.figure], found["images"]
        return {
            "value": round(100 * probe["value"], 4),
            "validation": round(100 * probe["validation"], 4),
            "chosen": probe["chosen"],
            "images": seen["train"] + seen["validation"],
            "images_tested": seen["evaluated"],
            "data_hashes": found["data_hashes"],
        }

    def _measure_correspondence(self, folder: Path, figure: str, context: RunContext) -> dict[str, Any]:
        from vitling.data.content import hash_content
        from vitling.evaluation.bundle import load
        from vitling.evaluation.correspondence import measure_correspondence
        from vitling.evaluation.inputs import list_dataset_sources

        images = open_test_images(context, f"{figure} of regions")
        found = measure_correspondence(load(folder), list_dataset_sources(images))
        figures = {"correspondence": round(100 * found.accuracy, 4), "distance": round(found.distance, 4)}
        seen = {"images_tested": found.images, "grid": list(found.grid), "data_hashes": {"test": hash_content(images)}}
        return {"value": figures[figure], **figures, **seen}

    def _measure_matching(self, folder: Path, context: RunContext) -> dict[str, Any]:
        from vitling.data.content import hash_content
        from vitling.data.store import build_store, choose_size
        from vitling.evaluation.bundle import load
        from vitling.evaluation.matching import measure_matching
        from vitling.methods.dino.settings import dino_plan
        from vitling.methods.esvit.settings import EsViTConfig

        every, model = open_test_images(context, "matching of regions"), load(folder)
        images = every.subset(min(MATCHED, len(every)), seed=context.seed)
        config = EsViTConfig(match="place")
        plan = dino_plan(config, model.meta.size)
        useful = plan.store_side(len(images))
        store = build_store(images, choose_size(images, useful), device=model.device, allow_bad=True, use_cache=False)
        found = measure_matching(model, store, plan, config.global_crops, context.seed)
        figures = {"value": round(100 * found.right, 4), "chance": round(100 * found.chance, 4)}
        return {**figures, "images_matched": found.images, "data_hashes": {"test": hash_content(every)}}


@dataclass(frozen=True)
class SuiteMeanTask(NetworkTask):
    """Average the logistic probe over the datasets of EsViT's Table 10, each with its metric; `each` lists them."""

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "suite": SUITE}

    def evaluate(self, folder: Path, context: RunContext) -> dict[str, Any]:
        from vitling.papers.suite.config import SuiteConfig
        from vitling.papers.suite.suite import run_suite

        config = SuiteConfig((str(folder),), str(context.folder), table=SUITE, out=str(context.out / "suite"))
        result = run_suite(config)
        values = {row["data"]: row["values"][0] for row in result.summary["rows"]}
        missing = [entry.name for entry in config.entries() if values.get(entry.name) is None]
        if missing:
            raise RunAborted(f"The mean over {SUITE} needs a figure on {', '.join(missing)}.")
        each = {name: round(100 * value, 4) for name, value in values.items()}
        hashes = {
            f"{row['data']}/{split}": hash
            for row in result.summary["rows"]
            for split, hash in row["data_hashes"].items()
        }
        return {"value": round(sum(each.values()) / len(each), 4), "each": each, "data_hashes": hashes}


def make_probe_runs(
    name: str,
    network: Network,
    data: str,
    figures: Iterable[Figure],
    baseline: str = "",
    pretrain_data: str = "",
    note: str = "",
) -> Iterator[StudyRun]:
    """Yield a run for each figure, whose name ends with it; `baseline` is the other network's name without it."""
    for figure in figures:
        base, task = f"{baseline}-{figure}" if baseline else "", FrozenTask(network, figure)
        yield StudyRun(f"{name}-{figure}", task, data, baseline=base, pretrain_data=pretrain_data, note=note)


def _train_network(stage: StageRun, context: RunContext) -> dict[str, Any]:
    """Train the stage unless it is there; return what is known about it."""
    result, shared = stage(context.out)
    entry = summarise_stage(stage, result, shared)
    return {
        "parameters": result["parameters"],
        "seconds": entry["seconds"],
        "stages": [entry],
        "curves": {name: curve for name, curve in entry["curves"].items() if name == "knn"},
        "data_hashes": name_hashes(result, context),
        "images_before" if context.pretrain_data else "images": result["images"],
    }


def _name_folder(network: FixedNetwork, context: RunContext) -> Path:
    origin = Path(context.weights).stem if context.weights else f"random-seed{context.seed}"
    return context.stages / f"given-{network.backbone}-{network.size}-{origin}"


def _save_network(network: FixedNetwork, folder: Path, context: RunContext) -> dict[str, Any]:
    """Save the network; return its number of parameters."""
    from vitling.backbones import create
    from vitling.backbones.transfer import load_weights
    from vitling.data.store import IMAGENET_MEAN, IMAGENET_STD
    from vitling.evaluation.bundle import BundleMeta, save_bundle

    made = create(network.backbone, network.size, seed=context.seed)
    if context.weights:
        load_weights(made, Path(context.weights))
    meta = BundleMeta("none", (), network.size, 0, IMAGENET_MEAN, IMAGENET_STD)
    save_bundle(folder, made, None, replace(meta, store_size=round(network.size / meta.crop_fraction)))
    return {"parameters": sum(p.numel() for p in made.parameters())}
