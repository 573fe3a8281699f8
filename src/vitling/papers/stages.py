"""Tasks of several stages: pre-training, fine-tuning, and further fine-tuning at a larger size.

Each stage is an ordinary run whose folder is named after everything that defines it: settings, dataset, seed and
origin. So runs that need the same stage train it once, across studies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.files import clean_folder, lock_folder, try_lock_folder, write_json
from vitling.loading import parse_json, read_bytes, read_record
from vitling.methods import METHODS, MethodName
from vitling.methods.idmm_optim import IDMMPreset
from vitling.methods.method import SIZE, Recipe
from vitling.papers.ledger import digest, drop_later_names
from vitling.papers.study import RunContext
from vitling.papers.train_task import (
    SPEED,
    changed_settings,
    describe_passes,
    drop_checkpoints,
    free_graphs,
    read_history,
    shorten,
)
from vitling.records import Environment, RunResult, TaskResult
from vitling.settings.config import FinetuneConfig, PretrainConfig, TrainConfig
from vitling.settings.dense import DenseConfig, DetectConfig, SegmentConfig
from vitling.settings.names import mark_all_explicit
from vitling.views.policies import idmm_pretrain

if TYPE_CHECKING:
    from vitling.data.dataset import Dataset

Kind = Literal["pretrain", "train", "finetune", "enlarge", "detect", "segment"]
StageConfig = PretrainConfig | TrainConfig | FinetuneConfig | DenseConfig
FLOWERS_IMAGES = 2_040  # training images of Flowers-102; larger datasets are stored at a smaller side


def pretrain_config(recipe: Recipe, preset: IDMMPreset = "paper", method: MethodName = "idmm") -> PretrainConfig:
    """Write out a recipe with every value explicit, so that a change of the preset gives another fingerprint.

    Defaults and views are the code's: if they change, rows have to be deleted by hand. A collapsed baseline is not
    stopped, since its figure belongs to the table.
    """
    field = METHODS[method].field
    others: dict[str, Any] = {} if method == "idmm" else {"method": method, "on_collapse": "warn"}
    config = PretrainConfig(
        backbone=recipe.backbone,
        preset=preset,
        epochs=recipe.epochs,
        batch=recipe.batch,
        size=recipe.size,
        drop_path=recipe.drop_path,
        optim=recipe.optim,
        **({field: recipe.objective} if field else {}),
        **others,
    )
    return _match_store(mark_all_explicit(config))


def _match_store(config: PretrainConfig) -> PretrainConfig:
    """Decode images at least as large as IDMM's, whose small crops need more, to compare methods on the same pixels."""
    own, idmm = (
        plan.store_side(FLOWERS_IMAGES) for plan in (config.make_views(config.size or SIZE), idmm_pretrain(SIZE))
    )
    return replace(config, store_least=idmm) if own < idmm else config


@dataclass(frozen=True)
class StageRun:
    """One stage: a run that several tasks may share."""

    kind: Kind
    config: StageConfig

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    @property
    def finished(self) -> bool:
        return (self.out / "result.json").exists()

    @property
    def is_claimed_elsewhere(self) -> bool:
        """Return whether another process is training it."""
        if self.finished:
            return False
        with try_lock_folder(self.out) as mine:
            return not mine

    def __call__(self, run: Path) -> tuple[dict[str, Any], bool]:
        """Train or resume it unless it has finished, one process at a time.

        Return its result.json, and whether another run than that in the folder `run` has trained it.
        """
        with lock_folder(self.out, lambda: Log().info(f"Waiting for another process that trains {self.out.name}.")):
            shared = _was_finished_before(self, run)
            if not self.finished:
                return self._train(), shared
            clean_folder(self.out)  # it may have been killed as it finished
            drop_checkpoints(self.out)
            return read_record(self.out / "result.json", RunResult), shared

    def _train(self) -> dict[str, Any]:
        result = _run_stage(replace(self.config, report=False))
        drop_checkpoints(self.out)
        free_graphs()
        return result


def _run_stage(config: StageConfig) -> dict[str, Any]:
    from vitling.runs import dense, finetune, pretrain, train

    if isinstance(config, PretrainConfig):
        return pretrain.pretrain(config)
    if isinstance(config, TrainConfig):
        return train.train(config)
    if isinstance(config, FinetuneConfig):
        return finetune.finetune_from_any_start(config)
    assert isinstance(config, DetectConfig | SegmentConfig)
    return dense.train_dense(config)


@dataclass(frozen=True)
class StagedTask(ABC):
    """Base of tasks that train stages, each of which starts from the one before, and report a figure of the last.

    The first one starts from the run's weights file or from random weights.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """List the settings of all stages that differ from the defaults, as KIND.NAME."""
        return {
            f"{kind}.{name}": value
            for kind, config in self.list_configs()
            for name, value in changed_settings(config).items()
        }

    def stages(self, context: RunContext) -> list[StageRun]:
        found: list[StageRun] = []
        origin = context.weights
        for kind, config in self.list_configs():
            found.append(make_stage(kind, config, context, self.choose_seed(kind, context.seed), origin))
            origin = str(found[-1].out)
        return found

    def __call__(self, context: RunContext) -> dict[str, Any]:
        stages, answer = self.stages(context), context.out / "result.json"
        if (given := _read_answer(answer, stages)) is not None:
            return given
        results, entries = _run_stages(stages, context)
        first, last = results[0], results[-1]
        given = {
            **self.read_figure(last),
            "seconds": round(sum(entry["seconds"] for entry in entries), 2),
            "stages": entries,
            **({"images_before": first["images"]} if context.pretrain_data else {}),
            "data_hashes": name_hashes(first, context) | last.get("data_hashes", {}),
        }
        write_json(answer, given)
        return given

    @abstractmethod
    def list_configs(self) -> Iterable[tuple[Kind, StageConfig]]:
        """Return the settings of each stage."""

    @abstractmethod
    def read_figure(self, last: dict[str, Any]) -> dict[str, Any]:
        """Return the figure, as `value`, and what else the row needs of the last stage's result."""

    def choose_seed(self, kind: Kind, seed: int) -> int:
        """Return the seed of a stage in a run with this seed."""
        return seed


@dataclass(frozen=True)
class FinetuneTask(StagedTask):
    """Pre-train, fine-tune, enlarge; measure the accuracy on test."""

    finetune: FinetuneConfig
    pretrain: PretrainConfig | None = None
    enlarge: FinetuneConfig | None = None  # continues from the fine-tuned network, with its head
    seeded: Literal["all", "pretrain", "finetune"] = "all"  # stages that use the run's seed; the others use 0

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.seeded == "all" else {"seeded": self.seeded})

    def choose_seed(self, kind: Kind, seed: int) -> int:
        return seed if self.seeded in ("all", "pretrain" if kind == "pretrain" else "finetune") else 0

    def list_configs(self) -> Iterator[tuple[Kind, StageConfig]]:
        if self.pretrain is not None:
            yield "pretrain", self.pretrain
        yield "finetune", self.finetune
        if self.enlarge is not None:
            yield "enlarge", self.enlarge

    def read_figure(self, last: dict[str, Any]) -> dict[str, Any]:
        value = round(100 * last["last"]["test"]["top1"], 4)
        return {"value": value, "images": last["images"], "parameters": last["parameters"]}


def _read_answer(path: Path, stages: list[StageRun]) -> dict[str, Any] | None:
    """Return the saved result of these stages, or None. A run of another study may have used the folder."""
    if path.exists():
        given = read_record(path, TaskResult)
        if [entry.get("folder") for entry in given.get("stages", [])] == [stage.out.name for stage in stages]:
            return given
    return None


def _run_stages(stages: list[StageRun], context: RunContext) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train the stages that have not finished; return the result and the summary of each."""
    log, results, entries = Log(), [], []
    for i, stage in enumerate(stages):
        there = " has finished already." if stage.finished else ""
        log.info(f"Stage {i + 1} of {len(stages)}, {stage.kind}: {stage.out}{there}")
        result, shared = stage(context.out)
        results.append(result)
        entries.append(summarise_stage(stage, result, shared))
    write_json(context.out / "environment.json", read_record(stages[-1].out / "environment.json", Environment))
    return results, entries


def make_stage(kind: Kind, config: StageConfig, context: RunContext, seed: int, origin: str) -> StageRun:
    """Make a stage that starts from `origin`: a run, a weights file or "" for random weights."""
    config, first = shorten(config, context.epochs), kind in ("pretrain", "train")
    data = context.pretrain_data or context.data if first else context.data
    key = digest([kind, drop_later_names(changed_settings(config)), data, seed, Path(origin).name])
    out = str(context.stages / f"{kind}-{config.backbone}-{data}-seed{seed}-{key}")
    source = f"train={context.train},test={context.test}"
    if first:  # no test images
        source = f"train={context.pretrain_source or context.train}"
    elif isinstance(config, DenseConfig):  # annotated data names its splits itself
        source = context.train
    return StageRun(kind, replace(config, source=source, out=out, seed=seed, from_=origin or None, resume=True))


def name_hashes(first: dict[str, Any], context: RunContext) -> dict[str, str]:
    """Return the hash of the images that the first stage was trained on, as `pretrain` if they are another dataset."""
    hashes = first.get("data_hashes", {})
    return {"pretrain": hashes["train"]} if context.pretrain_data and "train" in hashes else dict(hashes)


def open_test_images(context: RunContext, why: str, config: DataConfig | None = None) -> Dataset:
    """Open the run's test split and log that in its folder."""
    from vitling import data
    from vitling.training.rundir import RunDirectory

    splits = data.open(f"train={context.train},test={context.test}", config, val="none")
    splits.on_test_opened = RunDirectory(context.out).log_test_opening
    return splits.open_test(why)


def _was_finished_before(stage: StageRun, out: Path) -> bool:
    """Return whether another run had finished the stage when this one first reached it.

    The run's folder remembers that, so that it survives an interruption.
    """
    path = out / "stages.json"
    known = parse_json(read_bytes(path), dict[str, bool], path) if path.exists() else {}
    if stage.out.name not in known:
        known[stage.out.name] = stage.finished
        write_json(path, known)
    return known[stage.out.name]


def summarise_stage(stage: StageRun, result: dict[str, Any], shared: bool) -> dict[str, Any]:
    """Summarise a stage for the row of the results."""
    knn, passes = result["last"].get("knn/top1"), describe_passes(stage.config, result)
    trained = read_record(stage.out / "environment.json", Environment)
    warnings = [*result.get("warnings", []), *([f"{stage.kind}: {passes}"] if passes else [])]
    last = result["last"].items()
    watched = {
        name: round(value, 4)
        for name, value in last
        if name.startswith(("features/", "health/")) and isinstance(value, float | int)
    }
    return {
        "stage": stage.kind,
        "folder": stage.out.name,
        "shared": shared,
        **{name: result[name] for name in ("size", "store_size", "epochs", "seed", "images", *SPEED) if name in result},
        **{name: trained.get(name) for name in ("commit", "gpu")},
        **read_history(stage.out / "metrics.jsonl", result["epochs"]),
        **({"knn": round(100 * knn, 4)} if knn is not None else {}),
        **({"watched": watched} if watched else {}),
        **({"warnings": warnings} if warnings else {}),
    }
