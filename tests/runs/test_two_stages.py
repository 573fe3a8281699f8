"""Pre-training without labels, then fine-tuning, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_image
from tests.made_runs import PRETRAIN_TINY as TINY
from tests.made_runs import lines, make_folder_with_pool, pretrain, read, refused
from vitling.cli import run
from vitling.errors import RunAborted
from vitling.evaluation import load
from vitling.files import write_json
from vitling.methods.idmm.settings import IDMMConfig
from vitling.methods.supervised.loss import Supervised
from vitling.settings.config import FinetuneConfig, PretrainConfig
from vitling.settings.layers import Draft
from vitling.training.config import OptimConfig
from vitling.views.policies import idmm_finetune


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
    assert f"was trained at 8 px; this run uses --size {config['size']}." in log
    assert run(["predict", str(tmp_path / "fine"), str(next(folder.glob("*/*.png")))]) == 0


def test_finetuning_is_at_no_smaller_size(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "pre", "--size", "48", "--epochs", "1") == 0
    words = ["finetune", str(folder), "--from", str(tmp_path / "pre"), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    assert run([*words, "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    assert read(tmp_path / "fine" / "config.json")["size"] == 48
    assert "Chosen: --size 48, the size" in (tmp_path / "fine" / "log.txt").read_text()
    result = tmp_path / "pre" / "result.json"
    result.write_text(result.read_text().replace('"size": 48', '"size": 40'))  # evaluated at 48
    assert run([*words[:4], *words[4:5], str(tmp_path / "less"), *words[6:], *TINY[4:]]) == 0
    assert read(tmp_path / "less" / "config.json")["size"] == 40
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere} does not exist" in refused(
        capsys, "finetune", folder, "--from", nowhere, "--out", tmp_path / "x"
    ).replace("\n", "")


def test_contrast_needs_two_images_per_pass(folder, tmp_path, capsys):
    start = ("pretrain", folder, "--out", tmp_path / "x", *TINY)
    for method in ("simclr", "supcon", "moco-v3"):
        assert "at least 2" in refused(capsys, *start, "--batch", "1", "--method", method)
    assert "at least 2" in refused(capsys, *start, "--batch", "4", "--optim.accumulate", "4", "--method", "simclr")
    assert pretrain(folder, tmp_path / "x") == 0
    refused(capsys, *start, "--batch", "1", "--method", "simclr", "--overwrite")
    assert (tmp_path / "x" / "result.json").exists()


def test_finetuning_starts_from_the_pretrained_backbone(folder, pretrained, tmp_path):
    """Fine-tuning with a learning rate near 0 keeps the pre-trained weights."""
    words = ["finetune", str(folder), "--from", str(pretrained), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    still = ["--optim.lr", "1e-12", "--optim.warmup-lr", "1e-12", "--optim.min-lr", "0"]
    assert run([*words, *still, "--size", "8", "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    before, after = (load_file(path / "model" / "model.safetensors") for path in (pretrained, tmp_path / "fine"))
    backbone = [name for name in before if not name.startswith("head.")]
    assert len(backbone) > 50
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in backbone)


def test_unlabelled_pool_is_used(tmp_path):
    folder = make_folder_with_pool(tmp_path / "images")
    assert pretrain(folder, tmp_path / "pre") == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 21
    assert "5 of the unlabelled pool" in (tmp_path / "pre" / "log.txt").read_text()
    assert all("knn/top1" in line for line in lines(tmp_path / "pre" / "metrics.jsonl") if "features/spread" in line)
    assert "knn/top1" in read(tmp_path / "pre" / "result.json")["last"]


SUPERVISED = ["--method", "supervised"]


def test_supervised_baseline(folder, tmp_path):
    """It saves a backbone without a head, watched like any other, which can be fine-tuned."""
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


def test_supervised_baseline_has_the_views_of_finetuning(folder, tmp_path, monkeypatch):
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


def test_supervised_baseline_resumes(folder, tmp_path):
    words = [*SUPERVISED, "--preset", "released", "--checkpoint.every-seconds", "0"]
    assert pretrain(folder, tmp_path / "pre", *words) == 0
    before = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    (tmp_path / "pre" / "result.json").unlink()  # as if it had been stopped at the end
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0
    after = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def change_default(settings: Path) -> None:
    """Store another default of EsViT, whatever the method."""
    saved = read(settings)
    saved.get("settings", saved)["esvit"]["match"] = "argmax"
    write_json(settings, saved)


@pytest.mark.parametrize("verb", [["pretrain"], ["train", "--method", "idmm", "--pretrain-epochs", "1"]])
def test_resume_ignores_changed_defaults_of_other_methods(folder, tmp_path, verb):
    out = tmp_path / "run"
    assert run([*verb, str(folder), "--out", str(out), *TINY, "--epochs", "2", "--checkpoint.every-seconds", "0"]) == 0
    for settings in (out / "config.json", *out.glob("pretrain/config.json")):
        change_default(settings)
    for result in out.rglob("result.json"):  # as if it had been stopped
        result.unlink()
    assert run([verb[0], "--out", str(out), "--resume"]) == 0
    assert (out / "result.json").exists()


def test_seeds_resume_ignores_changed_defaults_of_other_methods(folder, tmp_path):
    flags = ["--method", "supervised", "--out", str(tmp_path / "runs"), *TINY, "--epochs", "1"]
    assert run(["train", str(folder), *flags, "--seeds", "2"]) == 0
    change_default(tmp_path / "runs" / "request.json")
    assert run(["train", "--out", str(tmp_path / "runs"), "--resume", "--seeds", "3"]) == 0


def test_supervised_baseline_does_not_use_the_pool(tmp_path):
    folder = make_folder_with_pool(tmp_path / "images")
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED) == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 16
    log = (tmp_path / "pre" / "log.txt").read_text()
    assert "The unlabelled pool (5 images) is not used" in log
    assert "its labels are trained on" in log


def test_supervised_baseline_is_evaluated_on_the_hold_out(folder, tmp_path):
    assert pretrain(folder, tmp_path / "pre", *SUPERVISED, "--val", "0.2") == 0
    assert read(tmp_path / "pre" / "result.json")["images"] == 24
    assert "its labels are trained on" not in (tmp_path / "pre" / "log.txt").read_text()


def test_wrong_settings_of_the_supervised_baseline(folder, tmp_path, capsys):
    start = ["pretrain", folder, "--out", tmp_path / "x", *SUPERVISED]
    message = refused(capsys, "pretrain", folder / "class-0", "--out", tmp_path / "x", *SUPERVISED)
    assert "no labels" in message
    assert "--method idmm" in message
    assert "but the method is supervised" in refused(capsys, *start, "--idmm.no-cutmix")
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


def test_views_without_flip_and_colour(folder, tmp_path, capsys):
    flags = ["--views.flip", "0", "--views.no-colour", "--views.blur", "0", "--views.scale", "0.5", "1"]
    assert pretrain(folder, tmp_path / "pre", *flags, "--data.channels", "4") == 0
    views = read(tmp_path / "pre" / "config.json")["views"]
    assert (views["flip"], views["colour"], views["scale"], views["local_scale"]) == (0, False, [0.5, 1], None)
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0
    start = ("pretrain", folder, "--out", tmp_path / "x")
    assert "--views.no-colour" in refused(capsys, *start, "--data.channels", "4")
    assert "--views.flip" in refused(capsys, *start, "--views.flip", "2")
    for angle in ("-5", "181"):
        assert "must be at least 0 and at most 180" in refused(capsys, *start, "--views.rotate", angle)
    assert "--views.local-scale" in refused(capsys, *start, "--views.local-scale", "0.4", "0.1")
    assert pretrain(folder, tmp_path / "y", "--method", "simclr", "--views.local-scale", "0.3", "0.7") == 0
    assert "No effect on the views of simclr: local-scale" in capsys.readouterr().err


def test_resume_and_drloc(folder, tmp_path):
    flags = ["--aux", "drloc"]
    assert pretrain(folder, tmp_path / "pre", *flags) == 0
    assert lines(tmp_path / "pre" / "metrics.jsonl")[-1]["drloc"] > 0
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0


def test_explicit_settings_win_over_the_preset():
    draft = Draft(PretrainConfig(optim=OptimConfig(lr=1e-4), idmm=IDMMConfig(cutmix=False)))
    draft.set_group("optim", OptimConfig(lr=5e-4, clip=0.0, warmup_epochs=2), "the preset")
    draft.set_group("idmm", IDMMConfig(smoothing=0.0), "the preset")
    assert draft.config.optim == OptimConfig(lr=1e-4, clip=0.0, warmup_epochs=2)
    assert draft.config.idmm == IDMMConfig(smoothing=0.0, cutmix=False)
    assert PretrainConfig().val == "none"
    assert FinetuneConfig().views.policy == "idmm-finetune"


def test_wrong_input(folder, pretrained, tmp_path, capsys):
    assert "--from RUN" in refused(capsys, "finetune", folder, "--out", tmp_path / "x")
    weights = pretrained / "model" / "model.safetensors"
    assert "--backbone NAME" in refused(capsys, "finetune", folder, "--from", weights, "--out", tmp_path / "x")
    assert "smoothing" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", "--idmm.smoothing", "2")
    assert "vitling pretrain DATA" in refused(capsys, "pretrain", "--out", tmp_path / "x")


def test_resume_does_not_need_the_source_of_the_weights(folder, pretrained, tmp_path):
    """The checkpoint has them."""
    words = ["finetune", str(folder), "--from", str(pretrained), "--out", str(tmp_path / "fine"), "--epochs", "2"]
    tiny = ["--size", "8", "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]
    assert run([*words, *tiny, "--checkpoint.every-seconds", "0"]) == 0
    (tmp_path / "fine" / "result.json").unlink()  # as if it had been stopped at the end
    pretrained.rename(tmp_path / "elsewhere")
    assert run(["finetune", "--out", str(tmp_path / "fine"), "--resume"]) == 0
