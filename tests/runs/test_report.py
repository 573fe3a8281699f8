"""`vitling report`: what it collects from run directories."""

from __future__ import annotations

import base64
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_folder
from tests.made_runs import PRETRAIN_TINY, TINY, lines, make_folder_with_pool, read, refused
from vitling.backbones.backbone import create
from vitling.cli import run
from vitling.evaluation.model import Model
from vitling.evaluation.projection import project
from vitling.runs import report, report_matches
from vitling.runs.report import collect, shorten_names
from vitling.runs.report_files import open_files
from vitling.runs.report_images import Limits, RunImages, measure_reliability
from vitling.runs.report_matches import _render_pairs, match_views

LIMITS = Limits()


def train(verb: str, source: Path, out: Path, *flags: str) -> int:
    """Train a tiny network, with its report."""
    tiny = [flag for flag in (TINY if verb == "train" else PRETRAIN_TINY) if flag != "--no-report"]
    return run([verb, str(source), "--out", str(out), *tiny, "--epochs", "2", *flags])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Train for two epochs, with a hold-out."""
    root = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train("train", make_folder(root / "images"), root / "run", "--val", "0.3", "--size", "16") == 0
    return root / "run"


def test_scores_settings_and_curves_are_those_of_the_files(finished):
    found, result = collect(open_files("first", finished), LIMITS), read(finished / "result.json")
    assert found.headline.value == result["last"]["val"]["top1"]
    assert found.headline.images == result["last"]["val"]["n"] == 9
    assert found.headline.interval[0] <= found.headline.value <= found.headline.interval[1]
    assert [score.weights for score in found.scores] == ["last epoch", "best epoch on val"]
    origins = {setting.flag: setting.origin for stage in found.stages for setting in stage.settings}
    assert origins["epochs"] == "explicit"
    assert "idmm.smoothing" not in origins
    curves = {curve.name: curve for curve in found.curves}
    assert curves["loss"].epochs == (1, 2)
    assert curves["val/top1"].values[-1] == result["last"]["val"]["top1"]
    assert found.class_names == ("class-0", "class-1", "class-2")
    assert sum(map(sum, found.errors.confusion)) == 9
    assert json.loads(found.origin.config) == read(finished / "config.json")


def test_command_writes_the_page(finished, tmp_path, capsys):
    assert run(["report", str(finished), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"Saved to {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_unfinished_and_other_folders_are_refused(finished, tmp_path, capsys):
    assert "is not a run" in refused(capsys, "report", tmp_path)
    assert "does not exist" in refused(capsys, "report", tmp_path / "nowhere")
    assert f"is a model folder. Pass the run, {finished}" in refused(capsys, "report", finished / "model")
    (tmp_path / "half").mkdir()
    for name in ("config.json", "environment.json"):
        (tmp_path / "half" / name).write_bytes((finished / name).read_bytes())
    assert "has not finished" in refused(capsys, "report", tmp_path / "half")
    (tmp_path / "half" / "result.json").write_text("[")
    assert "not valid JSON" in refused(capsys, "report", tmp_path / "half")


def test_a_confusion_matrix_of_another_size_is_named(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    evaluation = read(finished / "evaluation.json")
    evaluation["last"]["val"]["confusion"].append([0, 0, 0])
    (tmp_path / "run/evaluation.json").write_text(json.dumps(evaluation))
    assert run(["report", str(tmp_path / "run")]) == 2
    assert "evaluation.json: expected a confusion matrix of 3 by 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        ("result.json", ["seconds"], float("nan")),
        ("result.json", ["seconds"], float("inf")),
        ("result.json", ["last", "val", "top1"], 1.5),
        ("result.json", ["last", "val", "top1"], float("nan")),
        ("result.json", ["last", "val", "n"], -3),
        ("config.json", ["size"], -1),
        ("config.json", ["store_size"], 2**40),
        ("config.json", ["data", "channels"], -1),
    ],
)
def test_impossible_numbers_are_named(finished, tmp_path, capsys, file, keys, value):
    shutil.copytree(finished, tmp_path / "run")
    content = read(finished / file)
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "run" / file).write_text(json.dumps(content))
    message = refused(capsys, "report", tmp_path / "run")
    assert file in message
    assert keys[-1] in message


def test_a_path_with_a_nul_is_named(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    content = read(finished / "config.json") | {"labels": "\0"}
    (tmp_path / "run/config.json").write_text(json.dumps(content))
    assert run(["report", str(tmp_path / "run")]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_data_with_other_classes_than_the_run_are_left_out(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    content = read(finished / "config.json")
    make_folder(tmp_path / "more", classes=4)
    (tmp_path / "run/config.json").write_text(json.dumps(content | {"source": str(tmp_path / "more")}))
    found = collect(open_files("first", tmp_path / "run"), LIMITS)
    assert any("other classes than the run" in warning for warning in found.warnings)
    assert len(found.class_names) == 3


def test_names_are_short_and_different(tmp_path):
    a, b = tmp_path / "x" / "run", tmp_path / "y" / "run"
    assert shorten_names([a, b]) == ["x/run", "y/run"]
    assert shorten_names([a]) == [str(a)]


def test_run_ends_with_its_report(finished):
    page = (finished / "report.html").read_text()
    sections = ("answer", "curves", "map", "errors", "attention", "matches", "views")
    assert all(f'<section id="{name}"' in page for name in sections)
    assert "could not be written" not in (finished / "log.txt").read_text()


def test_map_has_the_images_of_val_with_their_predictions(finished):
    found = collect(open_files("first", finished), LIMITS)
    images, evaluation = found.images, read(finished / "evaluation.json")["last"]["val"]
    assert images.split == "val"
    assert images.total == len(images.keys) == len(images.pca) == 9
    confusion = np.zeros((3, 3), int)
    np.add.at(confusion, (list(images.labels), list(images.predicted)), 1)
    assert confusion.tolist() == evaluation["confusion"]
    assert [images.confidence[i] for i in images.mistakes] == sorted(
        (images.confidence[i] for i in images.mistakes), reverse=True
    )
    assert found.errors.reliability[-1].error == pytest.approx(evaluation["calibration_error"], abs=1e-5)
    assert all(len(set(row)) == 6 for row in images.neighbours)
    assert min(images.tiles) == 0
    assert len({*images.tiles, *images.training.tiles}) == len(images.keys) + len(images.training.keys)


def test_neighbours_are_the_nearest_by_cosine(finished):
    images = RunImages(open_files("first", finished), LIMITS)
    found = report.make_map(images)
    bank, queries = (images._compute_features(store).double().numpy() for store in (images.training, images.shown))
    for row, query in enumerate(queries):
        cosine = [float(b @ query / np.linalg.norm(b) / np.linalg.norm(query)) for b in bank]
        nearest = sorted(range(len(bank)), key=lambda i: -cosine[i])[:2]
        names = [found.training.keys[i] for i in found.neighbours[row][:2]]
        assert names == [images.training.dataset.keys[i] for i in nearest]


def test_attention_has_a_map_for_each_patch_and_head(finished):
    one = collect(open_files("first", finished), LIMITS).attention[0]
    weights = np.frombuffer(base64.b64decode(one.weights), np.uint8).reshape(one.heads, *one.grid, *one.keys)
    assert one.grid == (4, 4)
    assert (weights.max(axis=(3, 4)) == 255).all()


def test_regions_are_matched_by_the_cosine_of_the_last_map(finished):
    """Compared with a literal computation from the pixels of the two views."""
    images = RunImages(open_files("first", finished), LIMITS)
    (one, again), (same, _) = (match_views(images, [2, 5]) for _ in range(2))
    assert one == same
    assert one.name == images.shown.dataset.keys[2]
    assert one.grid == (4, 4)
    assert one.pictures[0] != one.pictures[1] != again.pictures[1]
    views = _render_pairs(images, np.array([2, 5]))
    with torch.inference_mode():
        a, b = (images.model.backbone(view.pixels).grid[0].flatten(1).T.double().numpy() for view in views)
    found = np.frombuffer(base64.b64decode(one.similarities), np.int8).reshape(16, 16)
    for i, mine in enumerate(a):
        cosines = [float(mine @ other / np.linalg.norm(mine) / np.linalg.norm(other)) for other in b]
        np.testing.assert_allclose(found[i] / 100, cosines, atol=0.00501)
        assert one.nearest[i] == int(np.argmax(cosines))


def test_a_match_is_right_next_to_the_place_of_its_patch(finished):
    images = RunImages(open_files("first", finished), LIMITS)
    found = match_views(images, list(range(9)))
    verdicts = [verdict for one in found for verdict in one.same_place]
    assert {True, False, None} == set(verdicts)
    for one in found:
        left, width, top, height = one.shift
        nearby = 0
        for region, (match, verdict) in enumerate(zip(one.nearest, one.same_place)):
            x, y = left + width * (region % 4 + 0.5) / 4, top + height * (region // 4 + 0.5) / 4
            assert (verdict is None) == (not (0 <= x <= 1 and 0 <= y <= 1))
            if verdict is not None:  # less than a region away; the place may lie outside of the outermost centres
                x, y = (min(max(at, 1 / 8), 7 / 8) for at in (x, y))
                away = [max(abs(x - (m % 4 + 0.5) / 4), abs(y - (m // 4 + 0.5) / 4)) for m in range(16)]
                assert verdict == (away[match] < 1 / 4)
                nearby += sum(one < 1 / 4 for one in away)
        assert one.by_chance == pytest.approx(nearby / 16, abs=0.051)


def test_matches_are_few_and_large_maps_are_thinned_out(finished, monkeypatch):
    files = open_files("first", finished)
    assert len(match_views(RunImages(files, replace(LIMITS, matches=600)), [0, 1, 2])) == 2
    monkeypatch.setattr(report_matches, "LARGEST_GRID", 3)
    (one,) = match_views(RunImages(files, LIMITS), [0])
    assert one.grid == (2, 2)
    assert len(one.same_place) == 4
    monkeypatch.setattr(report_matches, "SMALLEST_GRID", 5)
    assert match_views(RunImages(files, LIMITS), [0]) == ()


def test_views_that_move_content_have_no_known_places(finished):
    files = open_files("first", finished)
    files.config_values["views"] = files.config_values["views"] | {"rotate": 10.0}
    (one,) = match_views(RunImages(files, LIMITS), [0])
    assert one.same_place == one.shift == ()
    assert len(one.nearest) == 16


@pytest.mark.parametrize("backbone", ["pvt_v2_b0_small", "swin_tiny_patch4_window7_224", "resnet10t"])
def test_networks_without_tokens_have_matches_too(finished, backbone):
    images = RunImages(open_files("first", finished), LIMITS)
    images.model = Model(create(backbone, 128, seed=0), None, replace(images.model.meta, size=128))
    (one,) = match_views(images, [0])
    assert one.grid == (4, 4)
    assert len(one.nearest) == len(one.same_place) == 16


def test_limits_are_kept_and_mistakes_come_first(finished):
    full = collect(open_files("first", finished), LIMITS).images
    wrong = {full.keys[i] for i in full.mistakes}
    few = collect(open_files("first", finished), replace(LIMITS, images=max(2, len(wrong)), training=5)).images
    assert few.total == 9
    assert wrong <= set(few.keys)
    assert len(few.training.keys) <= 5


def test_calibration_is_measured_on_whole_splits_only(finished):
    """A part shows the mistakes first, so its calibration error would be that of a worse network."""
    assert measure_reliability(RunImages(open_files("first", finished), LIMITS))
    assert not measure_reliability(RunImages(open_files("first", finished), replace(LIMITS, images=8)))


def test_limits_follow_the_time():
    assert LIMITS.fit(1e6, 1000) == LIMITS
    short = LIMITS.fit(4, 50)
    assert short.images + short.training <= 0.5 * 4 * 3 * 50
    assert short.tsne < 300


def test_components_are_those_of_a_singular_value_decomposition():
    features = np.random.default_rng(0).normal(size=(30, 8))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    _, _, vectors = np.linalg.svd(unit - unit.mean(axis=0))
    expected = (unit - unit.mean(axis=0)) @ vectors[:2].T
    np.testing.assert_allclose(np.abs(project(features)[:, :2]), np.abs(expected), atol=1e-10)


def test_without_its_images_a_run_has_fewer_sections(finished, tmp_path):
    files = open_files("first", finished)
    files.config_values["source"] = str(tmp_path / "gone")
    found = collect(files, LIMITS)
    assert found.images is None
    assert "left out" in found.warnings[-1]
    assert found.headline is not None


def test_a_report_that_fails_does_not_fail_the_run(folder, tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("no room")

    monkeypatch.setattr(report, "write_page", fail)
    assert train("train", folder, tmp_path / "run", "--val", "0.3") == 0
    assert (tmp_path / "run" / "result.json").exists()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "The report could not be written (RuntimeError: no room). Try: vitling report" in log


def test_a_signal_during_the_report_is_obeyed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *args: signal.raise_signal(signal.SIGTERM))
    assert train("train", folder, tmp_path / "run", "--val", "0.3") == 143
    assert (tmp_path / "run" / "result.json").exists()
    assert "could not be written" not in (tmp_path / "run" / "log.txt").read_text()
    monkeypatch.undo()
    assert train("train", folder, tmp_path / "run", "--val", "0.3", "--resume") == 0
    written = (tmp_path / "run" / "report.html").stat().st_mtime_ns
    assert train("train", folder, tmp_path / "run", "--val", "0.3", "--resume") == 0
    assert (tmp_path / "run" / "report.html").stat().st_mtime_ns == written


def test_without_memory_for_the_images_the_page_has_the_rest(finished, monkeypatch):
    def fail(images):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(report, "make_map", fail)
    found = collect(open_files("first", finished), LIMITS)
    assert found.images is None
    assert "Sections with images are left out: out of memory." in found.warnings


def test_pretraining_shows_its_training_images(tmp_path):
    """The test split stays closed, and images without a label have no class."""
    assert train("pretrain", make_folder_with_pool(tmp_path / "data"), tmp_path / "run") == 0
    assert (tmp_path / "run" / "report.html").exists()
    found = collect(open_files("pre", tmp_path / "run"), LIMITS)
    assert found.headline is None
    assert found.images.split == "train"
    assert found.images.predicted == ()
    assert sorted(set(found.images.labels)) == [-1, 0, 1]
    assert not found.errors
    again = ["--from", str(tmp_path / "run"), "--no-report"]
    assert train("pretrain", tmp_path / "data", tmp_path / "second", *again) == 0
    assert [stage.folder for _, stage in open_files("second", tmp_path / "second").stages] == [tmp_path / "second"]


def test_test_split_is_opened_once_by_the_run_and_logged_by_the_command(tmp_path):
    for split in ("train", "test"):
        make_folder(tmp_path / "data", each=4, split=split, first=4 * (split == "test"))
    out = tmp_path / "run"
    assert train("train", tmp_path / "data", out, "--val", "none") == 0
    assert len(lines(out / "test-openings.jsonl")) == 1
    assert run(["report", str(out)]) == 0
    assert [line["why"] for line in lines(out / "test-openings.jsonl")][1:] == ["report"]
    assert ": report</" in (out / "report.html").read_text()
    assert collect(open_files("first", out), LIMITS).images.split == "test"


def test_several_labels_per_image_have_no_confusion_matrix(folder, tmp_path):
    names = sorted(str(path.relative_to(tmp_path)) for path in folder.rglob("*.png"))
    rows = [f"{name},{'x|y' if i % 3 else 'x'}" for i, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    assert train("train", tmp_path / "labels.csv", tmp_path / "run", "--val", "0.3") == 0
    found = collect(open_files("first", tmp_path / "run"), LIMITS)
    assert found.headline.metric == "mean average precision"
    assert found.headline.interval is None
    assert set(found.images.texts) <= {"x, y", "x"}
    assert found.images.predicted == found.images.mistakes == found.errors.confusion == ()
    assert 'id="errors"' in (tmp_path / "run" / "report.html").read_text()


def test_corrected_labels_are_those_of_the_run(folder, tmp_path):
    (tmp_path / "fixed.csv").write_text("path,label\nclass-0/image-00.png,drop\nclass-0/image-01.png,class-2\n")
    out = tmp_path / "run"
    assert train("train", folder, out, "--val", "none", "--labels", str(tmp_path / "fixed.csv"), "--no-report") == 0
    images = collect(open_files("first", out), LIMITS).images
    labels = dict(zip(images.keys, images.labels))
    assert "class-0/image-00.png" not in labels
    assert labels["class-0/image-01.png"] == 2
    (tmp_path / "fixed.csv").write_text("path,label\n")
    found = collect(open_files("first", out), LIMITS)
    assert found.images is None
    assert "fixed.csv has changed since" in found.warnings[-1]


def test_two_stages_and_several_runs(folder, tmp_path):
    flags = ("--method", "idmm", "--pretrain-epochs", "2", "--val", "0.3", "--no-report")
    for seed in ("0", "1"):
        assert train("train", folder, tmp_path / f"run{seed}", *flags, "--seed", seed) == 0
    assert run(["report", str(tmp_path / "run0"), str(tmp_path / "run1"), "--out", str(tmp_path / "both.html")]) == 0
    assert not (tmp_path / "run0" / "report.html").exists()
    page = (tmp_path / "both.html").read_text()
    assert '<option value="1">run1</option>' in page
    found = collect(open_files("run0", tmp_path / "run0"), LIMITS)
    assert [stage.title for stage in found.stages] == ["First stage", "Second stage"]
    assert [picture.title for picture in found.views] == ["First stage", "Second stage"]
    assert {curve.stage for curve in found.curves} == {"First stage", "Second stage"}
