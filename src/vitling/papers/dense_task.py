"""Tasks that pre-train a backbone, then detect or segment with it. The auxiliary loss is only in pre-training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vitling.papers.stages import Kind, StageConfig, StagedTask
from vitling.papers.study import StudyRun
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
class DenseTransferTask(StagedTask):
    """Measure a figure of a detector or of a segmentation network, in percent.

    The figure is that of the last epoch on test, or on val if the data has no test split, as COCO and ADE20K.
    """

    dense: DenseConfig
    figure: str  # key of a metric
    before: PretrainConfig | TrainConfig | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"figure": self.figure}

    def list_configs(self) -> Iterator[tuple[Kind, StageConfig]]:
        if self.before is not None:
            yield "pretrain" if isinstance(self.before, PretrainConfig) else "train", self.before
        yield "detect" if isinstance(self.dense, DetectConfig) else "segment", self.dense

    def read_figure(self, last: dict[str, Any]) -> dict[str, Any]:
        split = "test" if "test" in last["last"] else "val"
        scores = last["last"][split]
        value = round(100 * scores[self.figure], 4)
        return {"value": value, "split": split, "images": last["images"], "images_tested": scores["n"]}


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
        yield StudyRun(f"{name}-{ending}", DenseTransferTask(dense, figure, before), baseline=against, **about)


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
