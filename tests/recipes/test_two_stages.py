"""Pre-training without labels, then fine-tuning, through the commands."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_folder, make_image
from tests.runs import lines, read, refused
from vitling.cli import run
from vitling.objectives.config import IDMMConfig
from vitling.recipes.config import FinetuneConfig, PretrainConfig, overlaid
from vitling.training.config import OptimConfig

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
    assert run(["predict", str(tmp_path / "fine"), str(next(folder.glob("*/*.png")))]) == 0


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


def test_images_without_labels(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(12):
        make_image(0, i).save(tmp_path / "images" / f"{i}.png")
    assert pretrain(tmp_path / "images", tmp_path / "pre", "--idmm.no-multi-crop") == 0
    assert "instance" in lines(tmp_path / "pre" / "metrics.jsonl")[-1]


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
