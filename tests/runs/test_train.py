"""`vitling train` from a folder to a run directory."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

import vitling
from tests.broken import write_ten
from tests.conftest import make_folder, make_image
from tests.made_runs import lines, read, refused, train
from vitling.cli import run
from vitling.errors import UserError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(data, run): 36 images with a test split of 9, trained for three epochs with everything on."""
    root = tmp_path_factory.mktemp("finished")
    source = make_folder(root / "images", each=12, split="train")
    make_folder(source, each=3, split="test", first=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(source, root / "run", "--epochs", "3", "--loop.trackers", "tensorboard", "--val", "0.25") == 0
    return source, root / "run"


@pytest.fixture
def messy(tmp_path):
    """200 images in four classes, and ten broken files; returns the folder and the ten names."""
    source = make_folder(tmp_path / "images", classes=4, each=50)
    return source, write_ten(source / "class-1")


def test_ten_broken_files_are_left_out_and_listed(messy, tmp_path, capsys):
    source, names = messy
    out = tmp_path / "run"
    assert train(source, out, "--val", "none", "--allow-bad") == 0
    listed = read(out / "bad-files.json")
    assert sorted(file["key"] for file in listed) == [f"class-1/{name}" for name in names]
    reasons = {file["key"].split("/")[1]: file["reason"] for file in listed}
    assert all(reasons.values())
    assert len(set(reasons.values())) >= 6, reasons  # kinds are distinguished
    assert "empty" in reasons["empty.jpg"]
    assert "truncated" in reasons["cut.jpg"]
    assert "pixels" in reasons["bomb.png"]
    output, log = capsys.readouterr().err, (out / "log.txt").read_text()
    assert all(name in output and name in log for name in names)
    result = read(out / "result.json")
    assert (result["images"], result["bad_files"]) == (200, 10)


def test_more_than_one_percent_broken_stops(messy, tmp_path, capsys):
    source, names = messy
    message = refused(capsys, "train", source, "--out", tmp_path / "run", "--size", "8")
    assert "--allow-bad" in message
    assert sum(name in message for name in names) >= 3
    assert not (tmp_path / "run").exists()  # so that the corrected command may use the name
    assert train(source, tmp_path / "run", "--allow-bad") == 0


def test_one_broken_file_in_two_hundred_is_allowed(tmp_path):
    source = make_folder(tmp_path / "images", classes=2, each=60)
    (source / "class-0" / "empty.png").touch()
    assert train(source, tmp_path / "run", "--val", "none") == 0
    assert [file["key"] for file in read(tmp_path / "run" / "bad-files.json")] == ["class-0/empty.png"]


def test_run_directory_is_complete(finished):
    source, out = finished
    config = read(out / "config.json")
    assert config["source"] == str(source)
    assert None not in (config["size"], config["backbone"], config["eval_every"], config["store_size"])
    assert config["optim"]["weight_decay"] == 0.05
    environment = read(out / "environment.json")
    assert environment["packages"]["vitling"] == vitling.__version__
    assert environment["processes"] == 1
    epochs = [line for line in lines(out / "metrics.jsonl") if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert {"step", "lr", "loss", "val/top1"} <= epochs[-1].keys()
    assert "epoch 3/3" in (out / "log.txt").read_text()
    assert list((out / "tensorboard").iterdir())
    assert list((out / "checkpoints").glob("step-*.pt"))
    files = {"config.json", "model.safetensors", "trust.safetensors"}
    assert {path.name for path in (out / "model").iterdir()} == files
    assert {path.name for path in (out / "best").iterdir()} == files


def test_result_has_last_and_best_on_every_split(finished):
    _, out = finished
    result, full = read(out / "result.json"), read(out / "evaluation.json")
    assert result["finished"]
    assert (result["images"], result["classes"], result["epochs"]) == (27, 3, 3)
    assert result["last"]["epoch"] == 3
    assert 1 <= result["best"]["epoch"] <= 3
    assert (result["last"]["val"]["n"], result["last"]["test"]["n"]) == (9, 9)
    table = full["last"]["test"]["per_class"]
    assert [row["class"] for row in table] == ["class-0", "class-1", "class-2"]
    assert [row["n"] for row in table] == [3, 3, 3]
    confusion = full["last"]["test"]["confusion"]
    assert [sum(row) for row in confusion] == [3, 3, 3]
    right = sum(confusion[c][c] for c in range(3))
    assert result["last"]["test"]["top1"] == pytest.approx(right / 9)
    best = max(line["val/top1"] for line in lines(out / "metrics.jsonl") if line["kind"] == "epoch")
    assert result["best"]["val"]["top1"] == pytest.approx(best)


def test_the_test_split_is_opened_once_at_the_end(finished):
    _, out = finished
    (opening,) = lines(out / "test-openings.jsonl")
    assert opening["why"] == "final evaluation of last and best"
    log = (out / "log.txt").read_text().splitlines()
    opened = next(i for i, line in enumerate(log) if "test split opened" in line)
    assert opened > next(i for i, line in enumerate(log) if "epoch 3/3" in line)


def test_test_images_are_not_read_while_training(tmp_path, monkeypatch):
    """A broken test folder does no harm until the end, and the trained weights are kept then."""
    source = make_folder(tmp_path / "images", split="train")
    make_folder(source, each=2, split="test", first=50)
    for path in (source / "test").rglob("*.png"):
        path.write_bytes(b"")
    out = tmp_path / "run"
    assert train(source, out) == 2
    assert "epoch 1/1" in (out / "log.txt").read_text()
    assert list((out / "checkpoints").glob("step-*.pt"))
    for path in (source / "test").rglob("*.png"):
        make_image(0, 99).save(path)
    assert train(source, out, "--resume") == 0
    assert read(out / "result.json")["last"]["test"]["n"] == 6


def test_directory_with_contents_is_refused(finished, capsys):
    source, out = finished
    before = (out / "result.json").read_bytes()
    message = refused(capsys, "train", source, "--out", out)
    assert "--resume" in message
    assert "--overwrite" in message
    assert (out / "result.json").read_bytes() == before


def test_overwrite_starts_again_and_keeps_other_files(folder, tmp_path):
    out = tmp_path / "run"
    assert train(folder, out) == 0
    (out / "notes.txt").write_text("mine")
    (out / "bad-files.json").write_text("[]")
    assert train(folder, out, "--overwrite", "--val", "none") == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "bad-files.json").exists()
    assert not (out / "best").exists()  # of the first run, which had validation


def test_overwrite_spares_a_folder_that_is_not_a_run(folder, tmp_path, capsys):
    mine = shutil.copytree(folder, tmp_path / "mine")
    (mine / "config.json").write_text('{"somebody": "else"}')
    (mine / "model").mkdir()
    before = sorted(mine.rglob("*"))
    assert "is not a vitling run" in refused(capsys, "train", folder, "--out", mine, "--overwrite")
    assert "cannot be resumed" in refused(capsys, "train", folder, "--out", mine, "--resume")
    assert sorted(mine.rglob("*")) == before


def test_a_mistyped_source_does_not_cost_the_old_run(finished, capsys):
    _, out = finished
    refused(capsys, "train", "no/such/folder", "--out", out, "--overwrite")
    assert (out / "result.json").exists()


def test_resume_with_other_settings_names_the_flag(finished, capsys):
    source, out = finished
    message = refused(capsys, "train", source, "--out", out, "--resume", "--optim.weight-decay", "0.1")
    assert "--optim.weight-decay 0.1" in message
    assert "0.05" in message


def test_resume_with_an_explicit_default_names_the_flag(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(folder, out, "--optim.weight-decay", "0.1") == 0
    message = refused(capsys, "train", "--out", out, "--resume", "--optim.weight-decay", "0.05")
    assert "--optim.weight-decay 0.05 differs from the run's 0.1" in message
    assert run(["train", "--out", str(out), "--resume", "--optim.weight-decay", "0.1"]) == 0


def test_resume_of_a_finished_run_says_so(finished, capsys):
    _, out = finished
    before = (out / "model" / "model.safetensors").stat().st_mtime_ns
    assert run(["train", "--out", str(out), "--resume"]) == 0
    assert "finished" in capsys.readouterr().err
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_resume_without_a_run_starts_one(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "--resume") == 0
    assert read(tmp_path / "run" / "result.json")["finished"]
    message = refused(capsys, "train", "--out", tmp_path / "other", "--resume")
    assert "no run" in message


def test_resume_of_a_run_killed_before_its_first_file(folder, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "log.txt").write_text("")
    assert train(folder, tmp_path / "run", "--resume") == 0


@pytest.mark.parametrize(("flags", "images", "held"), [(["--val", "none"], 30, None), (["--val", "0.3"], 21, 9)])
def test_val_says_what_is_held_out(folder, tmp_path, flags, images, held):
    assert train(folder, tmp_path / "run", *flags) == 0
    result = read(tmp_path / "run" / "result.json")
    assert result["images"] == images
    assert result["last"].get("val", {}).get("n") == held
    assert ("best" in result) is (held is not None)


def test_folds_hold_out_every_image_once(folder, tmp_path):
    sizes = []
    for fold in range(3):
        out = tmp_path / f"fold-{fold}"
        assert train(folder, out, "--data.folds", "3", "--data.fold", str(fold)) == 0
        result = read(out / "result.json")
        sizes.append(result["last"]["val"]["n"])
        assert result["images"] + sizes[-1] == 30
    assert sum(sizes) == 30


def test_groups_stay_together(folder, tmp_path, capsys):
    rows = [
        f"{path.relative_to(tmp_path)},{path.parent.name},g{int(path.stem[-2:]) // 5}-{path.parent.name}"
        for path in sorted(folder.rglob("*.png"))
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    assert train(tmp_path / "list.csv", tmp_path / "run", "--val", "0.5") == 0
    assert read(tmp_path / "run" / "result.json")["last"]["val"]["n"] == 15  # three of six groups of five
    assert "by group" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", "val"])
def test_one_image_with_two_labels_is_a_warning_wherever_it_is(tmp_path, capsys, split):
    for name in ("train", "val"):
        make_folder(tmp_path / "images" / name)
    first = tmp_path / "images" / split / "class-0" / "image-00.png"
    shutil.copy(first, tmp_path / "images" / split / "class-1" / "same.png")
    assert train(tmp_path / "images", tmp_path / "run", "--epochs", "1") == 0
    assert "The same image has different labels" in capsys.readouterr().err


@pytest.fixture
def several_labels(folder, tmp_path):
    rows = [
        f"{path.relative_to(tmp_path)},{path.parent.name}|{'even' if int(path.stem[-2:]) % 2 == 0 else 'odd'}"
        for path in sorted(folder.rglob("*.png"))
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    return tmp_path / "list.csv"


def test_multi_label(several_labels, tmp_path, capsys):
    flags = ["--val", "0.3", "--epochs", "2", "--objective.class-weights", "inverse"]
    assert train(several_labels, tmp_path / "run", *flags) == 0
    assert "mAP" in capsys.readouterr().out
    last = read(tmp_path / "run" / "result.json")["last"]["val"]
    assert 0 < last["mean_average_precision"] <= 1
    assert "top1" not in last
    assert "val/mean_average_precision" in lines(tmp_path / "run" / "metrics.jsonl")[-1]
    (answer,) = vitling.load(tmp_path / "run").predict(tmp_path / "images" / "class-0" / "image-00.png")
    assert answer.label is None
    assert {name for name, _ in answer.top} == {"class-0", "class-1", "class-2", "even", "odd"}


def test_balancing_multi_label_data_is_refused(several_labels, tmp_path, capsys):
    message = refused(capsys, "train", several_labels, "--out", tmp_path / "run", "--loop.sampler", "balanced")
    assert "--objective.class-weights inverse" in message


def test_grey_images_with_their_own_normalisation(folder, tmp_path):
    assert train(folder, tmp_path / "run", "--data.channels", "1", "--data.normalise", "data") == 0
    model = vitling.load(tmp_path / "run")
    assert (model.meta.channels, len(model.meta.mean)) == (1, 1)
    assert 0.3 < model.meta.mean[0] < 0.7
    assert model.meta.mean[0] != pytest.approx(0.485, abs=1e-3)
    assert model.embed(make_image(0, 1)).shape == (1, 128)


def test_rare_classes_can_be_balanced(tmp_path):
    """Ninety of one class and ten of the other: the rare one is found too, by either means."""
    source = make_folder(tmp_path / "images", classes=1, each=90)
    for i in range(10):
        (source / "class-1").mkdir(exist_ok=True)
        make_image(1, i).save(source / "class-1" / f"{i}.png")
    flags = ["--val", "0.2", "--epochs", "10", "--optim.lr", "1e-3", "--size", "16", "--views.mix-prob", "0"]
    flags += ["--views.scale", "0.5", "1", "--views.erase", "0"]
    found = {}
    for name, extra in (
        ("sampler", ["--loop.sampler", "balanced"]),
        ("weights", ["--objective.class-weights", "inverse"]),
    ):
        assert train(source, tmp_path / name, *flags, *extra) == 0
        found[name] = read(tmp_path / name / "evaluation.json")["last"]["val"]["mean_per_class"]
    assert found["sampler"] > 0.8, found
    assert found["weights"] > 0.8, found


def test_mirror_images_can_be_learnt_without_flips(tmp_path):
    """Two classes that are mirror images of each other: with flips they cannot be learnt."""
    source = tmp_path / "images"
    for name in ("left", "right"):
        (source / name).mkdir(parents=True)
    for i in range(40):
        picture = make_image(1, i, width=16)
        picture.paste((255, 255, 255), (0, 0, 6, 16))
        picture.save(source / "left" / f"{i}.png")
        picture.transpose(0).save(source / "right" / f"{i}.png")
    flags = ["--val", "0.25", "--epochs", "8", "--optim.lr", "2e-3", "--views.scale", "0.8", "1", "--views.erase", "0"]
    flags += ["--views.mix-prob", "0"]
    found = {}
    for flip in ("0", "0.5"):
        assert train(source, tmp_path / flip, *flags, "--views.flip", flip) == 0
        found[flip] = read(tmp_path / flip / "result.json")["last"]["val"]["top1"]
    assert found["0"] > 0.9
    assert found["0.5"] < 0.8


def test_leakage_into_val_or_test_is_a_warning(tmp_path, capsys):
    source = make_folder(tmp_path / "images", split="train")
    make_folder(source, each=4, split="test")  # the first four of train again
    make_folder(source, each=2, split="val", first=5)
    assert train(source, tmp_path / "run") == 0
    output = capsys.readouterr().err
    assert "6 val images are exact copies of train images" in output
    assert "12 test images are exact copies of train images" in output
    assert "exact copies" in (tmp_path / "run" / "log.txt").read_text()


def test_python_mirrors_the_command_line(folder, tmp_path):
    settings = {"optim.lr": 2e-3, "loop.trackers": "none", "data.channels": 1, "method": "supervised"}
    result = vitling.train(folder, out=tmp_path / "run", size=8, epochs=1, val=0.2, **settings)
    assert result == read(tmp_path / "run" / "result.json")
    config = read(tmp_path / "run" / "config.json")
    assert (config["optim"]["lr"], config["data"]["channels"]) == (2e-3, 1)
    model = vitling.load(tmp_path / "run")
    first, second = model.predict([folder / "class-0" / "image-00.png", make_image(1, 3)], top=2)
    assert first.label in ("class-0", "class-1", "class-2")
    assert len(second.top) == 2
    assert vitling.load(tmp_path / "run", weights="best").embed(folder).shape == (30, 64)
    figures = result["last"]["val"]
    assert (result.accuracy, result.run) == (figures["top1"], tmp_path / "run")
    assert result.interval == tuple(figures["top1_interval"])
    assert f"{result.accuracy:.1%} on {figures['n']} val images" in repr(result)
    assert result.model.class_names == model.class_names
    assert "3 classes" in repr(model)
    evaluated = model.evaluate(folder, split="train")
    assert (evaluated["n"], evaluated["split"], evaluated.accuracy) == (30, "train", evaluated["top1"])
    assert "on 30 train images" in repr(evaluated)


def test_mistakes_are_listed_by_file_name(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "--val", "0.3") == 0
    assert "mistakes.csv" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "run" / "mistakes.csv").open()))
    figures = read(tmp_path / "run" / "result.json")["last"]["val"]
    assert len(rows) == round((1 - figures["top1"]) * figures["n"])
    assert all((folder / row["file"]).exists() and row["file"].startswith(row["label"]) for row in rows)
    command = ["evaluate", str(tmp_path / "run"), str(folder), "--mistakes", str(tmp_path / "m.csv")]
    assert run([*command, "--out", str(tmp_path / "e.json")]) == 0
    found, figures = list(csv.DictReader((tmp_path / "m.csv").open())), read(tmp_path / "e.json")
    assert len(found) == round((1 - figures["top1"]) * figures["n"])


def test_a_wrong_val_is_refused_before_the_plan(folder, tmp_path, capsys):
    assert run(["train", str(folder), "--out", str(tmp_path / "run"), "--val", "2"]) == 2
    assert "Plan" not in capsys.readouterr().err


def test_unknown_settings_suggest_the_nearest(folder, tmp_path):
    with pytest.raises(UserError, match=r"no setting 'optim.lrr'. Did you mean optim.lr"):
        vitling.train(folder, out=tmp_path / "run", **{"optim.lrr": 1})
    with pytest.raises(UserError, match=r"no setting 'flip'. Did you mean views.flip"):
        vitling.train(folder, out=tmp_path / "run", flip=1)


@pytest.mark.parametrize(
    "flags",
    [
        ["--backbone", "vit_tinny_patch16_224"],
        ["--size", "9", "--backbone", "vit_micro_patch4_32"],
        ["--loop.trackers", "diary"],
    ],
)
def test_a_mistyped_setting_does_not_cost_the_old_run(finished, capsys, flags):
    source, out = finished
    before = sorted(path.name for path in out.iterdir())
    refused(capsys, "train", source, "--out", out, "--overwrite", *flags)
    assert sorted(path.name for path in out.iterdir()) == before


def test_error_before_the_directory_exists_is_raised(folder, tmp_path, monkeypatch):
    def fail(*arguments, **named):
        raise RuntimeError("a bug")

    monkeypatch.setattr("vitling.runs.train.open_labelled", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        train(folder, tmp_path / "run")


def test_confusion_matrix_has_one_row_per_line(finished):
    _, out = finished
    for row in read(out / "evaluation.json")["last"]["test"]["confusion"]:
        assert str(row) in (out / "evaluation.json").read_text()


def test_predict_respects_the_pixel_limit(folder, tmp_path):
    assert train(folder, tmp_path / "run", "--data.max-pixels", "400") == 0
    model = vitling.load(tmp_path / "run")
    make_image(0, 1, width=40).save(tmp_path / "large.png")
    fine, large = model.predict([folder / "class-0" / "image-00.png", tmp_path / "large.png"])
    assert fine.error is None
    assert "pixels" in large.error


@pytest.mark.parametrize("weights", ["last", "best"])
@pytest.mark.parametrize("key", ["n", "top1", "epoch"])
def test_a_finished_result_without_a_key_is_printed_or_refused(finished, tmp_path, capsys, weights, key):
    out = shutil.copytree(finished[1], tmp_path / "run")
    result = read(out / "result.json")
    (result[weights] if key == "epoch" else result[weights]["val"]).pop(key)
    (out / "result.json").write_text(json.dumps(result))
    if key == "n":
        assert "result.json" in refused(capsys, "train", "--out", out, "--resume")
    else:
        assert run(["train", "--out", str(out), "--resume", "--no-report"]) == 0
