"""Layers of settings: which origin wins, and what counts as explicit."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from vitling.data.config import DataConfig
from vitling.settings.config import PLANNED, PretrainConfig, TrainConfig
from vitling.settings.facts import Facts, Fit
from vitling.settings.layers import Draft, list_explicit
from vitling.settings.names import apply_overrides, mark_all_explicit
from vitling.settings.resolve import resolve
from vitling.settings.saved import load_config, load_resolved, reopen, to_json
from vitling.training.config import OptimConfig

FLOWERS = Facts(2_040, classes=102, has_test=True)


def test_a_stronger_origin_wins_whatever_the_order():
    draft = Draft(TrainConfig())
    draft.set("optim.lr", 3.0, "plan", "")
    draft.set("optim.lr", 2.0, "method", "")
    assert (draft.get("optim.lr"), draft.layer("optim.lr")) == (3.0, "plan")
    draft.set("optim.lr", 4.0, "pace", "")
    assert draft.get("optim.lr") == 4.0


def test_explicit_values_stay_even_at_the_default():
    named = Draft(replace(PretrainConfig(), explicit=("epochs", "optim.weight_decay")))
    for name in ("epochs", "optim.weight_decay"):
        assert not named.set(name, 7, "plan", "")
        assert named.get(name) == dict_of(PretrainConfig())[name]
    assert named.set("seed", 7, "method", "")


def dict_of(config):
    return {"epochs": config.epochs, "optim.weight_decay": config.optim.weight_decay}


def test_explicit_are_named_settings_and_those_that_differ():
    config = TrainConfig(seed=3, optim=OptimConfig(lr=1.0), explicit=("from", "batch"))
    assert set(list_explicit(config)) == {"seed", "optim.lr", "from_", "batch"}
    assert "optim.lr" in list_explicit(apply_overrides(TrainConfig(), {"optim.lr": None}))


def test_python_values_become_the_text_of_a_flag():
    config = apply_overrides(TrainConfig(), {"val": 0.2, "from_": Path("runs/a"), "optim.lr": 1e-3})
    assert (config.val, config.from_, config.optim.lr) == ("0.2", "runs/a", 1e-3)


@pytest.mark.parametrize("value", [None, PLANNED, "auto"])
def test_open_values_are_filled_even_if_they_are_explicit(value):
    name = {None: "size", PLANNED: "batch", "auto": "method"}[value]
    draft = Draft(replace(TrainConfig(), explicit=(name,)))
    draft.fill(name, "filled", "plan", "why")
    assert (draft.get(name), draft.origins[name].reason) == ("filled", "why")
    draft.fill(name, "again", "plan", "")
    assert draft.get(name) == "filled"


def test_a_draft_leaves_the_request_alone():
    request = PretrainConfig(method="esvit")
    resolve(request, FLOWERS)
    assert request == PretrainConfig(method="esvit")
    draft = Draft(request)
    resolve(draft, FLOWERS)
    assert draft.config == request


def test_all_explicit_settings_are_left_as_they_are():
    config = resolve(PretrainConfig(method="dino", backbone="deit_tiny_patch16_224"), FLOWERS).config
    again = resolve(mark_all_explicit(config), replace(FLOWERS, images=200_000)).config
    assert replace(again, explicit=()) == replace(config, explicit=())


def test_every_value_that_is_not_the_default_has_an_origin_and_a_reason():
    resolved = resolve(PretrainConfig(method="esvit", batch=96), FLOWERS)
    assert resolved.origins["batch"].layer == "explicit"
    assert resolved.origins["esvit.momentum"].layer == "method"
    changed = set(list_explicit(resolved.config))
    assert changed <= resolved.origins.keys()
    assert all(resolved.origins[name].reason for name in changed)


def test_the_pace_shortens_explicit_epochs_and_what_depends_on_them():
    request = PretrainConfig(method="esvit", epochs=500, minutes=3.0)
    long = resolve(request, FLOWERS)
    short = resolve(reopen(long), replace(FLOWERS, fit=Fit(20, "on")))
    assert (long.config.epochs, short.config.epochs) == (500, 20)
    assert short.origins["epochs"].layer == "pace"
    assert short.config.optim.warmup_epochs == 2
    assert short.config.esvit.momentum < long.config.esvit.momentum
    kept = resolve(replace(request, explicit=("esvit.momentum",)), replace(FLOWERS, fit=Fit(20, "on")))
    assert kept.config.esvit.momentum == PretrainConfig().esvit.momentum


def test_settings_and_origins_survive_json(tmp_path):
    import json

    resolved = resolve(PretrainConfig(method="dino", seed=5, out=str(tmp_path)), FLOWERS)
    loaded = load_resolved(PretrainConfig, json.loads(json.dumps(to_json(resolved))), "config.json")
    assert loaded.config == resolved.config
    assert loaded.origins == resolved.origins


def test_a_saved_run_starts_no_download():
    values = asdict(TrainConfig(data=DataConfig(download=True)))
    assert not load_config(TrainConfig, values, "config.json").data.download
