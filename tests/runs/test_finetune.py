"""The stage at a larger size: the head is kept, and the settings are those of the size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_folder
from tests.made_runs import read, refused, train
from vitling import data
from vitling.backbones import create
from vitling.backbones.position import resize_positions
from vitling.cli import run
from vitling.errors import RunAborted
from vitling.evaluation import BundleMeta, load, save_bundle
from vitling.runs.finetune import with_preset
from vitling.runs.running import settle_network
from vitling.settings.config import FinetuneConfig
from vitling.training.config import OptimConfig

SMALL = ["--epochs", "1", "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]
STILL = ["--preset", "released", "--optim.lr", "0"]  # trains nothing at all


@pytest.fixture
def trained(folder, tmp_path):
    assert train(folder, tmp_path / "small", "--size", "16") == 0
    return tmp_path / "small"


def finetune(source, start, out, *flags) -> int:
    return run(["finetune", str(source), "--from", str(start), "--out", str(out), *SMALL, *flags])


def weights(path):
    return load_file(path / "model" / "model.safetensors")


def test_the_head_is_kept_and_the_positions_are_resized(folder, trained, tmp_path):
    assert finetune(folder, trained, tmp_path / "large", "--size", "32", "--keep-head", *STILL) == 0
    before, after = weights(trained), weights(tmp_path / "large")
    assert torch.equal(after.pop("pos_embed"), resize_positions(before.pop("pos_embed"), (4, 4), (8, 8)))
    assert {"head.weight", "head.bias"} < after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)
    x = torch.randn(2, 3, 32, 32)
    small, large = (load(path, device="cpu") for path in (trained, tmp_path / "large"))
    assert large.logits(x).isfinite().all()
    assert torch.allclose(large.logits(x), small.logits(x), atol=1e-5)  # a ViT resizes its positions on the way, too
    log = (tmp_path / "large" / "log.txt").read_text()
    assert "1 resized" in log
    assert "Its head is kept: head.bias, head.weight." in log
    assert "dropped" not in log
    assert read(tmp_path / "large" / "config.json")["keep_head"]


def test_changed_views_are_vitlings_own(folder, trained, tmp_path, capsys):
    """As in `train`: IDMM's take no changes."""
    assert finetune(folder, trained, tmp_path / "new", "--views.flip", "0") == 0
    views = read(tmp_path / "new" / "config.json")["views"]
    assert (views["policy"], views["flip"]) == ("", 0.0)
    assert "vitling's own, changed as asked for" in (tmp_path / "new" / "log.txt").read_text()
    words = ["--from", trained, "--out", tmp_path / "x", "--views.flip", "0", "--views.policy", "idmm-finetune"]
    assert "leave out the other" in refused(capsys, "finetune", folder, *words, *SMALL)
    assert finetune(folder, trained, tmp_path / "usual") == 0
    assert read(tmp_path / "usual" / "config.json")["views"]["policy"] == "idmm-finetune"


def test_otherwise_it_is_a_new_one(folder, trained, tmp_path):
    assert finetune(folder, trained, tmp_path / "large", "--size", "32", *STILL) == 0
    before, after = weights(trained), weights(tmp_path / "large")
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert "Its head is dropped" in (tmp_path / "large" / "log.txt").read_text()


def test_a_model_folder_will_do(folder, trained, tmp_path):
    assert finetune(folder, trained / "best", tmp_path / "fine", "--size", "16", "--keep-head", *STILL) == 0
    assert torch.equal(weights(tmp_path / "fine")["head.weight"], load(trained / "best", device="cpu").head.weight)


def test_a_resume_loads_nothing(folder, trained, tmp_path):
    """The head is that of the checkpoint, and the source may be gone."""
    words = ["--size", "16", "--keep-head", "--checkpoint.every-seconds", "0"]
    assert finetune(folder, trained, tmp_path / "fine", *words) == 0
    before = weights(tmp_path / "fine")
    assert not torch.equal(before["head.weight"], weights(trained)["head.weight"])
    (tmp_path / "fine" / "result.json").unlink()  # as if it had been stopped at the end
    trained.rename(tmp_path / "elsewhere")
    assert run(["finetune", "--out", str(tmp_path / "fine"), "--resume"]) == 0
    after = weights(tmp_path / "fine")
    assert all(torch.equal(before[name], after[name]) for name in before)


def renamed(root):
    folder = make_folder(root / "renamed")
    (folder / "class-1").rename(folder / "class-10")
    return folder, 'number 2: "class-1" there, "class-10" here'


def one_less(root):
    return make_folder(root / "less", classes=2), 'number 3: "class-2" there, none here'


def one_more(root):
    return make_folder(root / "more", classes=4), 'number 4: none there, "class-3" here'


def several_labels(root):
    folder = make_folder(root / "several")
    rows = [f"{p.relative_to(root)},class-0|{p.parent.name}" for p in sorted(folder.rglob("*.png"))]
    (root / "list.csv").write_text("\n".join(["path,label", *rows]))
    return root / "list.csv", "several labels an image"


@pytest.mark.parametrize("other", [renamed, one_less, one_more, several_labels], ids=lambda other: other.__name__)
def test_other_classes_are_named(trained, tmp_path, capsys, other):
    source, words = other(tmp_path)
    said = refused(capsys, "finetune", source, "--from", trained, "--out", tmp_path / "x", "--keep-head", *SMALL)
    assert words in said
    assert "Leave out --keep-head" in said
    assert not (tmp_path / "x").exists()


def headless(folder):
    backbone = create("vit_micro_patch4_32", size=16)
    meta = BundleMeta("none", (), size=16, store_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    save_bundle(folder, backbone, None, meta)
    return folder


def test_where_there_is_no_head_to_keep(folder, trained, tmp_path, capsys):
    start = ["finetune", folder, "--out", tmp_path / "x", "--keep-head", *SMALL]
    assert "has no head" in refused(capsys, *start, "--from", headless(tmp_path / "pre"))
    file = trained / "model" / "model.safetensors"
    assert "is a weights file" in refused(capsys, *start, "--from", file)
    assert "is a weights file" in refused(capsys, *start, "--from", file, "--backbone", "vit_micro_patch4_32")
    assert "There is no" in refused(capsys, *start, "--from", tmp_path / "nowhere")
    said = refused(capsys, *start, "--from", trained, "--backbone", "vit_nano_patch4_32")
    assert "belongs to vit_micro_patch4_32, not to vit_nano_patch4_32" in said
    assert not (tmp_path / "x").exists()


# --- settings of the size --------------------------------------------------------------------------------------------


def settled(backbone="deit_tiny_patch16_224", **settings) -> FinetuneConfig:
    return with_preset(FinetuneConfig(backbone=backbone, **settings))[0]


def test_up_to_224_px_they_are_the_defaults():
    for size in (None, 112, 224):
        config = settled(size=size)
        assert (config.epochs, config.batch, config.optim.lr) == (200, 256, 5e-4)
        assert with_preset(config)[1] == []


@pytest.mark.parametrize(
    ("backbone", "batch", "lr"), [("deit_tiny_patch16_224", 128, 5e-5), ("t2t_vit_7", 32, 1.25e-5)]
)
def test_at_448_px_they_are_those_of_the_stage(backbone, batch, lr):
    config, notes = with_preset(FinetuneConfig(backbone=backbone, size=448))
    assert (config.epochs, config.batch, config.optim.lr) == (100, batch, lr)
    assert notes == [f"Chosen for 448 px: --epochs 100 --batch {batch}."]


def test_what_was_set_wins():
    config = settled(size=448, epochs=10, batch=64, optim=OptimConfig(lr=1e-4), seed=3, keep_head=True)
    assert (config.epochs, config.batch, config.optim.lr) == (10, 64, 1e-4)
    assert config.optim.warmup_epochs == 0.5  # of ten epochs, a tenth of the shortest published stage
    assert (config.seed, config.keep_head, config.size) == (3, True, 448)


def test_settling_again_changes_nothing():
    """As a resume does."""
    for size in (224, 448):
        once = settled(size=size, source="images", from_="runs/pre")
        assert with_preset(replace(once)) == (once, [])


def test_the_command_has_them(folder, trained, tmp_path, monkeypatch):
    def fit(*given, **named):
        raise RunAborted("Seen enough.")

    monkeypatch.setattr("vitling.runs.labelled.fit", fit)
    words = ["finetune", folder, "--from", trained, "--out", tmp_path / "large", "--size", "448", "--keep-head"]
    assert run([*map(str, words), "--loop.device", "cpu", "--loop.trackers", "none"]) == 3
    config = read(tmp_path / "large" / "config.json")
    assert (config["epochs"], config["batch"], config["optim"]["lr"]) == (100, 128, 5e-5)
    assert "Chosen for 448 px: --epochs 100 --batch 128." in (tmp_path / "large" / "log.txt").read_text()


def test_views_are_no_larger_than_the_network_is_made_for(tmp_path):
    """Patches of 4 px, meant for 32 px, would be 3,136 at 224."""
    images = make_folder(tmp_path / "images", each=1, width=256, height=256)
    train = data.open(str(images), val="none").train
    assert settle_network(FinetuneConfig(backbone="vit_nano_patch4_32"), train, 224)[0].size == 32
    assert settle_network(FinetuneConfig(backbone="pvt_v2_b0"), train, 224)[0].size == 224
