"""Methods of pre-training by name, and the baselines on the command line."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_image
from tests.made_runs import PRETRAIN_TINY as TINY
from tests.made_runs import lines, make_folder_with_pool, pretrain, read, refused
from tests.resolved import plan_for, resolve_for
from vitling.backbones import create, load_weights
from vitling.cli import run
from vitling.errors import RunAborted, UserError
from vitling.methods import METHODS, MethodName
from vitling.methods.esvit.settings import IMAGENET
from vitling.methods.supcon.loss import SupCon
from vitling.settings.config import MethodsConfig, PretrainConfig, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.names import settings_in
from vitling.settings.resolve import resolve
from vitling.settings.stages import make_first_stage
from vitling.training.config import OptimConfig

CONTRASTIVE = ["simclr", "supcon"]
TERMS = {
    "moco-v2": {"contrast": 1},
    "moco-v3": {"contrast": 1},
    "byol": {"prediction": 1},
    "dino": {"view": 1},
    "esvit": {"view": 0.5, "region": 0.5},
    "densecl": {"contrast": 0.5, "dense": 0.5},
}


def test_names_settings_and_entries_agree():
    assert get_args(MethodName) == tuple(METHODS)
    settings = [method.field for method in METHODS.values() if method.field]
    assert settings == [f.name for f in fields(MethodsConfig)]
    for name, method in METHODS.items():
        request = PretrainConfig(method=name, backbone="deit_tiny_patch16_224", size=112, explicit=("epochs",))
        config = resolve_for(request, IMAGENET)  # so many that no method adapts its settings
        stage = method.recipe("deit_tiny_patch16_224", method.default_preset, 800, 112)
        assert (config.preset, config.optim, config.batch) == (method.default_preset, stage.optim, stage.batch)
        assert stage.size == 112
        if method.field:
            assert method.config_of(config) == stage.objective


def test_methods_are_listed(capsys):
    assert run(["list", "methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS)


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_table_10(name):
    make = METHODS[name].recipe
    stage = make()
    assert (stage.optim.name, stage.optim.lr, stage.optim.weight_decay) == ("sgd", 5e-4, 1e-3)
    assert (stage.optim.momentum, stage.optim.clip, stage.optim.warmup_epochs) == (0.9, 0.0, 10)
    assert (stage.batch, stage.epochs, stage.size) == (512, 800, 112)
    assert (stage.objective.dim, stage.objective.temperature) == (256, 0.1)
    (group,) = METHODS[name].views(stage.objective, stage.size).groups
    assert (group.count, group.size) == (2, 112)
    assert make(epochs=20).optim.warmup_epochs == 2
    with pytest.raises(UserError, match="use paper or adamw"):
        make(preset="released")


BY_SGD = ("simclr", "supcon", "moco-v2", "densecl")


@pytest.mark.parametrize("name", BY_SGD)
def test_adamw_replaces_sgd_by_default(name):
    method, others = METHODS[name], {name: other for name, other in METHODS.items() if name not in BY_SGD}
    assert {other.default_preset for other in others.values()} == {"paper"}
    table, default = (method.recipe(preset=preset, epochs=40) for preset in ("paper", method.default_preset))
    numbers = {"lr": 5e-4, "min_lr": 1e-5, "warmup_epochs": 2.0, "warmup_lr": 1e-6, "weight_decay": 1e-3, "clip": 0.0}
    assert default.optim == OptimConfig(name="adamw", **numbers)
    assert method.recipe(preset="adamw").optim.warmup_epochs == 5
    assert replace(default, optim=table.optim) == table
    for settings in ({"preset": "paper"}, {"optim": OptimConfig(name="sgd")}):
        sgd = resolve_for(PretrainConfig(method=name, epochs=40, **settings))
        assert (sgd.preset, sgd.optim) == ("paper", table.optim)
    with pytest.raises(UserError, match="Leave out one"):
        resolve_for(PretrainConfig(method=name, preset="adamw", optim=OptimConfig(name="sgd")))
    for other in others.values():
        with pytest.raises(UserError, match="no preset 'adamw'"):
            other.recipe(preset="adamw")


@pytest.mark.parametrize("name", BY_SGD)
def test_first_stage_of_train_has_sgd_only_if_asked_for(name):
    def first(**settings):
        facts = Facts(images=2040, classes=102)
        plan = plan_for(TrainConfig(method=name, **settings), facts)
        stage = resolve(make_first_stage(plan, has_second=True), facts).config
        return stage.optim.name, plan.layer("pretrain_preset") == "plan"

    assert first() == first(preset="paper") == first(preset="released") == ("adamw", True)
    assert first(pretrain_preset="paper") == ("sgd", False)
    assert first(pretrain_optim=OptimConfig(name="sgd")) == ("sgd", True)


ROWS = {
    "moco-v2": ("sgd", 256, 5e-4, 1e-3, 0.0, 2),
    "densecl": ("sgd", 256, 5e-4, 1e-3, 0.0, 2),  # not in the table: MoCo v2's
    "moco-v3": (None, 256, 1.5e-4, 0.1, 800 * 40 / 300, 2),
    "byol": (None, 256, 1.5e-4, 0.1, 800 * 40 / 300, 2),  # not in the table: MoCo v3's
    "dino": (None, 512, 5e-4, 0.04, 800 / 30, 10),
}


@pytest.mark.parametrize("name", ROWS)
def test_table_10_of_methods_with_a_momentum_encoder(name):
    make = METHODS[name].recipe
    stage = make()
    optim, plan = stage.optim, METHODS[name].views(stage.objective, stage.size)
    row = (optim.name, stage.batch, optim.lr, optim.weight_decay, optim.warmup_epochs, plan.crops)
    assert row == ROWS[name]
    assert (stage.epochs, stage.size, plan.largest) == (800, 112, 112)
    assert (optim.clip, optim.clip_per) == ((3.0, "tensor") if name == "dino" else (0.0, "global"))
    with pytest.raises(UserError, match="no preset 'released'"):
        make(preset="released")


def test_the_rest_of_table_10():
    two, three, distilled = (METHODS[name].recipe().objective for name in ("moco-v2", "moco-v3", "dino"))
    assert (two.dim, two.temperature, two.queue) == (256, 0.2, 2048)
    assert (three.dim, three.temperature) == (256, 0.2)
    assert (distilled.bottleneck, distilled.temperature) == (256, 0.1)


def test_explicit_settings_win_even_at_the_default_value(folder, tmp_path):
    """--esvit.prototypes 4096 is the default in the help, but few images would get 1,024."""

    def resolved(*flags):
        words = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.local-crops", "0", *flags]
        assert pretrain(folder, tmp_path / "pre", *words, "--overwrite") == 0
        return read(tmp_path / "pre" / "config.json")

    adapted = resolved()
    assert (adapted["esvit"]["prototypes"], adapted["esvit"]["momentum"]) == (1024, 0.97)
    assert adapted["optim"]["weight_decay"] == 0.04
    explicit = resolved("--esvit.prototypes", "4096", "--esvit.momentum=0.996", "--optim.weight-decay", "0.05")
    assert (explicit["esvit"]["prototypes"], explicit["esvit"]["momentum"]) == (4096, 0.996)
    assert explicit["optim"]["weight_decay"] == 0.05
    assert OptimConfig().weight_decay == 0.05


def test_settings_in_a_command_line():
    words = ["images/", "--esvit.region-from", "9", "--no-cache", "--moco-v3.no-frozen-patches", "--optim.lr=1e-3"]
    assert settings_in(words) == ("esvit.region_from", "cache", "moco_v3.frozen_patches", "optim.lr")


def test_explicit_settings_win_over_the_preset():
    config = resolve_for(PretrainConfig(method="simclr", batch=256, optim=OptimConfig(name="adamw", lr=1e-3)))
    assert (config.batch, config.optim.name, config.optim.lr, config.optim.weight_decay) == (256, "adamw", 1e-3, 1e-3)


@pytest.mark.parametrize("method", CONTRASTIVE)
def test_pretraining_and_resume(folder, tmp_path, method):
    words = ["--method", method, "--checkpoint.every-seconds", "0"]
    assert pretrain(folder, tmp_path / "pre", *words) == 0
    config, result = read(tmp_path / "pre" / "config.json"), read(tmp_path / "pre" / "result.json")
    assert (config["optim"]["name"], config["optim"]["lr"], config["batch"]) == ("adamw", 5e-4, 16)
    assert (result["method"], result["images"]) == (method, 30)
    last = lines(tmp_path / "pre" / "metrics.jsonl")[-1]
    assert last["contrast"] == last["loss"]
    assert {"knn/top1", "features/spread"} <= result["last"].keys()
    before = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    (tmp_path / "pre" / "result.json").unlink()
    for newest in sorted((tmp_path / "pre" / "checkpoints").iterdir())[1:]:
        newest.unlink()  # as if it had been stopped after the first epoch
    assert run(["pretrain", "--out", str(tmp_path / "pre"), "--resume"]) == 0
    assert "Resuming at step 2 of 4" in (tmp_path / "pre" / "log.txt").read_text()
    after = load_file(tmp_path / "pre" / "model" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("method", TERMS)
def test_methods_with_a_momentum_encoder(folder, tmp_path, method):
    """Pre-train, resume, and fine-tune what is saved: the network that the method's paper evaluates."""
    words = ["--method", method, "--aux", "drloc", "--checkpoint.every-seconds", "0", *SMALL_HEADS[method].split()]
    out = tmp_path / "pre"
    assert pretrain(folder, out, *words) == 0
    assert read(out / "result.json")["method"] == method
    last = lines(out / "metrics.jsonl")[-1]
    terms = {**TERMS[method], "drloc": 0.1}
    assert last["loss"] == pytest.approx(sum(weight * last[name] for name, weight in terms.items()))
    before = load_file(out / "model" / "model.safetensors")
    (out / "result.json").unlink()
    newest = sorted((out / "checkpoints").iterdir())
    state = torch.load(newest[-1])["objective"]
    saved = {name: value for name, value in before.items() if not name.startswith("head.")}
    assert len(saved) > 50
    prefix = "teacher." if method in ("dino", "esvit") else ""
    assert all(torch.equal(value, state[f"{prefix}backbone.timm_model.{name}"]) for name, value in saved.items())
    assert any(not torch.equal(value, state[f"{other_network(prefix, state)}{name}"]) for name, value in saved.items())
    filled = create("vit_micro_patch4_32", 8)
    load_weights(filled, newest[-1])  # --from takes a checkpoint too
    assert all(torch.equal(value, filled.timm_model.state_dict()[name]) for name, value in saved.items())
    newest[-1].unlink()  # as if it had been stopped before
    assert run(["pretrain", "--out", str(out), "--resume"]) == 0
    assert "Resuming at step" in (out / "log.txt").read_text()
    after = load_file(out / "model" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    words = ["finetune", str(folder), "--from", str(out), "--out", str(tmp_path / "fine"), "--epochs", "1"]
    assert run([*words, "--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none"]) == 0


def other_network(network, state) -> str:
    """Return the prefix of the other of the two networks in a checkpoint."""
    places = {name.partition("backbone.timm_model.")[0] for name in state if "backbone.timm_model." in name}
    (other,) = places - {network}
    return f"{other}backbone.timm_model."


SMALL_HEADS = {
    "moco-v2": "--moco-v2.queue 40 --moco-v2.mask-own",
    "densecl": "--densecl.queue 40 --densecl.mask-own",
    "moco-v3": "--moco-v3.hidden 32 --moco-v3.no-frozen-patches",
    "byol": "--byol.hidden 32",
    "dino": "--dino.hidden 32 --dino.prototypes 64 --dino.local-crops 2 --dino.local-size 8",
    "esvit": "--esvit.hidden 32 --esvit.prototypes 64 --esvit.local-crops 2 --esvit.local-size 8",
}


def test_default_batch_may_be_larger_than_the_data(folder, tmp_path):
    small = ["--size", "8", "--backbone", "vit_nano_patch4_32", "--epochs", "1", "--loop.device", "cpu"]
    words = ["--method", "simclr", "--simclr.projection", "none", "--aux", "drloc", "--loop.trackers", "none"]
    assert run(["pretrain", str(folder), "--out", str(tmp_path / "pre"), *small, *words]) == 0
    assert read(tmp_path / "pre" / "config.json")["batch"] == 512
    assert read(tmp_path / "pre" / "result.json")["steps"] == 1
    assert lines(tmp_path / "pre" / "metrics.jsonl")[-1]["drloc"] > 0


def test_supcon_uses_an_unlabelled_pool(tmp_path, monkeypatch):
    """Each of its images is a class of its own."""
    given = []

    def fit(objective, *rest, **named):
        given.append(objective)
        raise RunAborted("Seen enough.")

    monkeypatch.setattr("vitling.runs.pretrain.fit", fit)
    assert pretrain(make_folder_with_pool(tmp_path / "images"), tmp_path / "pre", "--method", "supcon") == 3
    (objective,) = given
    assert isinstance(objective, SupCon)
    assert objective.classes.tolist() == [0] * 8 + [1] * 8 + [-17, -18, -19, -20, -21]
    assert objective.batches == [16, 5]
    log = (tmp_path / "pre" / "log.txt").read_text()
    assert "5 of the unlabelled pool" in log
    assert "its labels are trained on" in log


@pytest.fixture
def several(tmp_path):
    """Write images with several labels each."""
    random = np.random.default_rng(0)
    x = np.stack([np.asarray(make_image(i % 3, i)) for i in range(12)])
    np.savez(tmp_path / "several.npz", x=x, y=(random.random((12, 3)) < 0.5).astype(int) | np.eye(3, dtype=int)[0])
    return tmp_path / "several.npz"


@pytest.mark.parametrize("verb", ["pretrain", "train"])
def test_wrong_settings_are_refused(folder, several, tmp_path, capsys, verb):
    supcon = ["--out", tmp_path / "x", "--method", "supcon"]
    assert "needs one class per image" in refused(capsys, verb, several, *supcon)
    message = refused(capsys, verb, folder / "class-0", *supcon)
    assert "no labels" in message or "--method supcon needs labels" in message
    assert "but the method is supcon" in refused(capsys, verb, folder, *supcon, "--simclr.dim", "8")
    assert "temperature" in refused(capsys, verb, folder, *supcon, "--supcon.temperature", "0")
    dino = ["--out", tmp_path / "x", "--method", "dino"]
    assert "--moco-v2.* needs --method moco-v2" in refused(capsys, verb, folder, *dino, "--moco-v2.queue", "8")
    assert "temperature" in refused(capsys, verb, folder, *dino, "--dino.temperature", "0")
    assert "momentum" in refused(capsys, verb, folder, *dino[:3], "byol", "--byol.momentum", "2")
    if verb == "pretrain":  # `train` has a second stage, which the preset is for
        assert "use paper or adamw" in refused(capsys, verb, folder, *supcon, "--preset", "released")
        assert "no preset 'adamw'" in refused(capsys, verb, folder, *dino, "--preset", "adamw")
        message = refused(capsys, verb, folder, *dino, "--size", "16", "--dino.local-size", "32")
        assert "larger than global ones" in message
        assert "--epochs -1: must be at least 1" in refused(capsys, verb, folder, *dino, "--epochs", "-1")
        message = refused(capsys, verb, folder, *dino, "--backbone", "vit_micro_patch4_32", "--dino.local-size", "6")
        assert "6 px does not divide into patches" in message
    assert not (tmp_path / "x").exists()


def test_continued_run_keeps_the_optimiser(folder, tmp_path, capsys):
    sgd = ["--method", "simclr", "--preset", "paper", "--epochs", "1"]
    assert pretrain(folder, tmp_path / "first", *sgd) == 0
    more = ["--method", "simclr", "--epochs", "2", "--continue-from", str(tmp_path / "first")]
    assert pretrain(folder, tmp_path / "more", *more) == 0
    assert read(tmp_path / "more" / "config.json")["optim"]["name"] == "sgd"
    message = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *TINY, *more, "--preset", "adamw")
    assert "that run had --optim.name sgd" in message


@pytest.mark.parametrize(("backbone", "leaks"), [("resnet18", True), ("vit_nano_patch4_32", False)])
def test_moco_warns_of_batch_norm(folder, tmp_path, capsys, backbone, leaks):
    words = ["--method", "moco-v2", "--moco-v2.queue", "16", "--epochs", "1", "--backbone", backbone]
    assert pretrain(folder, tmp_path / "pre", *words, "--size", "32") == 0
    assert ("has batch norm" in capsys.readouterr().err) is leaks


@pytest.mark.parametrize("method", CONTRASTIVE)
def test_two_stages_in_one_command(folder, tmp_path, method):
    words = ["train", str(folder), "--out", str(tmp_path / "run"), "--method", method, *TINY, "--val", "none"]
    preset = ["--pretrain-preset", "paper"] if method == "supcon" else []
    assert run([*words, "--epochs", "1", "--pretrain-epochs", "2", "--pretrain-size", "8", *preset]) == 0
    result = read(tmp_path / "run" / "result.json")
    assert (result["method"], list(result["stages"])) == (method, ["pretrain", "finetune"])
    first, second = (read(tmp_path / "run" / part / "config.json") for part in ("pretrain", ""))
    share, narrower = 16 / 512, 192 / 128
    name, rate = ("sgd", share) if preset else ("adamw", share**0.5 * narrower)
    assert (first["method"], first["optim"]["name"], second["optim"]["name"]) == (method, name, "muon")
    assert first["optim"]["lr"] == pytest.approx(5e-4 * rate)
    assert "contrast" in lines(tmp_path / "run" / "pretrain" / "metrics.jsonl")[-1]


@pytest.mark.parametrize(("settings", "lr"), [({}, 5e-4 * 0.5**0.5), ({"pretrain_preset": "paper"}, 5e-4 * 0.5)])
def test_learning_rate_scales_from_the_methods_own_batch(settings, lr):
    plan = plan_for(TrainConfig(method="simclr", backbone="pvt_v2_b0", **settings), Facts(images=2040, classes=102))
    assert (plan.config.batch, plan.config.pretrain_optim.lr, plan.config.optim.lr) == (256, lr, None)
    assert make_first_stage(plan, has_second=True).config.method == "simclr"
