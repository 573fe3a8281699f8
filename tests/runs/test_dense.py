"""Detection and segmentation end to end on drawn images: train, resume, evaluate, predict."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

import vitling
from tests.made_runs import read, refused
from tests.runs.drawn_scenes import make_coco_folder, make_mask_folder
from tests.tiny import Stop, StopAfter
from vitling.cli import run
from vitling.commands.dense_results import make_dense_table
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.dense.inference import segment_images
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.loading import read_json
from vitling.runs.dense import train_dense
from vitling.runs.group import train_seeds
from vitling.settings.dense import DetectConfig, SegmentConfig
from vitling.settings.facts import Facts
from vitling.settings.names import apply_overrides
from vitling.settings.resolve import resolve
from vitling.training.loop import fit

TINY = {
    "backbone": "vit_nano_patch4_32",
    "size": 64,
    "batch": 4,
    "width": 16,
    "store_size": 64,
    "report": False,
    "loop.trackers": ("none",),
    "loop.device": "cpu",
}


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    return make_mask_folder(tmp_path_factory.mktemp("masks") / "data", {"train": 8, "val": 4, "test": 4})


@pytest.fixture(scope="module")
def segmented(masks, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "segmented"
    changes = TINY | {"epochs": 12, "optim.lr": 3e-3, "report": True, "eval_every": 6, "scale": (0.9, 1.2)}
    return out, train_dense(apply_overrides(SegmentConfig(str(masks), str(out)), changes))


def test_segmentation_learns_and_saves_what_it_found(segmented):
    out, result = segmented
    assert result["last"]["test"]["mean_iou"] > 0.5
    assert result["last"]["test"]["n"] == 4
    assert {"val", "test", "epoch"} <= result["best"].keys()
    rows = read_json(out / "evaluation.json")["last"]["test"]["per_class"]
    assert [row["iou"] is not None for row in rows] == [True, True, True]
    assert (out / "pictures" / "test-worst-1.jpg").exists()
    assert read_json(out / "result.json")["task"] == "segment"


def test_a_saved_segmentation_network_needs_no_training_data(segmented, masks):
    out, result = segmented
    model = vitling.load(str(out))
    again = model.evaluate(str(masks))
    assert again["mean_iou"] == pytest.approx(result["last"]["test"]["mean_iou"])
    prediction, unreadable = model.predict([masks / "test" / "images" / "0.png", np.zeros((0, 3, 3), np.uint8)])
    assert prediction.classes.shape == (48, 64)
    assert unreadable.error
    assert unreadable.classes is None
    assert prediction.draw().width == 64


def test_predict_writes_pictures_and_class_maps(segmented, masks, tmp_path, capsys):
    out, _ = segmented
    assert run(["predict", str(out), str(masks / "test" / "images"), "--out", str(tmp_path / "drawn")]) == 0
    with Image.open(tmp_path / "drawn" / "masks" / "0.png") as image:
        assert image.size == (64, 48)
        assert set(np.unique(image)) <= {0, 1, 2}
    assert (tmp_path / "drawn" / "0.jpg").exists()
    assert "Saved 4 pictures" in capsys.readouterr().out


def test_evaluate_prints_the_classes(segmented, masks, capsys):
    out, _ = segmented
    assert run(["evaluate", str(out), str(masks), "--split", "val"]) == 0
    assert "mIoU" in capsys.readouterr().out
    assert run(["evaluate", str(out), str(masks), "--with", "knn"]) == 2


def test_multi_scale_testing_reaches_evaluation_and_prediction(masks, tmp_path, monkeypatch):
    calls = []

    def record(objective, store, view, scales, flip):
        calls.append((scales, flip))
        return segment_images(objective, store, view, scales, flip)

    def collect() -> set:
        found = set(calls)
        calls.clear()
        return found

    monkeypatch.setattr("vitling.runs.dense_model.segment_images", record)
    out, expected = str(tmp_path / "run"), {((0.5, 1.5), True)}
    changes = TINY | {"epochs": 1, "test_scales": (0.5, 1.5), "test_flip": True}
    train_dense(apply_overrides(SegmentConfig(str(masks), out), changes))
    assert collect() == expected
    assert run(["evaluate", out, str(masks)]) == 0
    assert collect() == expected
    assert run(["predict", out, str(masks / "test" / "images"), "--out", str(tmp_path / "drawn")]) == 0
    assert collect() == expected
    vitling.load(out).predict([masks / "test" / "images" / "0.png"])
    assert collect() == expected


def test_a_run_continues_where_it_stopped(masks, tmp_path, monkeypatch):
    changes = TINY | {"epochs": 2}
    whole = train_dense(apply_overrides(SegmentConfig(str(masks), str(tmp_path / "whole")), changes))

    def stop_after_one(objective, store, config, watchers, **more):
        return fit(objective, store, config, [StopAfter(1), *watchers], **more)

    monkeypatch.setattr("vitling.runs.dense.fit", stop_after_one)
    often = apply_overrides(
        SegmentConfig(str(masks), str(tmp_path / "cut")), changes | {"checkpoint.every_seconds": 0.0}
    )
    with pytest.raises(Stop):
        train_dense(often)
    monkeypatch.undo()
    resumed = train_dense(SegmentConfig(out=str(tmp_path / "cut"), resume=True))
    assert resumed["last"]["test"] == whole["last"]["test"]


def test_detection_starts_from_a_segmentation_run(segmented, tmp_path):
    out, _ = segmented
    data = make_coco_folder(tmp_path / "coco", {"train": 4, "val": 2})
    changes = TINY | {"epochs": 1, "backbone": None, "jitter": "large", "copy_paste": 0.5, "report": True}
    config = apply_overrides(DetectConfig(str(data), str(tmp_path / "boxes"), from_=str(out)), changes)
    result = train_dense(config)
    assert result["backbone"] == "vit_nano_patch4_32"
    assert result["method"] == "mask-rcnn"
    assert {"n", "box_ap_small", "mask_ap_small"} <= result["last"]["val"].keys()
    assert "mask AP, small objects" in (tmp_path / "boxes/report.html").read_text()
    log = (tmp_path / "boxes" / "log.txt").read_text()
    assert "Started from" in log
    assert "Plan" in log
    assert run(["predict", str(tmp_path / "boxes"), str(data / "val2017"), "--out", str(tmp_path / "drawn")]) == 0
    assert isinstance(json.loads((tmp_path / "drawn" / "detections.json").read_text()), list)


def test_ap_by_size_is_one_line_of_the_table():
    found = {"n": 5, "box_ap": 0.4, "box_ap50": 0.7, "box_ap75": 0.3, "box_ap_small": 0.123, "box_ap_large": 0.5}
    masks = {"mask_ap": 0.3, "mask_ap50": 0.6, "mask_ap75": 0.2, "mask_ap_medium": 0.25}
    boxes, both = (print_table([("last (9)", "val", some)]) for some in (found, found | masks))
    assert boxes[-2].split("│")[1:3] == [" box AP S/M/L ", " 12.3 / - / 50.0 "]
    assert both[-2].split("│")[1:3] == [" mask AP S/M/L ", "    - / 25.0 / - "]
    many = print_table([("best (100)", "test", found | {"box_ap_medium": 0.9})] * 4)
    assert "…" not in "".join(many)
    assert len(many[-2]) <= 80


def print_table(rows: list) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(make_dense_table(rows))
    return console.file.getvalue().splitlines()


def test_copy_paste_needs_masks(tmp_path):
    data = make_coco_folder(tmp_path / "coco", {"train": 4})
    changes = TINY | {"epochs": 1, "val": "none", "masks": False, "copy_paste": 0.5}
    with pytest.raises(UserError, match="needs masks"):
        train_dense(apply_overrides(DetectConfig(str(data), str(tmp_path / "boxes")), changes))


def test_predict_replaces_no_input(segmented, masks, tmp_path, capsys):
    photo = tmp_path / "photos" / "0.jpg"
    photo.parent.mkdir()
    Image.open(masks / "test" / "images" / "0.png").convert("RGB").save(photo)
    before = photo.read_bytes()
    assert run(["predict", str(segmented[0]), str(photo), "--out", str(photo.parent)]) == 2
    assert "would replace" in capsys.readouterr().err
    other = str(masks / "test" / "images" / "0.png")  # another image of the same name
    assert run(["predict", str(segmented[0]), other, "--out", str(photo.parent)]) == 2
    assert "which vitling did not write" in capsys.readouterr().err
    for _ in range(2):
        assert run(["predict", str(segmented[0]), other, "--out", str(tmp_path / "drawn")]) == 0
    assert photo.read_bytes() == before


def test_predict_without_out_says_what_to_type(segmented, masks, capsys):
    assert run(["predict", str(segmented[0]), str(masks)]) == 2
    assert "--out DIR" in capsys.readouterr().err


def test_compare_is_for_classifiers(segmented, tmp_path, capsys):
    shutil.copytree(segmented[0], tmp_path / "other")
    assert "compare is for classifiers" in refused(capsys, "compare", segmented[0], tmp_path / "other")


def test_minutes_limit_the_epochs(masks, tmp_path):
    changes = TINY | {"epochs": 100_000, "minutes": 0.1}
    result = train_dense(apply_overrides(SegmentConfig(str(masks), str(tmp_path / "run")), changes))
    assert 1 <= result["epochs"] < 10_000
    assert "Measuring the pace" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize(("verb", "flag"), [("detect", "longest"), ("segment", "test_scales")])
def test_the_plan_has_a_reason_for_everything(verb, flag):
    config = (DetectConfig if verb == "detect" else SegmentConfig)("data", "run")
    resolved = resolve(config, Facts(100, side=640))
    assert resolved.origins[flag].reason
    assert [name for name, origin in resolved.origins.items() if origin.layer == "plan" and not origin.reason] == []


def test_a_dense_model_is_no_classifier(segmented):
    with pytest.raises(UserError, match="vitling segment"):
        load(segmented[0])


def test_frames_of_annotated_data_are_images_without_masks(masks):
    splits = read_splits(f"frames:{masks}", DataConfig())
    assert (len(splits.train), splits.train.labels) == (8, None)
    assert not any("masks" in key for key in splits.train.keys)


def test_frames_of_data_with_boxes_only(tmp_path):
    folder = make_coco_folder(tmp_path / "boxes", {"train": 3, "val": 2}, masks=False)
    splits = read_splits(f"frames:{folder}", DataConfig())
    assert (len(splits.train), len(splits.val or ())) == (3, 2)


def test_the_report_shows_classes_and_worst_images(segmented):
    page = (segmented[0] / "report.html").read_text()
    assert "Classes and worst images" in page
    assert "mean IoU" in page
    assert page.count("data:image/jpeg") == 4  # of val
    assert "report could not be written" not in (segmented[0] / "log.txt").read_text()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("evaluation.json", '"class":', '"klass":'),
        ("evaluation.json", '"accuracy":', '"accuracy": [], "other":'),
        ("result.json", '"mean_iou":', '"mean_iou": "x", "other":'),
    ],
)
def test_damaged_figures_are_named(segmented, tmp_path, capsys, file, old, new):
    folder = tmp_path / "run"
    shutil.copytree(segmented[0], folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    assert run(["report", str(folder)]) == 2
    assert file in capsys.readouterr().err


def test_weights_that_are_too_large_are_named(segmented, masks, tmp_path, capsys):
    shutil.copytree(segmented[0] / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    name = next(name for name, value in weights.items() if "backbone" in name and value.ndim > 1)
    weights[name] = torch.full_like(weights[name], 3e38)
    save_file(weights, tmp_path / "model/model.safetensors")
    assert "not finite" in refused(capsys, "predict", tmp_path / "model", masks, "--out", tmp_path / "out")


def test_explain_refuses_settings_out_of_range(segmented, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    changed = read_json(segmented[0] / "config.json") | {"size": -1}
    (tmp_path / "run/config.json").write_text(json.dumps(changed))
    assert "size" in refused(capsys, "segment", "--out", tmp_path / "run", "--resume", "--explain")


def test_explain_prints_the_plan_without_training(masks, tmp_path, capsys):
    assert run(["segment", str(masks), "--out", str(tmp_path / "run"), "--explain", "--loop.device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "--freeze" in printed
    assert "--test-scales" in printed
    assert "--drloc" not in printed
    assert not (tmp_path / "run").exists()


def test_several_seeds_are_summarised(masks, tmp_path):
    config = apply_overrides(SegmentConfig(str(masks), str(tmp_path / "group"), seeds=2), TINY | {"epochs": 1})
    summary = train_seeds(config, train_dense)
    assert len(summary["scores"]["last test mean_iou"]["values"]) == 2


@pytest.mark.parametrize("verb", ["detect", "segment"])
def test_wrong_input_is_named(verb, tmp_path, capsys):
    assert run([verb, str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")]) == 2
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run([verb, str(tmp_path / "empty"), "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_boxes_without_masks_are_enough(tmp_path):
    data = make_coco_folder(tmp_path / "coco", {"train": 4, "val": 2}, masks=False)
    result = train_dense(apply_overrides(DetectConfig(str(data), str(tmp_path / "boxes")), TINY | {"epochs": 1}))
    assert "mask_ap" not in result["last"]["val"]
    pasted = apply_overrides(DetectConfig(str(data), str(tmp_path / "pasted")), TINY | {"copy_paste": 0.5})
    with pytest.raises(UserError, match="needs masks"):
        train_dense(pasted)


def test_boxes_whose_mask_is_missing_count_without_masks(tmp_path):
    data = make_coco_folder(tmp_path / "coco", {"train": 4, "val": 2})
    file = data / "annotations/instances_val2017.json"
    content = read_json(file)
    content["annotations"][0]["segmentation"] = []
    file.write_text(json.dumps(content))
    out = tmp_path / "boxes"
    train_dense(apply_overrides(DetectConfig(str(data), str(out)), TINY | {"epochs": 1, "masks": False}))
    assert "no mask" not in (out / "log.txt").read_text()
    assert run(["evaluate", str(out), str(data), "--split", "val", "--out", str(tmp_path / "scores.json")]) == 0
    assert "mask_ap" not in read_json(tmp_path / "scores.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("task", "classify"), ("size", 0), ("width", "wide"), ("mean", [0.5]), ("class_names", []), ("masks", None)],
)
def test_a_damaged_description_is_named(segmented, tmp_path, key, value):
    folder = tmp_path / "model"
    shutil.copytree(segmented[0] / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    config["vitling"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="model"):
        vitling.load(str(folder))


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1000.0])
def test_absurd_scales_of_a_model_are_refused(segmented, tmp_path, capsys, scale):
    run = shutil.copytree(segmented[0], tmp_path / "run")
    config = read(run / "model/config.json")
    config["vitling"]["scales"] = [scale]
    (run / "model/config.json").write_text(json.dumps(config))
    assert "scales" in refused(capsys, "predict", run, tmp_path, "--out", tmp_path / "drawn")
