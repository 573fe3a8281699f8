"""`--aux drloc`, `--from`, and the runs of the DRLoc paper as configs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.made_runs import TINY, lines, read, refused, train
from vitling.backbones import create
from vitling.errors import UserError
from vitling.objectives.progress import Progress
from vitling.papers import drloc_recipes as drloc
from vitling.runs.network import attach_auxiliary
from vitling.settings.checks import check
from vitling.settings.config import TrainConfig

SWIN = "swin_tiny_patch4_window7_224"


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run without, and one with DRLoc."""
    from tests.conftest import make_folder

    root = tmp_path_factory.mktemp("aux")
    source = make_folder(root / "images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(source, root / "plain", "--val", "0.3") == 0
        assert train(source, root / "aux", "--val", "0.3", "--aux", "drloc", "--drloc.hidden", "32") == 0
    return source, root / "plain", root / "aux"


def test_the_term_is_in_the_metrics_and_its_weight_in_the_config(runs):
    _, plain, aux = runs
    assert 0 < lines(aux / "metrics.jsonl")[-1]["drloc"] < 1
    assert "drloc" not in lines(plain / "metrics.jsonl")[-1]
    assert read(aux / "config.json")["drloc"]["weight"] == 0.1
    assert "drloc with weight 0.1" in (aux / "log.txt").read_text()
    assert [read(run / "result.json")["aux"] for run in (plain, aux)] == ["none", "drloc"]


def test_the_mlp_is_not_part_of_the_model(runs):
    _, plain, aux = runs
    for folder in ("model", "best"):
        saved = [load_file(run / folder / "model.safetensors") for run in (plain, aux)]
        assert saved[0].keys() == saved[1].keys()
    assert read(plain / "result.json")["parameters"] == read(aux / "result.json")["parameters"]


def test_a_finished_run_is_resumed_with_its_settings(runs, capsys):
    source, _, aux = runs
    assert train(source, aux, "--resume", "--val", "0.3", "--aux", "drloc", "--drloc.hidden", "32") == 0
    said = refused(capsys, "train", source, "--out", aux, "--resume", "--aux", "drloc", "--drloc.pairs", "9")
    assert "--drloc.pairs 9 differs from the run's 64" in said


@pytest.mark.parametrize("variant", ["ce", "all"])
def test_other_variants_train(folder, tmp_path, variant):
    flags = ("--val", "none", "--aux", "drloc", "--drloc.hidden", "16", "--drloc.schedule", "released")
    assert train(folder, tmp_path / "run", *flags, "--drloc.variant", variant) == 0
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["drloc"] > 0


WRONG = {
    "no aux": (["--drloc.pairs", "9"], ["add --aux drloc"]),
    "pairs": (["--aux", "drloc", "--drloc.pairs", "0"], ["--drloc.pairs 0: must be at least 1"]),
    "grid": (["--aux", "drloc", "--drloc.grid", "1"], ["at least 2"]),
    "weight": (["--aux", "drloc", "--drloc.weight", "-1"], ["--drloc.weight -1.0: must be at least 0"]),
    "no number": (["--aux", "drloc", "--drloc.weight", "nan"], ["a finite number"]),
    "one token": (["--aux", "drloc", "--size", "4"], ["4 px has one", "--size"]),
    "no file": (["--from", "nowhere.pth"], ["no weights file nowhere.pth"]),
    "schedule": (["--epochs", "3", "--optim.schedule-epochs", "2"], ["--optim.schedule-epochs 2"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_settings(folder, tmp_path, capsys, what):
    flags, words = WRONG[what]
    said = refused(capsys, "train", folder, "--out", tmp_path / "run", *TINY, *flags)
    assert all(word in said for word in words), said
    assert not (tmp_path / "run").exists()


def test_wrong_settings_from_python():
    for settings, said in (({"aux": "rotation"}, "none, drloc"), ({"preset": "theirs"}, "paper, released")):
        with pytest.raises(UserError, match=said):
            check(TrainConfig(**settings)) if "aux" in settings else drloc.scratch(**settings)


# --- weights to start from ------------------------------------------------------------------------------------------

STILL = ("--optim.lr", "0", "--optim.min-lr", "0", "--val", "none")


def started_weights(source, out, path) -> dict[str, torch.Tensor]:
    """Train with a rate of 0 and return the weights, which are those of the start."""
    assert train(source, out, *STILL, "--from", str(path)) == 0
    return load_file(out / "model" / "model.safetensors")


@pytest.mark.parametrize("kind", ["run", "model folder", "checkpoint", "file"])
def test_a_run_starts_from_any_weights_but_for_the_head(runs, tmp_path, kind):
    source, plain, _ = runs
    path = {
        "run": plain,
        "model folder": plain / "model",
        "checkpoint": sorted((plain / "checkpoints").iterdir())[-1],
        "file": plain / "model" / "model.safetensors",
    }[kind]
    before, after = load_file(plain / "model" / "model.safetensors"), started_weights(source, tmp_path / "run", path)
    for name, value in before.items():
        assert torch.equal(value, after[name]) is (not name.startswith("head.")), name
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Its head is dropped: head.bias, head.weight." in log
    assert "left as initialised" not in log


def test_what_a_file_lacks_is_said(runs, tmp_path):
    source, plain, _ = runs
    weights = load_file(plain / "model" / "model.safetensors")
    save_file({name: v for name, v in weights.items() if "blocks.2." not in name}, tmp_path / "part.safetensors")
    started_weights(source, tmp_path / "run", tmp_path / "part.safetensors")
    assert "left as initialised: blocks.2.norm1.weight" in (tmp_path / "run" / "log.txt").read_text()


def test_swins_released_names_are_understood(tmp_path):
    from vitling.backbones import load_weights

    source, target = (create(SWIN, seed=seed) for seed in (1, 2))
    old = {}
    for name, value in source.timm_model.state_dict().items():
        parts = name.split(".")
        if "downsample" in parts:
            parts[1] = str(int(parts[1]) - 1)
        old[".".join(parts)] = value.clone()
    old["head.weight"], old["head.bias"] = torch.zeros(1000, 768), torch.zeros(1000)
    torch.save({"model": old}, tmp_path / "swin.pth")
    transfer = load_weights(target, tmp_path / "swin.pth")
    assert transfer.missing == []
    assert transfer.dropped_heads == ["head.weight", "head.bias"]
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters()))


# --- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_what_both_presets_share(preset):
    config = drloc.scratch(SWIN, preset)
    check(config)
    assert (config.size, config.batch, config.val, config.aux) == (224, 1024, "none", "drloc")
    optim = config.optim
    assert (optim.lr, optim.min_lr, optim.warmup_lr, optim.warmup_epochs) == (1e-3, 1e-5, 1e-6, 20)
    assert (optim.weight_decay, optim.clip, optim.clip_per, optim.betas) == (0.05, 5.0, "global", (0.9, 0.999))
    views = config.views
    assert (views.augment, views.erase, views.mixup, views.cutmix) == ("timm", 0.25, 0.8, 1.0)
    assert (views.mix_per, views.mix_prob, views.flip, views.scale) == ("batch", 1.0, 0.5, (0.08, 1.0))
    assert views.crop_fraction * 256 == 224
    assert (config.objective.smoothing, config.objective.drop_path) == (0.1, 0.2)
    assert (config.drloc.variant, config.drloc.pairs, config.drloc.hidden) == ("l1", 64, 512)


def test_the_paper():
    config = drloc.scratch(SWIN)
    assert (config.epochs, config.optim.schedule_epochs, config.optim.cosine_from) == (100, None, "warmup")
    assert (config.drloc.target, config.drloc.schedule, config.drloc.pooling) == ("offset/k", "constant", "adaptive")
    assert config.loop.drop_last is False
    assert drloc.scratch("t2t_vit_14").objective.drop_path == 0.1


def test_the_released_code():
    config = drloc.scratch(SWIN, "released")
    assert (config.epochs, config.optim.schedule_epochs, config.optim.cosine_from) == (101, 300, "start")
    assert (config.drloc.target, config.drloc.schedule, config.drloc.pooling) == ("offset", "released", "released")
    assert config.loop.drop_last is True
    assert drloc.scratch("t2t_vit_14", "released").objective.drop_path == 0.0
    assert drloc.scratch("t2t_vit_14", "released").drloc.grid == 7
    assert drloc.scratch("vit_base_patch16_224.drloc", "released").drloc.grid == 14
    inits = {net: drloc.scratch(net, "released").drloc.init for net in (SWIN, "t2t_vit_14", "cvt_13", "resnet50")}
    assert inits == {SWIN: "trunc_normal", "t2t_vit_14": "trunc_normal", "cvt_13": "torch", "resnet50": "torch"}
    assert drloc.scratch(SWIN).drloc.init == "torch"


@pytest.mark.parametrize("batch", [128, 512, 1024])
def test_all_released_learning_rates_scale_with_the_batch(batch):
    """The released code multiplies its base, warm-up and minimum rates of 5e-4, 5e-7 and 5e-6 by batch / 512."""
    found, paper = (drloc.scratch(SWIN, preset, batch=batch).optim for preset in ("released", "paper"))
    factor = batch / 512
    assert (found.lr, found.warmup_lr, found.min_lr) == pytest.approx((5e-4 * factor, 5e-7 * factor, 5e-6 * factor))
    assert (paper.lr, paper.warmup_lr, paper.min_lr) == pytest.approx((5e-4 * factor, 1e-6, 1e-5))


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_without_drloc_nothing_else_differs(preset):
    plain, aux = drloc.scratch(SWIN, preset, aux=False), drloc.scratch(SWIN, preset)
    check(plain)
    assert plain.aux == "none"
    assert replace(plain, aux=aux.aux, drloc=aux.drloc) == aux


def test_another_length_or_batch():
    short = drloc.scratch(SWIN, epochs=10, batch=128)
    assert (short.epochs, short.optim.warmup_epochs, short.optim.lr) == (10, 2, 1.25e-4)
    assert drloc.scratch(SWIN, epochs=300).optim.warmup_epochs == 20
    assert drloc.scratch(SWIN, "released", epochs=300).optim.schedule_epochs == 300


def test_fine_tuning():
    config = drloc.finetune(SWIN, "swin.pth")
    check(config)
    assert (config.from_, config.epochs, config.batch) == ("swin.pth", 100, 1024)
    assert (config.optim.lr, config.optim.warmup_epochs, config.optim.weight_decay) == (5e-4, 10, 0.05)
    assert config.drloc.target == "offset/k"


class Weighed:
    def attach(self, name, term, weight):
        self.weight = weight


@pytest.mark.parametrize(("preset", "weights"), [("paper", [0.5, 0.5, 0.5]), ("released", [0.0, 0.25, 0.3571])])
def test_the_weight_over_a_run(preset, weights):
    config = drloc.scratch(SWIN, preset, epochs=101)
    config = replace(config, drloc=replace(config.drloc, weight=0.5))
    objective = Weighed()
    attach_auxiliary(objective, object(), config)
    found = [
        objective.weight(Progress(epoch * 3, 303, 101)) if callable(objective.weight) else objective.weight
        for epoch in (0, 10, 100)
    ]
    assert found == pytest.approx(weights, abs=5e-5)


def test_a_recipe_trains(folder, tmp_path):
    """Small in all that costs time."""
    from vitling.runs.train import train as run

    save_file(create("vit_micro_patch4_32", 16, seed=3).timm_model.state_dict(), tmp_path / "start.safetensors")
    config = drloc.finetune("vit_micro_patch4_32", str(tmp_path / "start.safetensors"), epochs=1, batch=16)
    config = replace(config, source=str(folder), out=str(tmp_path / "run"), size=8)
    result = run(replace(config, loop=replace(config.loop, device="cpu", trackers=())))
    assert result["finished"]
    assert "1 resized" in (tmp_path / "run" / "log.txt").read_text()
