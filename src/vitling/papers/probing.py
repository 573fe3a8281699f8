"""Tasks on frozen networks: probes of their features, correspondence and matching of regions.

A network is pre-trained as a stage (see stages.py: runs that need the same one train it once), or comes from a weights
file, or has random weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitling.errors import RunAborted
from vitling.files import read_json, write_json
from vitling.papers.datasets.entry import Metric
from vitling.papers.stages import StageRun, make_stage, name_hashes, open_test_images, summarise_stage
from vitling.papers.study import RunContext, StudyRun
from vitling.papers.train_task import changed_settings, free_memory
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
class FrozenTask:
    """Measure a figure on the run's test images, in percent.

    knn, linear, logistic: a probe trained on the run's train images (runs/probes.py). correspondence: regions found
    again in the mirrored view; distance: their distance from where they should be, in pixels. matching: regions of
    training views whose most similar region in another view lies in the same place.
    """

    network: Network
    figure: Figure
    metric: Metric = "accuracy"  # of the probe

    @property
    def settings(self) -> dict[str, Any]:
        metric = {} if self.metric == "accuracy" else {"metric": self.metric}
        return {**describe_network(self.network), "figure": self.figure, **metric}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        return evaluate_network(self.network, context, self._evaluate)

    def stages(self, context: RunContext) -> list[StageRun]:
        return list_stages(self.network, context)

    def _evaluate(self, folder: Path, context: RunContext) -> dict[str, Any]:
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
            "images_tested": seen["judged"],
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
class TimedFrozenTask:
    """Measure a figure, and the network's images per second without gradients."""

    task: FrozenTask

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.task.settings, "paced": True}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        from vitling.papers.costs import ThroughputTask

        network = self.task.network
        throughput = ThroughputTask(network.backbone or "")(replace(context, out=context.out / "pace"))
        return {**self.task(context), "images_per_second": throughput["value"]}

    def stages(self, context: RunContext) -> list[StageRun]:
        return self.task.stages(context)


@dataclass(frozen=True)
class SuiteMeanTask:
    """Average the logistic probe over the data sets of EsViT's Table 10, each with its metric; `each` lists them."""

    network: Network

    @property
    def settings(self) -> dict[str, Any]:
        return {**describe_network(self.network), "suite": SUITE}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        return evaluate_network(self.network, context, self._evaluate)

    def stages(self, context: RunContext) -> list[StageRun]:
        return list_stages(self.network, context)

    def _evaluate(self, folder: Path, context: RunContext) -> dict[str, Any]:
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


def describe_network(network: Network) -> dict[str, Any]:
    if isinstance(network, FixedNetwork):
        return asdict(network)
    return {f"pretrain.{name}": value for name, value in changed_settings(network).items()}


def list_stages(network: Network, context: RunContext) -> list[StageRun]:
    """List what has to be trained for a network."""
    if isinstance(network, FixedNetwork):
        return []
    return [make_stage("pretrain", network, context, context.seed, context.weights)]


def evaluate_network(
    network: Network, context: RunContext, evaluate: Callable[[Path, RunContext], dict[str, Any]]
) -> dict[str, Any]:
    """Make the network and evaluate it once; the answer is kept in result.json.

    The recorded machine is the one that evaluates; a stage may have been trained on another.
    """
    from vitling.training.rundir import describe_environment

    answer = context.out / "result.json"
    origin = (
        _locate_fixed(network, context) if isinstance(network, FixedNetwork) else _locate_pretrained(network, context)
    )
    if answer.exists() and (given := read_json(answer))["folder"] == origin.folder.name:
        return given
    given = {"folder": origin.folder.name, **origin.make()}
    began = time.monotonic()
    write_json(context.out / "environment.json", describe_environment())
    found = evaluate(origin.folder, context)
    given |= found | {"data_hashes": given.get("data_hashes", {}) | found["data_hashes"]}
    given["seconds"] = round(given.get("seconds", 0.0) + time.monotonic() - began, 2)
    write_json(answer, given)
    free_memory()
    return given


class _Origin(NamedTuple):
    folder: Path
    make: Callable[[], dict[str, Any]]  # makes the network, and returns what is known about it


def _locate_pretrained(config: PretrainConfig, context: RunContext) -> _Origin:
    (stage,) = list_stages(config, context)

    def make() -> dict[str, Any]:
        result, shared = stage(context.out)
        entry = summarise_stage(stage, result, shared)
        curves = {name: curve for name, curve in entry["curves"].items() if name == "knn"}
        known = {"parameters": result["parameters"], "seconds": entry["seconds"], "stages": [entry], "curves": curves}
        known["data_hashes"] = name_hashes(result, context)
        return known | {"images_before" if context.pretrain_data else "images": result["images"]}

    return _Origin(stage.out, make)


def _locate_fixed(network: FixedNetwork, context: RunContext) -> _Origin:
    origin = Path(context.weights).stem if context.weights else f"random-seed{context.seed}"
    folder = context.stages / f"given-{network.backbone}-{network.size}-{origin}"

    def make() -> dict[str, Any]:
        return {"parameters": _save_network(network, folder, context)}

    return _Origin(folder, make)


def _save_network(network: FixedNetwork, folder: Path, context: RunContext) -> int:
    """Save the network and return its number of parameters."""
    from vitling.backbones import create
    from vitling.backbones.transfer import load_weights
    from vitling.data.store import IMAGENET_MEAN, IMAGENET_STD
    from vitling.evaluation.bundle import BundleMeta, save_bundle

    made = create(network.backbone, network.size, seed=context.seed)
    if context.weights:
        load_weights(made, Path(context.weights))
    meta = BundleMeta("none", (), network.size, 0, IMAGENET_MEAN, IMAGENET_STD)
    save_bundle(folder, made, None, replace(meta, store_size=round(network.size / meta.crop_fraction)))
    return sum(p.numel() for p in made.parameters())
