"""Tasks that pre-train a backbone, then detect or segment with it. The auxiliary loss is only in pre-training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vitling.files import write_json
from vitling.papers.stages import Kind, StageRun, list_settings, make_stage, name_hashes, read_answer, run_stages
from vitling.papers.study import RunContext, StudyRun
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.settings.dense import DenseConfig, DetectConfig, SegmentConfig
from vitling.settings.facts import Facts
from vitling.settings.names import mark_all_explicit
from vitling.settings.resolve import resolve

COCO, ADE20K = Facts(118_287, side=640), Facts(20_210, side=683)  # images to train on; px
BOXES = ("box_ap", "box_ap50", "box_ap75")
MASKS = ("mask_ap", "mask_ap50", "mask_ap75")
SEGMENTS = ("mean_iou", "mean_class_accuracy")


@dataclass(frozen=True)
class DenseTask:
    """Measure a figure of a detector or of a segmentation network, in percent.

    Without `before` the backbone starts from the run's weights file or from random weights. The figure is that of the
    last epoch on test, or on val if the data has no test split, as COCO and ADE20K.
    """

    dense: DenseConfig
    figure: str  # key of a metric
    before: PretrainConfig | TrainConfig | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return list_settings(self._configs()) | {"figure": self.figure}

    def stages(self, context: RunContext) -> list[StageRun]:
        found: list[StageRun] = []
        origin = context.weights
        for kind, config in self._configs():
            found.append(make_stage(kind, config, context, context.seed, origin))
            origin = str(found[-1].out)
        return found

    def __call__(self, context: RunContext) -> dict[str, Any]:
        stages, answer = self.stages(context), context.out / "result.json"
        if (given := read_answer(answer, stages)) is not None:
            return given
        results, entries = run_stages(stages, context)
        last = results[-1]
        split = "test" if "test" in last["last"] else "val"
        given = {
            "value": round(100 * last["last"][split][self.figure], 4),
            "split": split,
            "images": last["images"],
            "images_tested": last["last"][split]["n"],
            "seconds": round(sum(entry["seconds"] for entry in entries), 2),
            "stages": entries,
            **({"images_before": results[0]["images"]} if context.pretrain_data else {}),
            "data_hashes": name_hashes(results[0], context) | last.get("data_hashes", {}),
        }
        write_json(answer, given)
        return given

    def _configs(self) -> Iterator[tuple[Kind, Any]]:
        if self.before is not None:
            yield "pretrain" if isinstance(self.before, PretrainConfig) else "train", self.before
        yield "detect" if isinstance(self.dense, DetectConfig) else "segment", self.dense


def make_dense_runs(
    name: str,
    dense: DenseConfig,
    figures: Iterable[str],
    before: PretrainConfig | TrainConfig | None = None,
    baseline: str = "",
    **about: Any,
) -> Iterator[StudyRun]:
    """Yield a run for each figure, named NAME-FIGURE; all share their stages."""
    for figure in figures:
        ending = figure.replace("_", "-")
        against = f"{baseline}-{ending}" if baseline else ""
        yield StudyRun(f"{name}-{ending}", DenseTask(dense, figure, before), baseline=against, **about)


@cache
def detect_coco(backbone: str, preset: str, model: str = "mask-rcnn") -> DetectConfig:
    """Write out DRLoc's settings for COCO with every value explicit."""
    return _write_out(DetectConfig(backbone=backbone, preset=preset, model=model), COCO)  # type: ignore[arg-type]


@cache
def segment_ade20k(backbone: str) -> SegmentConfig:
    """Write out DRLoc's settings for ADE20K with every value explicit."""
    return _write_out(SegmentConfig(backbone=backbone, preset="160k"), ADE20K)


def _write_out(config: Any, facts: Facts) -> Any:
    resolved = resolve(config, facts).config
    return mark_all_explicit(replace(resolved, store_size=None, eval_every=resolved.epochs))
