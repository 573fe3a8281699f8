"""Studies of detection and segmentation: their figures, and each of them run through on made miniatures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_folder
from tests.papers.short_stages import FIRST, QUIET
from tests.runs.drawn_scenes import draw_scene, make_coco_folder, make_mask_folder
from vitling.data.annotations.config import AnnotationConfig
from vitling.loading import read_json
from vitling.papers import locations
from vitling.papers.dense_task import DenseTransferTask
from vitling.papers.drloc_recipes import scratch
from vitling.papers.locations import find_data
from vitling.papers.reproduce import reproduce
from vitling.papers.studies import all_studies
from vitling.papers.study import Study
from vitling.settings.config import PretrainConfig
from vitling.settings.dense import DetectConfig

NANO = "vit_nano_patch4_32"
STUDIES = {study.name: study for study in all_studies()}
TABLES = ("drloc-t5", "drloc-t6", *(f"drloc-supp-t{n}" for n in (10, 11, 12, 13)), "esvit-t2", "esvit-t5")
ROWS = {  # to run through
    "drloc-t5": ("=mask-rcnn-swin-t-drloc-box-ap", "=mask-rcnn-swin-t-drloc-mask-ap"),
    "drloc-t5 cascade": ("=cascade-swin-t-drloc-box-ap",),
    "drloc-t6": ("iou",),
    "drloc-supp-t10": ("=cascade-swin-t-mask-ap",),
    "drloc-supp-t11": ("=mask-rcnn-swin-t-box-ap50",),
    "drloc-supp-t12": ("=swin-t-mean-class-accuracy",),
    "drloc-supp-t13": ("=swin-t-drloc-mean-iou",),
    "esvit-t2": ("=swin-t-both-box-ap",),
    "esvit-t5": ("=r-50-moco-v2-box-ap",),
    "camvid-dense": ("pvtv2",),
}


def figures(study: str, *names: str) -> list[float | None]:
    known = {run.name: run.paper for run in STUDIES[study].runs}
    return [known[name] for name in names]


def test_figures_of_the_papers():
    names = ("mask-rcnn-swin-t-box-ap", "mask-rcnn-swin-t-drloc-mask-ap", "cascade-swin-t-drloc-box-ap75")
    assert figures("drloc-t5", *names) == figures("drloc-supp-t11", *names) == [41.8, 37.2, 40.3]
    assert figures("drloc-supp-t10", *names) == [43.4, 39.7, 52.1]
    for table, expected in (("t6", [36.9, 48.7]), ("supp-t12", [43.87, 55.74]), ("supp-t13", [36.93, 48.69])):
        assert figures(f"drloc-{table}", "swin-t-mean-iou", "swin-t-drloc-mean-class-accuracy") == expected
    assert figures("esvit-t2", "swin-t-supervised-box-ap50", "swin-t-views-mask-ap75") == [68.1, 45.1]
    assert figures("esvit-t5", "r-50-densecl-box-ap", "r-50-supervised-mask-ap", "r-50-both-knn") == [39.1, 33.3, 61.7]
    runs = [run for table in TABLES for run in STUDIES[table].runs if isinstance(run.task, DenseTransferTask)]
    assert all(run.paper is not None for run in runs)


def test_only_pre_training_has_the_auxiliary_loss():
    for run in STUDIES["drloc-t5"].runs:
        assert run.task.dense.aux == "none"
        assert (run.task.before.aux == "drloc") == ("drloc" in run.name)


def shrink(study: Study, keep: int = 1000) -> Study:
    """Replace the networks and lengths of a study by tiny ones, and keep its tasks."""

    def shrink_task(task: DenseTransferTask) -> DenseTransferTask:
        tiny = {"backbone": NANO, "size": 64, "batch": 2, "width": 16, "loop": QUIET, "epochs": 1, "eval_every": 1}
        if isinstance(task.dense, DetectConfig):
            tiny |= {"shorter": (48, 64), "longest": 64}
        else:
            tiny |= {"test_scales": (1.0,), "annotations": AnnotationConfig()}
        dense, before = replace(task.dense, **tiny), task.before
        if isinstance(before, PretrainConfig):
            before = replace(FIRST, method=before.method, size=16, epochs=1, watch_every=1)
        elif before is not None:
            small = {"size": 32, "batch": 4, "epochs": 1, "loop": QUIET}
            before = replace(scratch(NANO, aux=before.aux == "drloc", batch=4), **small)
        return replace(task, dense=dense, before=before)

    runs = [replace(run, task=shrink_task(run.task)) for run in study.runs if isinstance(run.task, DenseTransferTask)]
    return replace(study, runs=tuple(runs[:keep]))


@pytest.fixture
def made_data(elsewhere, tmp_path):
    root = tmp_path / "data"
    make_coco_folder(root / "coco", {"train": 4, "val": 2})
    make_ade20k(root / "ade20k", {"train": 4, "val": 2})
    make_mask_folder(root / "camvid", {"train": 4, "val": 2, "test": 2})
    for name in ("imagenet100", "imagenet1k", "flowers102"):
        make_folder(root / name, each=4, split="train")
        make_folder(root / name, each=2, split="test", first=50)
    return str(root)


def make_ade20k(root: Path, counts: dict[str, int]) -> Path:
    """Write images, masks and the list of 150 classes as ADE20K distributes them; 0 in a mask is unlabelled."""
    rng = np.random.default_rng(0)
    for split, folder in (("train", "training"), ("val", "validation")):
        for kind in ("images", "annotations"):
            (root / kind / folder).mkdir(parents=True)
        for i in range(1, counts[split] + 1):
            image, mask, _ = draw_scene(rng)
            image.save(root / f"images/{folder}/ADE_{split}_{i:08d}.jpg")
            mask = mask + 1
            mask[-1] = 0
            Image.fromarray(mask).save(root / f"annotations/{folder}/ADE_{split}_{i:08d}.png")
    rows = [f"{c}\t0.01\t100\t10\t0\tname {c}, other name\n" for c in range(1, 151)]
    (root / "objectInfo150.txt").write_text("Idx\tRatio\tTrain\tVal\tStuff\tName\n" + "".join(rows))
    return root


@pytest.mark.parametrize("name", ROWS)
def test_studies_run_through_on_miniatures(name, made_data):
    study = STUDIES[name.split()[0]]
    found = reproduce(shrink(study), made_data, only=ROWS[name])
    assert not found.failed
    rows = found.results["rows"]
    assert all(0 <= row["value"] <= 100 for row in rows)
    assert {row["split"] for row in rows} == {"test" if name == "camvid-dense" else "val"}
    if name == "drloc-t5":  # the two figures share their stages
        assert [stage["shared"] for stage in rows[1]["stages"]] == [True, True]
    for row in rows:
        run = next(run for run in study.runs if run.name == row["run"])
        results = [read_json(Path("runs/stages") / stage["folder"] / "result.json") for stage in row["stages"]]
        config = run.task.dense
        assert results[-1]["method"] == (config.model if isinstance(config, DetectConfig) else "upernet")
        assert results[-1]["categories"] == {"ade20k": 150, "coco": 2}.get(run.data, 3)
        if isinstance(run.task.before, PretrainConfig):
            assert results[0]["method"] == run.task.before.method


def test_where_annotated_data_is_found(tmp_path):
    make_mask_folder(tmp_path / "camvid", {"train": 1, "val": 1})
    place = str(tmp_path / "camvid")
    assert find_data("camvid-masks", tmp_path) == (place, place)
    assert find_data("camvid", tmp_path) == (f"frames:{place}", "")
    assert find_data("coco", tmp_path) is None
    assert "coco.tar" in locations.describe_missing(["coco"], [], Path("data"))[0]
