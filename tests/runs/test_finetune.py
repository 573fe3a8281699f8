"""Fine-tuning, also at a larger size: the head may be kept, and the settings depend on the size."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_folder
from tests.made_runs import read, refused, train
from tests.resolved import resolve_for
from vitling.backbones import create
from vitling.backbones.position import resize_positions
from vitling.cli import run
from vitling.errors import RunAborted
from vitling.evaluation import BundleMeta, load, save_bundle
from vitling.settings.config import FinetuneConfig
from vitling.settings.facts import Facts
from vitling.settings.resolve import resolve
from vitling.settings.saved import reopen
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


def test_head_is_kept_and_positions_are_resized(folder, trained, tmp_path):
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
    assert "vitling's own with your changes" in (tmp_path / "new" / "log.txt").read_text()
    words = ["--from", trained, "--out", tmp_path / "x", "--views.flip", "0", "--views.policy", "idmm-finetune"]
    assert "leave out the other" in refused(capsys, "finetune", folder, *words, *SMALL)
    assert finetune(folder, trained, tmp_path / "usual") == 0
    assert read(tmp_path / "usual" / "config.json")["views"]["policy"] == "idmm-finetune"


def test_head_is_new_by_default(folder, trained, tmp_path):
    assert finetune(folder, trained, tmp_path / "large", "--size", "32", *STILL) == 0
    before, after = weights(trained), weights(tmp_path / "large")
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert "Its head is dropped" in (tmp_path / "large" / "log.txt").read_text()


def test_start_from_a_model_folder(folder, trained, tmp_path):
    assert finetune(folder, trained / "best", tmp_path / "fine", "--size", "16", "--keep-head", *STILL) == 0
    assert torch.equal(weights(tmp_path / "fine")["head.weight"], load(trained / "best", device="cpu").head.weight)


def test_resume_does_not_need_the_source(folder, trained, tmp_path):
    """The checkpoint has the head, and the source may be gone."""
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
    return root / "list.csv", "several labels per image"


@pytest.mark.parametrize("other", [renamed, one_less, one_more, several_labels], ids=lambda other: other.__name__)
def test_keep_head_names_the_class_that_differs(trained, tmp_path, capsys, other):
    source, words = other(tmp_path)
    message = refused(capsys, "finetune", source, "--from", trained, "--out", tmp_path / "x", "--keep-head", *SMALL)
    assert words in message
    assert "Leave out --keep-head" in message
    assert not (tmp_path / "x").exists()


def headless(folder):
    backbone = create("vit_micro_patch4_32", size=16)
    meta = BundleMeta("none", (), size=16, store_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    save_bundle(folder, backbone, None, meta)
    return folder


def test_keep_head_without_a_head_is_refused(folder, trained, tmp_path, capsys):
    start = ["finetune", folder, "--out", tmp_path / "x", "--keep-head", *SMALL]
    assert "without a head" in refused(capsys, *start, "--from", headless(tmp_path / "pre"))
    file = trained / "model" / "model.safetensors"
    assert "not a weights file" in refused(capsys, *start, "--from", file)
    assert "not a weights file" in refused(capsys, *start, "--from", file, "--backbone", "vit_micro_patch4_32")
    assert "does not exist" in refused(capsys, *start, "--from", tmp_path / "nowhere")
    message = refused(capsys, *start, "--from", trained, "--backbone", "vit_nano_patch4_32")
    assert "belongs to vit_micro_patch4_32, not to vit_nano_patch4_32" in message
    assert not (tmp_path / "x").exists()


# --- settings that depend on the size ---


def test_settings_up_to_224_px_are_the_defaults():
    for size in (None, 112, 224):
        resolved = resolve(FinetuneConfig(backbone="deit_tiny_patch16_224", size=size), Facts(2_040))
        config = resolved.config
        assert (config.epochs, config.batch, config.optim.lr) == (200, 256, 5e-4)
        assert not any("epochs" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("backbone", "batch", "lr"), [("deit_tiny_patch16_224", 128, 5e-5), ("t2t_vit_7", 32, 1.25e-5)]
)
def test_settings_at_448_px_are_published_too(backbone, batch, lr):
    resolved = resolve(FinetuneConfig(backbone=backbone, size=448), Facts(2_040))
    config = resolved.config
    assert (config.epochs, config.batch, config.optim.lr) == (100, batch, lr)
    assert resolved.notes == (f"Chosen for 448 px: --epochs 100 --batch {batch}.",)


def test_explicit_settings_win():
    own = {"epochs": 10, "batch": 64, "optim": OptimConfig(lr=1e-4), "seed": 3, "keep_head": True}
    config = resolve_for(FinetuneConfig(backbone="deit_tiny_patch16_224", size=448, **own))
    assert (config.epochs, config.batch, config.optim.lr) == (10, 64, 1e-4)
    assert config.optim.warmup_epochs == 0.5  # of ten epochs, a tenth of the shortest published stage
    assert (config.seed, config.keep_head, config.size) == (3, True, 448)


def test_resolving_again_changes_nothing():
    """A run that is resumed before its first checkpoint is resolved again."""
    for size in (224, 448):
        request = FinetuneConfig("images", backbone="deit_tiny_patch16_224", size=size, from_="runs/pre")
        once = resolve(request, Facts(2_040))
        again = resolve(reopen(once), Facts(2_040))
        assert (again.config, again.notes) == (once.config, ())


def test_command_uses_the_settings_of_the_size(folder, trained, tmp_path, monkeypatch):
    def fit(*given, **named):
        raise RunAborted("Seen enough.")

    monkeypatch.setattr("vitling.runs.labelled.fit", fit)
    words = ["finetune", folder, "--from", trained, "--out", tmp_path / "large", "--size", "448", "--keep-head"]
    assert run([*map(str, words), "--loop.device", "cpu", "--loop.trackers", "none"]) == 3
    config = read(tmp_path / "large" / "config.json")
    assert (config["epochs"], config["batch"], config["optim"]["lr"]) == (100, 128, 5e-5)
    assert "Chosen for 448 px: --epochs 100 --batch 128." in (tmp_path / "large" / "log.txt").read_text()


def test_views_are_no_larger_than_the_network_is_made_for():
    """A network made for 32 px would have 3,136 patches of 4 px at 224 px."""
    assert resolve_for(FinetuneConfig(backbone="vit_nano_patch4_32"), side=256).size == 32
    assert resolve_for(FinetuneConfig(backbone="pvt_v2_b0"), side=256).size == 224
