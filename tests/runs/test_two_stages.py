"""Pre-training without labels, then fine-tuning, through the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_folder, make_image
from tests.made_runs import lines, read, refused
from vitling.cli import run
from vitling.errors import RunAborted
from vitling.evaluation import load
from vitling.files import write_json
from vitling.methods.idmm import IDMMConfig
from vitling.methods.supervised.loss import Supervised
from vitling.settings.config import FinetuneConfig, PretrainConfig
from vitling.settings.names import overlaid
from vitling.training.config import OptimConfig
from vitling.views.policies import idmm_finetune

TINY = [
    *("--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", "--loop.device", "cpu"),
    *("--loop.trackers", "none"),
]


def pretrain(source, out, *flags) -> int:
    return run(["pretrain", str(source), "--out", str(out), *TINY, "--epochs", "2", *flags])


@pytest.fixture
def pretrained(folder, tmp_path):
    assert pretrain(folder, tmp_path / "pre") == 0
    return tmp_path / "pre"


def test_two_stages(folder, pretrained, tmp_path, capsys):
    result = read(pretrained / "result.json")
    assert (result["method"], result["images"], result["epochs"]) == ("idmm", 30, 2)
    assert {"global", "local"} <= lines(pretrained / "metrics.jsonl")[-1].keys()
    capsys.readouterr()
    words = ["finetune", str(folder), "--from", str(pretrained), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    assert run([*words, "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    config = read(tmp_path / "fine" / "config.json")
    assert config["backbone"] == "vit_micro_patch4_32"  # the run knows it
    assert config["views"]["policy"] == "idmm-finetune"
    assert config["optim"]["weight_decay"] == 1e-3
    log = (tmp_path / "fine" / "log.txt").read_text()
    assert "Started from" in log
    assert f"was trained at 8 px, and this is at {config['size']}: --size." in log
    assert run(["predict", str(tmp_path / "fine"), str(next(folder.glob("*/*.png")))]) == 0


def test_what_was_trained_at_a_larger_size_stays_there(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "pre", "--size", "48", "--epochs", "1") == 0
    words = ["finetune", str(folder), "--from", str(tmp_path / "pre"), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    assert run([*words, "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    assert read(tmp_path / "fine" / "config.json")["size"] == 48
    assert "Chosen: --size 48, at which" in (tmp_path / "fine" / "log.txt").read_text()
    result = tmp_path / "pre" / "result.json"
    result.write_text(result.read_text().replace('"size": 48', '"size": 40'))  # judged at 48
    assert run([*words[:4], *words[4:5], str(tmp_path / "less"), *words[6:], *TINY[4:]]) == 0
    assert read(tmp_path / "less" / "config.json")["size"] == 40
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere} does not exist" in refused(
        capsys, "finetune", folder, "--from", nowhere, "--out", tmp_path / "x"
    ).replace("\n", "")


def test_one_image_has_nothing_to_be_compared_with(folder, tmp_path, capsys):
    start = ("pretrain", folder, "--out", tmp_path / "x", *TINY)
    for method in ("simclr", "supcon", "moco-v3"):
        assert "at least 2" in refused(capsys, *start, "--batch", "1", "--method", method)
    assert "at least 2" in refused(capsys, *start, "--batch", "4", "--optim.accumulate", "4", "--method", "simclr")
    assert pretrain(folder, tmp_path / "x") == 0
    refused(capsys, *start, "--batch", "1", "--method", "simclr", "--overwrite")
    assert (tmp_path / "x" / "result.json").exists()


def test_the_backbone_is_what_was_trained(folder, pretrained, tmp_path):
    """One step of fine-tuning with a learning rate of nothing leaves the pre-trained weights."""
    words = ["finetune", str(folder), "--from", str(pretrained), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    still = ["--optim.lr", "1e-12", "--optim.warmup-lr", "1e-12", "--optim.min-lr", "0"]
    assert run([*words, *still, "--size", "8", "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    before, after = (load_file(path / "model" / "model.safetensors") for path in (pretrained, tmp_path / "fine"))
    backbone = [name for name in before if not name.startswith("head.")]
    assert len(backbone) > 50
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in backbone)


def with_pool(root):
    """16 images of two classes, and five more."""
    folder = make_folder(root, classes=2, each=8)
    (folder / "unlabelled").mkdir()
    for i in range(5):
        make_image(3, i).save(folder / "unlabelled" / f"{i}.png")
    return folder


def test_an_unlabelled_pool_is_used(tmp_path):
    folder = with_pool(tmp_path / "images")
    assert pretrain(folder, tmp_path / "pre") == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 21
    assert "5 of the unlabelled pool" in (tmp_path / "pre" / "log.txt").read_text()
    assert all("knn/top1" in line for line in lines(tmp_path / "pre" / "metrics.jsonl") if "features/spread" in line)
    assert "knn/top1" in read(tmp_path / "pre" / "result.json")["last"]


SUPERVISED = ["--method", "supervised"]


def test_the_supervised_baseline(folder, tmp_path):
    """A backbone without a head, watched as any other, that the second stage takes."""
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED, "--preset", "released") == 0
    assert read(tmp_path / "pre" / "config.json")["optim"]["decay_all"]  # the preset's
    result, last = read(tmp_path / "pre" / "result.json"), lines(tmp_path / "pre" / "metrics.jsonl")[-1]
    assert (result["method"], result["images"]) == ("supervised", 30)
    assert last["classification"] == last["loss"]
    assert {"knn/top1", "features/spread"} <= result["last"].keys()
    model = load(tmp_path / "pre", device="cpu")
    assert model.head is None
    assert (model.class_names, model.meta.task) == ((), "none")
    assert sum(p.numel() for p in model.backbone.parameters()) == result["parameters"]
    words = ["finetune", str(folder), "--from", str(tmp_path / "pre"), "--out", str(tmp_path / "fine"), *TINY]
    assert run([*words, "--epochs", "1"]) == 0


def test_the_supervised_baseline_has_one_view_mixed_as_in_fine_tuning(folder, tmp_path, monkeypatch):
    given = []

    def fit(objective, *rest, **named):
        given.append(objective)
        raise RunAborted("Seen enough.")

    monkeypatch.setattr("vitling.runs.pretrain.fit", fit)
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED) == 3
    (objective,) = given
    assert isinstance(objective, Supervised)
    assert objective.plan == idmm_finetune(8)
    assert (objective.classes, objective.multi_label, objective.smoothing) == (3, False, 0.1)
    assert objective.class_weights is None


def test_the_supervised_baseline_resumes(folder, tmp_path):
    words = [*SUPERVISED, "--preset", "released", "--checkpoint.every-seconds", "0"]
    assert pretrain(folder, tmp_path / "pre", *words) == 0
    before = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    (tmp_path / "pre" / "result.json").unlink()  # as if it had been stopped at the end
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0
    after = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def of_another_time(settings: Path) -> None:
    """As written when regions were matched by likeness, whatever the method."""
    saved = read(settings)
    saved.get("settings", saved)["esvit"]["match"] = "argmax"
    write_json(settings, saved)


@pytest.mark.parametrize("verb", [["pretrain"], ["train", "--method", "idmm", "--pretrain-epochs", "1"]])
def test_a_run_goes_on_although_the_defaults_of_another_method_have_changed(folder, tmp_path, verb):
    out = tmp_path / "run"
    assert run([*verb, str(folder), "--out", str(out), *TINY, "--epochs", "2", "--checkpoint.every-seconds", "0"]) == 0
    for settings in (out / "config.json", *out.glob("pretrain/config.json")):
        of_another_time(settings)
    for result in out.rglob("result.json"):  # as if it had been stopped
        result.unlink()
    assert run([verb[0], "--out", str(out), "--resume"]) == 0
    assert (out / "result.json").exists()


@pytest.mark.parametrize("method", [[], ["--method", "supervised"]])
def test_seeds_go_on_although_the_defaults_of_a_method_have_changed(folder, tmp_path, method):
    """Of a method that is planned, and of one that was named."""
    words = ["--out", str(tmp_path / "runs"), *TINY, "--epochs", "1", *([] if method else ["--pretrain-epochs", "1"])]
    assert run(["train", str(folder), *method, *words, "--seeds", "2"]) == 0
    of_another_time(tmp_path / "runs" / "asked.json")
    assert run(["train", "--out", str(tmp_path / "runs"), "--resume", "--seeds", "3"]) == 0


def test_the_supervised_baseline_leaves_a_pool_alone_and_says_so(tmp_path):
    folder = with_pool(tmp_path / "images")
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED) == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 16
    log = (tmp_path / "pre" / "log.txt").read_text()
    assert "The unlabelled pool (5 images) is not used" in log
    assert "k-NN asks about images whose labels are trained on" in log


def test_with_a_val_the_baseline_is_asked_about_what_it_did_not_see(folder, tmp_path):
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED, "--val", "0.2") == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 24
    assert "k-NN asks about" not in (tmp_path / "pre" / "log.txt").read_text()


def test_what_the_supervised_baseline_cannot_do(folder, tmp_path, capsys):
    start = ["pretrain", folder, "--out", tmp_path / "x", *SUPERVISED]
    said = refused(capsys, "pretrain", folder / "class-0", "--out", tmp_path / "x", *SUPERVISED)
    assert "has no labels" in said
    assert "--method idmm" in said
    assert "--method supervised does not" in refused(capsys, *start, "--idmm.no-cutmix")
    assert "change colours" in refused(capsys, *start, "--data.channels", "5")
    assert "supervised" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", "--method", "guessing")
    assert not (tmp_path / "x").exists()


def test_images_without_labels(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for i in range(12):
        make_image(0, i).save(tmp_path / "images" / f"{i}.png")
    assert pretrain(tmp_path / "images", tmp_path / "pre", "--idmm.no-multi-crop") == 0
    assert "vitling finetune LABELLED_DATA --from" in capsys.readouterr().out.replace("\n", " ")
    start = ("pretrain", tmp_path / "images", "--out", tmp_path / "x", *TINY)
    assert "these images have none" in refused(capsys, *start, "--loop.sampler", "balanced")
    assert "instance" in lines(tmp_path / "pre" / "metrics.jsonl")[-1]


def test_views_for_images_that_must_not_be_mirrored_or_coloured(folder, tmp_path, capsys):
    flags = ["--views.flip", "0", "--views.no-colour", "--views.blur", "0", "--views.scale", "0.5", "1"]
    assert pretrain(folder, tmp_path / "pre", *flags, "--data.channels", "4") == 0
    views = read(tmp_path / "pre" / "config.json")["views"]
    assert (views["flip"], views["colour"], views["scale"], views["local_scale"]) == (0, False, [0.5, 1], None)
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0
    start = ("pretrain", folder, "--out", tmp_path / "x")
    assert "--views.no-colour" in refused(capsys, *start, "--data.channels", "4")
    assert "--views.flip" in refused(capsys, *start, "--views.flip", "2")
    for angle in ("-5", "181"):
        assert "--views.rotate must lie in 0..180" in refused(capsys, *start, "--views.rotate", angle)
    assert "--views.local-scale" in refused(capsys, *start, "--views.local-scale", "0.4", "0.1")
    assert pretrain(folder, tmp_path / "y", "--method", "simclr", "--views.local-scale", "0.3", "0.7") == 0
    assert (
        "Of the views of simclr this changes nothing: local-scale: there are no local crops." in capsys.readouterr().err
    )


def test_resume_and_drloc(folder, tmp_path):
    flags = ["--aux", "drloc"]
    assert pretrain(folder, tmp_path / "pre", *flags) == 0
    assert lines(tmp_path / "pre" / "metrics.jsonl")[-1]["drloc"] > 0
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0


def test_a_setting_goes_before_the_preset():
    preset = OptimConfig(lr=5e-4, clip=0.0, warmup_epochs=2)
    asked = OptimConfig(lr=1e-4)
    assert overlaid(preset, asked, OptimConfig()) == OptimConfig(lr=1e-4, clip=0.0, warmup_epochs=2)
    assert overlaid(IDMMConfig(smoothing=0.0), IDMMConfig(cutmix=False), IDMMConfig()) == IDMMConfig(
        smoothing=0.0, cutmix=False
    )
    assert PretrainConfig().val == "none"
    assert FinetuneConfig().views.policy == "idmm-finetune"


def test_wrong_input(folder, pretrained, tmp_path, capsys):
    assert "--from RUN" in refused(capsys, "finetune", folder, "--out", tmp_path / "x")
    weights = pretrained / "model" / "model.safetensors"
    assert "--backbone NAME" in refused(capsys, "finetune", folder, "--from", weights, "--out", tmp_path / "x")
    assert "smoothing" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", "--idmm.smoothing", "2")
    assert "vitling pretrain DATA" in refused(capsys, "pretrain", "--out", tmp_path / "x")


def test_a_resume_does_not_need_the_source_of_the_weights(folder, pretrained, tmp_path):
    """The checkpoint has them."""
    words = ["finetune", str(folder), "--from", str(pretrained), "--out", str(tmp_path / "fine"), "--epochs", "2"]
    tiny = ["--size", "8", "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]
    assert run([*words, *tiny, "--checkpoint.every-seconds", "0"]) == 0
    (tmp_path / "fine" / "result.json").unlink()  # as if it had been stopped at the end
    pretrained.rename(tmp_path / "elsewhere")
    assert run(["finetune", "--out", str(tmp_path / "fine"), "--resume"]) == 0
