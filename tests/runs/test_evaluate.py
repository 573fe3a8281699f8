"""The commands that use a finished run: evaluate, predict, embed, export."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch

import vitling
from tests.conftest import make_folder
from tests.made_runs import lines, read, refused, train
from vitling.cli import run
from vitling.files import write_json
from vitling.runs.evaluate import was_trained_on


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learnt three classes of stripes."""
    root = tmp_path_factory.mktemp("trained")
    source = make_folder(root / "images", each=30)
    flags = ["--size", "16", "--epochs", "10", "--optim.lr", "1e-3", "--views.scale", "0.5", "1", "--views.mix-prob"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(source, root / "run", *flags, "0", "--views.erase", "0") == 0
    return root / "run"


@pytest.fixture
def fresh(tmp_path):
    """Labelled images that the run has not seen, as a test split beside a train split."""
    make_folder(tmp_path / "new", each=4, split="train", first=200)
    return make_folder(tmp_path / "new", each=8, split="test", first=100)


def test_auto_takes_the_test_split_and_logs_it(trained, fresh, tmp_path, capsys):
    openings = trained / "test-openings.jsonl"
    before = len(lines(openings)) if openings.exists() else 0
    assert run(["evaluate", str(trained), str(fresh), "--out", str(tmp_path / "found.json")]) == 0
    found = read(tmp_path / "found.json")
    assert (found["split"], found["n"], found["weights"]) == ("test", 24, "last")
    assert found["top1"] > 0.8
    assert [sum(row) for row in found["confusion"]] == [8, 8, 8]
    shown = capsys.readouterr().out
    assert f"{found['top1']:.2%}" in shown
    assert "class-2" in shown
    after = lines(openings)
    assert len(after) == before + 1
    assert str(fresh) in after[-1]["why"]


def test_evaluates_at_another_size(trained, fresh, tmp_path, capsys):
    found = {}
    for size in ("16", "24", None):
        out = tmp_path / f"{size}.json"
        assert run(["evaluate", str(trained), str(fresh), *(["--size", size] if size else []), "--out", str(out)]) == 0
        found[size] = read(out)
    assert [found[size]["size"] for size in ("16", "24", None)] == [16, 24, 16]
    assert found["16"] == found[None]
    assert found["24"]["top1"] > 0.5
    assert found["24"]["log_loss"] != found["16"]["log_loss"]
    for size, word in (("18", "patches of 4 px"), ("0", "at least 1")):
        assert word in refused(capsys, "evaluate", trained, fresh, "--size", size)


def test_larger_size_decodes_larger_images(trained):
    model = vitling.load(trained)
    assert model.resize(64).meta.store_size >= 64 / model.meta.crop_fraction
    assert model.resize(8).meta.store_size == model.meta.store_size
    assert model.resize(64).backbone is model.backbone


def test_a_named_split_and_the_best_weights(trained, fresh, tmp_path):
    arguments = ["--split", "train", "--weights", "best", "--out", str(tmp_path / "found.json")]
    assert run(["evaluate", str(trained), str(fresh), *arguments]) == 0
    found = read(tmp_path / "found.json")
    assert (found["split"], found["n"], found["weights"]) == ("train", 12, "best")


def test_classes_are_matched_by_name(trained, fresh, tmp_path):
    """Without class-0 the data's class numbers differ from the model's."""
    run(["evaluate", str(trained), str(fresh), "--out", str(tmp_path / "all.json")])
    for split in ("train", "test"):
        (fresh / split / "class-0").rename(tmp_path / split)
    assert run(["evaluate", str(trained), str(fresh), "--out", str(tmp_path / "two.json")]) == 0
    everything, two = read(tmp_path / "all.json"), read(tmp_path / "two.json")
    assert two["n"] == 16
    assert two["confusion"][1:] == everything["confusion"][1:]


def test_a_test_split_alone_is_enough(trained, fresh, tmp_path):
    shutil.rmtree(fresh / "train")
    assert run(["evaluate", str(trained), str(fresh), "--out", str(tmp_path / "found.json")]) == 0
    assert (read(tmp_path / "found.json")["split"], read(tmp_path / "found.json")["n"]) == ("test", 24)
    assert run(["embed", str(trained), str(fresh), "--out", str(tmp_path / "f.npz")]) == 0
    assert set(np.load(tmp_path / "f.npz")["split"]) == {"test"}
    assert run(["inspect", str(fresh), "--out", str(tmp_path / "inspection.json")]) == 0
    assert read(tmp_path / "inspection.json")["splits"]["test"]["images"] == 24


def test_unknown_class_is_refused(trained, fresh, capsys):
    for split in ("train", "test"):
        (fresh / split / "class-2").rename(fresh / split / "zebra")
    message = refused(capsys, "evaluate", trained, fresh)
    assert "zebra" in message
    assert "class-2" in message


def test_evaluating_on_training_images_is_a_warning(trained, capsys):
    assert run(["evaluate", str(trained), str(trained.parent / "images")]) == 0
    assert "trained on these images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["{run}", "{data}", "--split", "val"], "no val split"),
        (["{run}", "no/such/data"], "does not exist"),
        (["no/such/run", "{data}"], "no/such/run"),
        (["{data}", "{data}"], "no trained model"),
        (["{run}", "{data}", "--device", "toaster"], "toaster"),
        (["{run}", "{data}/test/class-0"], "no labels"),
        (["{run}", "--with", "knn"], "Missing: DATA"),
        (["{run}", "--with", "knn", "linear"], "Missing: DATA"),
    ],
)
def test_evaluate_refuses_wrong_input(trained, fresh, capsys, arguments, word):
    given = [argument.format(run=trained, data=fresh) for argument in arguments]
    assert word in refused(capsys, "evaluate", *given)


def test_predict_table_names_broken_files(trained, fresh, capsys):
    (fresh / "test" / "class-0" / "zzz.png").write_bytes(b"")
    assert run(["predict", str(trained), str(fresh / "test" / "class-0")]) == 0
    shown = capsys.readouterr().out
    assert "cannot be read" in shown
    assert "empty file" in shown
    assert shown.count("class-0/image-") == 8
    assert max(map(len, shown.splitlines())) <= 80


def test_predict_csv_is_correct_and_sorted_by_probability(trained, fresh, tmp_path, capsys):
    out = tmp_path / "answers.csv"
    arguments = [str(fresh / "test" / "*" / "*.png"), "--format", "csv", "--top", "2", "--out", str(out)]
    assert run(["predict", str(trained), *arguments]) == 0
    assert str(out) in capsys.readouterr().out
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 24
    assert sum(row["answer"] in row["file"] for row in rows) >= 20
    assert all(float(row["probability_1"]) >= float(row["probability_2"]) for row in rows)
    assert "class_3" not in rows[0]


def test_predict_abstains_below_a_probability(trained, fresh, capsys):
    image = str(fresh / "test" / "class-1" / "image-100.png")
    assert run(["predict", str(trained), image, "--format", "json", "--abstain", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["answer"] == "(unsure)"
    assert run(["predict", str(trained), image, "--format", "json", "--abstain", "0"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["answer"] == row["top"][0]["class"] == "class-1"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "Missing: IMAGES"),
        (["no/such/*.png"], "no images"),
        (["{data}", "--abstain", "2"], "--abstain"),
        (["{data}", "--top", "0"], "--top"),
        (["{data}", "--out", "/proc/nowhere/x.csv"], "cannot be written"),
    ],
)
def test_predict_refuses_wrong_input(trained, fresh, capsys, arguments, word):
    assert word in refused(capsys, "predict", trained, *(a.format(data=fresh) for a in arguments))


def test_embed_writes_a_data_set_as_npz_and_logs_the_opening(trained, fresh, tmp_path):
    assert run(["embed", str(trained), str(fresh), "--out", str(tmp_path / "f.npz")]) == 0
    written = np.load(tmp_path / "f.npz")
    assert written["embeddings"].shape == (36, 128)
    assert (written["split"] == "test").sum() == 24
    assert written["class_names"].tolist() == ["class-0", "class-1", "class-2"]
    assert lines(trained / "test-openings.jsonl")[-1]["why"] == "embed"
    one = vitling.load(trained).embed(fresh / written["keys"][-1])
    assert np.allclose(written["embeddings"][-1], one, atol=1e-5)


def test_embed_writes_loose_images_as_parquet(trained, fresh, tmp_path, capsys):
    """Rows match their files over several batches with a broken file."""
    folder = make_folder(tmp_path / "many", classes=1, each=70) / "class-0"
    (folder / "image-10.png").write_bytes(b"")
    files = [str(folder / "*.png"), str(fresh / "test" / "class-1" / "image-100.png")]
    assert run(["embed", str(trained), *files, "--out", str(tmp_path / "f.parquet")]) == 0
    assert "image-10.png: empty file" in capsys.readouterr().err
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    assert len(table["key"]) == 70
    for row in (0, 12, 69):
        assert np.allclose(table["embedding"][row], vitling.load(trained).embed(table["key"][row]), atol=1e-5)


def test_embed_refuses_other_suffixes_and_no_images(trained, fresh, tmp_path, capsys):
    assert ".npz or .parquet" in refused(capsys, "embed", trained, fresh, "--out", tmp_path / "f.txt")
    assert "Missing: IMAGES" in refused(capsys, "embed", trained, "--out", tmp_path / "f.npz")
    assert "--out" in refused(capsys, "embed", trained, fresh)


def test_timm_loads_exported_models(trained, tmp_path, capsys):
    assert run(["export", str(trained), "--out", str(tmp_path / "timm")]) == 0
    assert str(tmp_path / "timm") in capsys.readouterr().out
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        assert torch.allclose(theirs(images), vitling.load(trained).logits(images), atol=1e-5)


def test_onnx_gives_the_same_predictions(trained, tmp_path):
    import onnxruntime

    out = tmp_path / "model.onnx"
    assert run(["export", str(trained), "--out", str(out), "--weights", "best"]) == 0
    images = torch.randn(5, 3, 16, 16)
    (theirs,) = onnxruntime.InferenceSession(out).run(None, {"images": images.numpy()})
    assert np.allclose(theirs, vitling.load(trained, weights="best").logits(images).numpy(), atol=1e-4)
    assert read(tmp_path / "model.json")["class_names"] == ["class-0", "class-1", "class-2"]


def test_export_refuses_wrong_input(trained, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert ".onnx" in refused(capsys, "export", trained, "--out", tmp_path / "x", "--format", "onnx")
    assert "is a file" in refused(capsys, "export", trained, "--out", tmp_path / "file")
    assert "no/such/run" in refused(capsys, "export", "no/such/run", "--out", tmp_path / "x")


@pytest.mark.parametrize(
    ("flags", "warned"),
    [([], False), (["--val", "none"], True), (["--val", "0.2"], True), (["--data.folds", "3"], True)],
)
def test_a_val_split_that_was_trained_on_is_a_warning(tmp_path, capsys, flags, warned):
    source = make_folder(tmp_path / "images", each=6, split="train")
    make_folder(source, each=3, split="val", first=50)
    assert train(source, tmp_path / "run", *flags) == 0
    capsys.readouterr()
    assert run(["evaluate", str(tmp_path / "run"), str(source), "--split", "val"]) == 0
    assert ("trained on these images" in capsys.readouterr().err) is warned


def test_val_used_as_train_counts_as_trained_on(trained, tmp_path):
    config = read(trained / "config.json")
    write_json(tmp_path / "run" / "environment.json", {})
    for source, own in (("flowers102:/data?val=train", True), ("flowers102:/data", False)):
        write_json(tmp_path / "run" / "config.json", config | {"source": source, "val": None})
        assert was_trained_on(str(tmp_path / "run"), "flowers102:/data", "val") is own
        assert was_trained_on(str(tmp_path / "run"), "flowers102:/data", "train")
        assert not was_trained_on(str(tmp_path / "run"), "flowers102:/other", "train")
    write_json(tmp_path / "run" / "config.json", config | {"source": "torchvision:ImageFolder?root=/a", "val": None})
    assert was_trained_on(str(tmp_path / "run"), "torchvision:ImageFolder?root=/a", "train")
    assert not was_trained_on(str(tmp_path / "run"), "torchvision:ImageFolder?root=/b", "train")


def test_rows_without_a_label_are_bad_files(trained, fresh, tmp_path, capsys):
    files = sorted((fresh / "test").rglob("*.png"))
    rows = [f"{file},{file.parent.name if i % 2 else ''},test" for i, file in enumerate(files)]
    (tmp_path / "half.csv").write_text("\n".join(["path,label,split", *rows]))
    assert "cannot be used" in refused(capsys, "evaluate", trained, tmp_path / "half.csv")
    out = tmp_path / "found.json"
    assert run(["evaluate", str(trained), str(tmp_path / "half.csv"), "--allow-bad", "--out", str(out)]) == 0
    assert (read(out)["n"], len(read(out)["bad_files"])) == (12, 12)


def test_multi_label_model_accepts_one_label_per_row(folder, tmp_path, capsys):
    files = [str(path.relative_to(tmp_path)) for path in sorted(folder.rglob("*.png"))]
    several = [f"{file},{file.split('/')[1]}|{'even' if i % 2 else 'odd'}" for i, file in enumerate(files)]
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *several]))
    (tmp_path / "test.csv").write_text("\n".join(["path,label", *(f"{file},{file.split('/')[1]}" for file in files)]))
    assert train(tmp_path / "train.csv", tmp_path / "run", "--val", "none") == 0
    out = tmp_path / "found.json"
    assert run(["evaluate", str(tmp_path / "run"), str(tmp_path / "test.csv"), "--out", str(out)]) == 0
    counts = {row["class"]: row["n"] for row in read(out)["per_class"]}
    assert counts == {"class-0": 10, "class-1": 10, "class-2": 10, "even": 0, "odd": 0}


def test_single_label_model_refuses_several_labels(trained, fresh, capsys):
    files = sorted((fresh / "test").rglob("*.png"))
    (fresh / "test.csv").write_text("\n".join(["path,label", *(f"{file},class-0|class-1" for file in files)]))
    assert "trained for one" in refused(capsys, "evaluate", trained, fresh / "test.csv")


def test_read_only_run_is_a_warning(trained, fresh, tmp_path, capsys):
    """A directory replaces the file, because root may write any file."""
    mine = shutil.copytree(trained, tmp_path / "mine")
    (mine / "test-openings.jsonl").unlink(missing_ok=True)
    (mine / "test-openings.jsonl").mkdir()
    assert run(["evaluate", str(mine), str(fresh)]) == 0
    assert "Cannot record the opening" in capsys.readouterr().err


def test_out_that_is_a_directory_is_refused_early(trained, fresh, tmp_path, capsys):
    (tmp_path / "f.npz").mkdir()
    for verb, images, out in (("evaluate", fresh, tmp_path), ("predict", fresh, tmp_path), ("embed", fresh, "f.npz")):
        assert "is a directory" in refused(capsys, verb, trained, images, "--out", tmp_path / out)
    assert "is a directory" in refused(capsys, "inspect", fresh, "--out", tmp_path)


def test_embed_uses_the_data_settings(trained, fresh, tmp_path):
    files = sorted((fresh / "test").rglob("*.png"))
    (fresh / "list.csv").write_text("\n".join(["file,kind", *(f"{file},{file.parent.name}" for file in files)]))
    flags = ["--data.path-column", "file", "--data.label-column", "kind"]
    assert run(["embed", str(trained), str(fresh / "list.csv"), "--out", str(tmp_path / "f.npz"), *flags]) == 0
    assert np.load(tmp_path / "f.npz")["class_names"].tolist() == ["class-0", "class-1", "class-2"]


def test_embed_respects_the_pixel_limit(trained, fresh, tmp_path, capsys):
    start = ("embed", trained, fresh, "--out", tmp_path / "f.npz")
    message = refused(capsys, *start, "--data.max-pixels", "100")
    assert "None of the images could be read" in message


def test_export_replaces_only_earlier_exports(trained, tmp_path, capsys):
    before = {path: path.read_bytes() for path in trained.rglob("config.json")}
    for out in (trained, trained / "best"):
        assert "belongs to the run" in refused(capsys, "export", trained, "--out", out)
    assert "belongs to the run" in refused(capsys, "export", trained / "model", "--out", trained)
    (tmp_path / "config.json").write_text('{"somebody": "else"}')
    assert "not from vitling" in refused(capsys, "export", trained, "--out", tmp_path)
    assert {path: path.read_bytes() for path in trained.rglob("config.json")} == before
    for _ in range(2):  # an earlier export may be replaced
        assert run(["export", str(trained), "--out", str(tmp_path / "timm")]) == 0
