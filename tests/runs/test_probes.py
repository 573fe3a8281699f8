"""`vitling evaluate --with`: probes of a network that was trained without labels."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import make_folder
from tests.data.pictures import put_bursts
from tests.made_runs import lines, read, refused
from vitling.backbones import create
from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.evaluation import BundleMeta, save_bundle
from vitling.evaluation.config import ProbesConfig
from vitling.files import write_json
from vitling.runs.probes import open_probe_splits

QUICK = ["--linear.epochs", "20", "--linear.batch", "8", "--few-shot.shots", "1", "4", "--few-shot.draws", "2"]


@pytest.fixture
def pretrained(tmp_path):
    """Write the files of a run without a head that probes need, with random weights."""
    run_folder, source = tmp_path / "run", make_folder(tmp_path / "images", each=8)
    backbone = create("vit_nano_patch4_32", size=16, seed=0)
    meta = BundleMeta("none", (), size=16, store_size=20, mean=(0.5,) * 3, std=(0.25,) * 3)
    save_bundle(run_folder / "model", backbone, None, meta)
    write_json(run_folder / "environment.json", {})
    write_json(run_folder / "config.json", {"source": str(source), "val": None, "seed": 0})
    return run_folder


@pytest.fixture
def labelled(tmp_path):
    make_folder(tmp_path / "new", each=10, split="train", first=200)
    return make_folder(tmp_path / "new", each=6, split="test", first=100)


def run_probes(pretrained, source, out, *flags: str) -> dict:
    assert run(["evaluate", str(pretrained), str(source), "--out", str(out), *flags]) == 0
    return read(out)


def test_all_probes_at_once(pretrained, labelled, tmp_path, capsys):
    probes = ["--with", "knn", "linear", "logistic", "few-shot"]
    flags = ["--knn.k", "1", "5", "--val", "0.3", *QUICK, "--linear.epochs", "60"]
    found = run_probes(pretrained, labelled, tmp_path / "found.json", *probes, *flags)
    assert (found["split"], found["metric"], found["chosen_on"]) == ("test", "top1", "held out of train")
    assert found["images"] == {"train": 21, "validation": 9, "evaluated": 18}
    by_probe = found["probes"]
    for name in ("knn", "linear", "logistic"):
        one = by_probe[name]
        assert 0.4 < one["value"] <= 1, name
        assert one["metrics"]["top1"] == pytest.approx(one["value"])
        assert one["metrics"]["n"] == 18
        assert 0 <= one["validation"] <= 1
    assert set(by_probe["knn"]["each_k"]) == {"1", "5"}
    assert by_probe["knn"]["each_k"][str(by_probe["knn"]["chosen"]["k"])]["value"] == by_probe["knn"]["value"]
    assert by_probe["linear"]["width"] == 4 * 64
    assert str(by_probe["linear"]["chosen"]["lr"]) in map(str, map(float, by_probe["linear"]["each_lr"]))
    assert by_probe["logistic"]["backend"] == "torch"
    assert 1 <= len(by_probe["logistic"]["each_C"]) <= 15
    assert by_probe["few-shot"]["centroid"]["4"]["std"] is not None
    shown = capsys.readouterr().out
    assert f"{by_probe['logistic']['value']:.2%}" in shown
    assert "held out of train" in shown
    assert "nothing was chosen on test" in shown
    assert max(map(len, shown.splitlines())) <= 160
    assert "--with knn linear logistic few-shot" in lines(pretrained / "test-openings.jsonl")[-1]["why"]


def test_validation_has_no_look_alikes_of_train(tmp_path):
    source = put_bursts(tmp_path / "images")
    for seed in range(3):
        splits = open_probe_splits(str(source), DataConfig(), "auto", ProbesConfig(val=0.3, seed=seed))
        parts = (splits.train, splits.validation, splits.splits.val)
        scenes = [{key.removesuffix(".png").removesuffix("-again") for key in part.keys} for part in parts]
        assert sum(map(len, scenes)) == len(set.union(*scenes)) == 40


def test_same_seed_is_deterministic_and_backends_agree(pretrained, labelled, tmp_path):
    first = run_probes(pretrained, labelled, tmp_path / "1.json", "--with", "linear", "logistic", *QUICK)
    flags = ["--with", "logistic", "linear", *QUICK, "--logistic.backend", "sklearn"]
    second = run_probes(pretrained, labelled, tmp_path / "2.json", *flags)
    assert first["probes"]["linear"] == second["probes"]["linear"]
    one, other = first["probes"]["logistic"], second["probes"]["logistic"]
    assert other["backend"] == "sklearn"
    assert (one["chosen"], one["value"]) == (other["chosen"], other["value"])
    assert one["each_C"] == other["each_C"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_leakage_into_the_test_split_is_a_warning(pretrained, labelled, tmp_path, capsys, split):
    make_folder(labelled, each=5, split="val", first=300)
    for image in (labelled / "test" / "class-0").iterdir():
        shutil.copy(image, labelled / split / "class-0" / f"again-{image.name}")
    run_probes(pretrained, labelled, tmp_path / "a.json", "--with", "knn", "--knn.k", "3")
    assert f"of {'train' if split == 'train' else 'validation'} images" in capsys.readouterr().err


def test_val_split_is_used_to_choose_or_to_evaluate(pretrained, labelled, tmp_path):
    make_folder(labelled, each=5, split="val", first=300)
    found = run_probes(pretrained, labelled, tmp_path / "a.json", "--with", "knn", "--knn.k", "3")
    assert (found["split"], found["chosen_on"]) == ("test", "val")
    assert found["images"] == {"train": 30, "validation": 15, "evaluated": 18}
    found = run_probes(pretrained, labelled, tmp_path / "b.json", "--with", "knn", "--knn.k", "3", "--split", "val")
    assert (found["split"], found["chosen_on"]) == ("val", "held out of train")
    assert found["images"] == {"train": 27, "validation": 3, "evaluated": 15}
    found = run_probes(pretrained, labelled, tmp_path / "c.json", "--with", "knn", "--knn.k", "3", "--val", "0.4")
    assert found["images"] == {"train": 27, "validation": 18, "evaluated": 18}


def test_folder_without_splits_is_split_with_a_note(pretrained, folder, tmp_path, capsys):
    found = run_probes(pretrained, folder, tmp_path / "f.json", "--with", "knn", "--val", "0.2")
    assert found["split"] == "val"
    assert found["images"] == {"train": 22, "validation": 5, "evaluated": 3}
    assert found["probes"]["knn"]["chosen"]["k"] in (10, 20)
    output = capsys.readouterr()
    assert "3 of 30 train images are held out as val" in output.err
    assert "held out for validation" in output.err


def test_augmented_features(pretrained, labelled, tmp_path):
    flags = ["--with", "linear", "--linear.augment", "--linear.epochs", "2", "--linear.blocks", "2"]
    found = run_probes(pretrained, labelled, tmp_path / "f.json", *flags)
    assert found["probes"]["linear"]["width"] == 128


def test_multi_label(pretrained, labelled, tmp_path, capsys):
    rows = ["path,label,split"]
    for i, path in enumerate(sorted(labelled.rglob("*.png"))):
        rows.append(f"{path},{path.parent.name}{'|even' if i % 2 else ''},{path.parent.parent.name}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    flags = ["--with", "knn", "linear", "logistic", "--metric", "map-11-point", "--knn.k", "5", "--val", "0.3", *QUICK]
    found = run_probes(pretrained, tmp_path / "list.csv", tmp_path / "f.json", *flags)
    assert found["classes"] == 4
    for one in found["probes"].values():
        assert one["metrics"]["eleven_point_map"] == pytest.approx(one["value"], abs=1e-6)
    start = ("evaluate", pretrained, tmp_path / "list.csv", "--with")
    assert "one class per image" in refused(capsys, *start, "few-shot")
    assert "--metric top1 does not work with several labels" in refused(capsys, *start, "knn", "--metric", "top1")


def test_class_with_one_image_is_named(pretrained, labelled, tmp_path, capsys):
    for path in sorted((labelled / "train" / "class-1").iterdir())[1:]:
        path.unlink()
    found = run_probes(pretrained, labelled, tmp_path / "f.json", "--with", "knn", "logistic", "--knn.k", "3")
    assert any("class-1" in note for note in found["notes"])
    assert "class-1" in capsys.readouterr().err
    message = refused(capsys, "evaluate", pretrained, labelled, "--with", "few-shot", "--few-shot.shots", "2")
    assert "the smallest class has 1 training image" in message
    found = run_probes(pretrained, labelled, tmp_path / "f.json", "--with", "few-shot", "--few-shot.draws", "1")
    assert set(found["probes"]["few-shot"]["centroid"]) == {"1"}


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--with", "knn", "--knn.k", "28"], "--knn.k 28 is more than the 27"),
        (["--with", "knn", "--knn.k", "0"], "--knn.k 0"),
        (["--with", "knn", "--split", "train"], "--split train"),
        (["--with", "knn", "--val", "2"], "--val 2"),
        (["--with", "knn", "--metric", "map"], "--metric map does not work with one class"),
        (["--with", "linear", "--linear.epochs", "0"], "--linear.epochs 0: must be at least 1"),
        (["--with", "linear", "--linear.lr", "-1"], "--linear.lr"),
        (["--with", "few-shot", "--few-shot.draws", "0"], "--few-shot.draws"),
        (["--with", "crystal-ball"], "crystal-ball"),
        (["--knn.k", "3"], "need --with"),
        ([], "evaluate --with knn"),
    ],
)
def test_wrong_settings_are_refused(pretrained, labelled, capsys, flags, word):
    """The test split stays closed."""
    assert word in refused(capsys, "evaluate", pretrained, labelled, *flags)
    assert not (pretrained / "test-openings.jsonl").exists()


def test_unsuitable_images_are_refused(pretrained, labelled, tmp_path, capsys):
    start = ("evaluate", pretrained)
    assert "no labels" in refused(capsys, *start, labelled / "train" / "class-0", "--with", "knn")
    one = make_folder(tmp_path / "one", classes=1)
    assert "one class" in refused(capsys, *start, one, "--with", "knn")
    test_alone = make_folder(tmp_path / "alone", split="test")
    assert "nothing to train on" in refused(capsys, *start, test_alone, "--with", "knn")
    plain = make_folder(tmp_path / "plain")
    assert "no test split" in refused(capsys, *start, plain, "--with", "knn", "--split", "test")


def test_evaluating_on_training_images_is_a_warning(pretrained, tmp_path, capsys):
    """Seed 0 holds out the same images here as the run did, seed 1 does not."""
    source = pretrained.parent / "images"
    for seed, val, warned in (("0", None, False), ("1", None, True), ("0", "none", True)):
        write_json(pretrained / "config.json", {"source": str(source), "val": val, "seed": 0})
        run_probes(pretrained, source, tmp_path / "f.json", "--with", "knn", "--knn.k", "1", "--seed", seed)
        assert ("trained on the images it is evaluated on" in capsys.readouterr().err) is warned


@pytest.mark.parametrize(("seed", "warned"), [("5", False), ("6", True)])
def test_hold_out_of_several_seeds_follows_the_split_seed(pretrained, tmp_path, capsys, seed, warned):
    """The second run of --seed 5 --seeds 3."""
    source = pretrained.parent / "images"
    write_json(pretrained / "config.json", {"source": str(source), "val": None, "seed": 6, "split_seed": 5})
    run_probes(pretrained, source, tmp_path / "f.json", "--with", "knn", "--knn.k", "1", "--seed", seed)
    assert ("trained on the images it is evaluated on" in capsys.readouterr().err) is warned
