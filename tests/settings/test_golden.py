"""Resolved settings of 400 commands, compared with golden ones that an earlier implementation recorded."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

from tests.settings.golden_cases import FACTS, cases
from vitling.data.dataset import Dataset, Splits
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.runs.resolving import resolve_stages
from vitling.runs.timing import TooFewEpochsError, ending_seconds, fitting_epochs
from vitling.settings.config import FinetuneConfig, PretrainConfig, TrainConfig
from vitling.settings.facts import Fit
from vitling.settings.layers import Draft
from vitling.settings.names import leaves, settings_in
from vitling.settings.plan import drop_pretraining, is_pretraining_optional, min_pretrain_epochs, plan_run
from vitling.settings.resolve import Resolved, resolve
from vitling.settings.saved import load_config, resume_config

GOLDEN = json.loads((Path(__file__).parent / "golden" / "settings.json").read_text())
KINDS = {"train": TrainConfig, "pretrain": PretrainConfig, "finetune": FinetuneConfig}
PER_START = {"out", "source", "from_", "resume", "overwrite", "explicit", "continue_from"}
# Besides, `watch_every` is resolved now, where it stayed open before.
FIXES: dict[str, dict[str, dict[str, Any]]] = {  # differences from the earlier implementation, on purpose
    # `pretrain` chose another network than `train` for the same images without a GPU
    "pretrain tiny-cpu": {"run": {"backbone": "vit_nano_patch4_32"}},
    # the plan's 800 epochs became EsViT's default of 798, although the plan said 800
    **{
        f"train photos --method esvit{more}": {"pretrain": {"epochs": 800, "optim.warmup_epochs": 800 / 30}}
        for more in ("", " --esvit.match argmax")
    },
}
# the plan counted held-out images as training images: --epochs and --batch follow the images that are trained on
for _name, _stages in json.loads((Path(__file__).parent / "golden" / "held_out.json").read_text()).items():
    for _stage, _settings in _stages.items():
        FIXES.setdefault(_name, {}).setdefault(_stage, {}).update(_settings)
# without a GPU, labelled images are learnt in one stage: most of them by another network, from weaker views
LIGHT = {"views.scale": [0.35, 1.0], "views.erase": 0.0, "views.mixup": 0.0}
MIXED, UNMIXED = LIGHT | {"views.mix_prob": 0.5}, LIGHT | {"views.cutmix": 0.0}
SMALL_NETWORK = {"backbone": "resnet10t", "size": 64, "store_size": 128, "batch": 32, "optim.lr": 1e-3}
ONE_STAGE = {"train few-cpu"}
for _name in cases():
    if _name.startswith("train photos-cpu --backbone"):
        FIXES.setdefault(_name, {}).setdefault("run", {}).update(MIXED)
for _name, _views in (("", MIXED), (" --minutes 8", UNMIXED), (" --minutes 1", UNMIXED)):
    FIXES.setdefault(f"train photos-cpu{_name}", {}).setdefault("run", {}).update(SMALL_NETWORK | _views)
FIXES["train few-cpu"] = {
    "run": {
        **(SMALL_NETWORK | MIXED),
        "method": "supervised",
        "epochs": 1800,
        "eval_every": 180,
        "views.policy": "",
        "preset": "auto",
        "optim.min_lr": 1e-6,
        "optim.warmup_epochs": 20.0,
        "optim.cosine_from": "warmup",
        "optim.clip": 5.0,
        "optim.weight_decay": 0.05,
        "optim.decay_all": False,
        "pretrain_epochs": None,
        "pretrain_size": None,
        "pretrain_optim.lr": None,
    }
}
NEEDS_NETWORK = {"pretrain photos --method esvit --esvit.region-from 5000"}  # refused when the network is built
RECORDED = {name.partition(".")[0] for name in GOLDEN["defaults"]["pretrain"]}
ADDED = {
    *("explain", "report", "calibrate", "labels", "labels_hash", "init", "drloc.init", "idmm.crops"),
    *("dino.teacher_warmup_per", "esvit.teacher_warmup_per", "loop.epoch_part", "loop.batch_norm_group"),
    *(f"{group}.{name}" for group in ("optim", "pretrain_optim") for name in ("schedule", "drops")),
}
NEW_SETTINGS = ADDED | {
    f"{method.field}.{name}"
    for method in METHODS.values()
    if method.config and method.field not in RECORDED
    for name, _ in leaves(method.config())
}


@pytest.fixture
def pretend(monkeypatch):
    """Replace the data by images that exist in number only."""

    def use(facts: dict[str, Any]) -> None:
        def read_splits(spec: Any, config: Any, merge_val: bool = False, needs_train: bool = True) -> Splits:
            classes, multi, held = facts.get("classes", 0), facts.get("multi", False), facts.get("own_val", 0)
            val = None if merge_val or not held else made_dataset("val", held, classes, multi)
            n = facts["images"] - (held if val is not None else 0)
            pool = made_dataset("pool", facts["pool"], 0) if facts.get("pool") else None
            test = made_dataset("test", facts["images"] // 2, classes, multi) if facts.get("test") else None
            return Splits(made_dataset("train", n, classes, multi), val, pool, hidden_test=test)

        for module in ("vitling.data.splits", "vitling.runs.images"):
            monkeypatch.setattr(f"{module}.read_splits", read_splits)
        monkeypatch.setattr("vitling.runs.resolving.read_source", lambda *_: None)
        monkeypatch.setattr("vitling.runs.images.measure_median_side", lambda dataset: facts.get("longer", 512))
        monkeypatch.setattr("vitling.runs.images.count_cores", lambda: 2)
        monkeypatch.setattr("vitling.runs.images.has_bf16", lambda: False)
        monkeypatch.setattr("vitling.data.look_alikes.group_look_alikes", lambda dataset, config: (dataset.groups, 0))

    return use


def made_dataset(name: str, n: int, classes: int, multi: bool = False) -> Dataset:
    labels = np.arange(n) % classes if classes else None
    if multi:
        labels = np.eye(classes, dtype=bool)[labels]
    names = tuple(f"c{i}" for i in range(classes))
    return Dataset(name, [f"{name}/{i}" for i in range(n)], lambda i: b"", np.arange(n), labels, names)


class Stores:
    """The part of `runs.images.Stores` that the estimate of the time after training reads."""

    seconds_per_image = 0.001

    def __init__(self, splits: Splits):
        self.splits, self.val = splits, splits.val


def measure(facts: dict[str, Any], elapsed: float):
    """Fit stages into --minutes at a fixed pace."""
    pace, compiled = (3000.0, "on") if facts.get("gpu", True) else (60.0, "off")

    def shorten(resolved: Resolved, known: Any, splits: Splits, least: int = 1) -> Resolved:
        config = resolved.config
        if config.minutes is None:
            return resolved
        left = 60 * config.minutes - elapsed - ending_seconds(config, Stores(splits), pace)
        epochs = max(1, min(config.epochs, int(fitting_epochs(left, pace, len(splits.train)))))
        if epochs < least:
            raise TooFewEpochsError("too few")
        return resolve(Draft(config, resolved.origins), replace(known, fit=Fit(epochs, compiled)))

    return shorten


def resolve_case(case: dict[str, Any], flags: list[str]) -> dict[str, Resolved]:
    """Resolve as the command does; a first stage that is too short for its time is skipped."""
    facts, request = FACTS[case["facts"]], parse(case["verb"], ["DATA", "--out", "out", *flags])
    gpu, shorten = facts.get("gpu", True), measure(facts, 8.0 if case["verb"] == "train" else 0.0)
    try:
        return resolve_stages(request, gpu, lambda *known: shorten(*known, least=least_epochs(request, gpu, known[0])))
    except TooFewEpochsError:
        from vitling.runs.images import gather_facts

        seen = gather_facts(request, None, gpu)
        plan = Draft(request)
        plan_run(plan, seen)
        return resolve_stages(drop_pretraining(plan).config, gpu, shorten)


def least_epochs(request: Any, gpu: bool, resolved: Resolved) -> int:
    if not isinstance(request, TrainConfig) or not isinstance(resolved.config, PretrainConfig):
        return 1
    from vitling.runs.images import gather_facts

    seen, plan = gather_facts(request, None, gpu), Draft(request)
    plan_run(plan, seen)
    optional = plan.config.minutes is not None and seen.classes > 0 and is_pretraining_optional(plan)
    return min_pretrain_epochs(plan.config) if optional else 1


def parse(verb: str, flags: list[str]) -> Any:
    config = tyro.cli(KINDS[verb], args=flags, config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone))
    return replace(config, explicit=settings_in(flags))


def plain(config: Any) -> dict[str, Any]:
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in leaves(config)}
    return {name: value for name, value in values.items() if name not in PER_START}


def expected(verb: str, stage: str, settings: dict[str, Any]) -> dict[str, Any]:
    kind = {"large": "finetune", "pretrain": "pretrain"}.get(stage, verb)
    return GOLDEN["defaults"][kind] | settings


def planned_optimisers(case: dict[str, Any], stage: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what `train` has planned since then: Muon for transformers from random weights, without a preset that was
    passed."""
    groups = {"run": ("optim", "pretrain_optim"), "pretrain": ("optim",)}.get(stage, ())
    other = "--from" in case["flags"] or "--preset" in case["flags"] or "start" in case
    if case["verb"] != "train" or other or wanted["backbone"].startswith(("resnet", "convnext")):
        return {}
    new = {}
    for group in groups:
        first = stage == "pretrain" or group == "pretrain_optim"
        flag = "--pretrain-optim" if first else "--optim"
        if (not first or wanted["method"] == "idmm") and f"{flag}.name" not in case["flags"]:
            new[f"{group}.name"] = "muon"
            if f"{flag}.weight-decay" not in case["flags"]:
                new[f"{group}.weight_decay"] = 0.05
    return new


def made_start(folder: Path, case: dict[str, Any]) -> None:
    """Write what --from is asked for: the network and the size of its views."""
    (folder / "model").mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"size": case.get("start_size", 112)}))
    backbone = case.get("start", "pvt_v2_b0")
    about = {"architecture": backbone, "model_args": {}, "vitling": {"backbone": backbone}}
    (folder / "model" / "config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("name", [name for name in cases() if name not in NEEDS_NETWORK])
def test_settings_are_resolved_as_before(name, pretend, tmp_path):
    case, golden = cases()[name], GOLDEN["cases"][name]
    pretend(FACTS[case["facts"]])
    made_start(tmp_path / "start", case)
    flags = [str(tmp_path / "start") if flag == "START" else flag for flag in case["flags"]]
    flags += ["--from", str(tmp_path / "start")] if "start" in case else []
    try:
        stages = {stage: resolved.config for stage, resolved in resolve_case(case, flags).items()}
        if "again" in case:
            saved = load_config(KINDS[case["verb"]], json.loads(json.dumps(asdict(stages["run"]))), "config.json")
            again = parse(case["verb"], ["--out", "out", "--resume", *case["again"]])
            stages = {"run": resume_config(again, saved)}
        if "after" in case:
            (tmp_path / "before").mkdir()
            (tmp_path / "before" / "config.json").write_text(json.dumps(asdict(stages["run"])))
            later = [*case["after"], "--continue-from", str(tmp_path / "before")]
            stages = {stage: resolved.config for stage, resolved in resolve_case(case, later).items()}
    except UserError:
        if "error" not in golden:
            raise
        return
    assert "error" not in golden
    for stage, config in stages.items():
        found = plain(config)
        wanted = expected(case["verb"], stage, golden[stage]) | FIXES.get(name, {}).get(stage, {})
        wanted |= planned_optimisers(case, stage, wanted)
        wanted = {n: v for n, v in wanted.items() if n in found}
        assert found.keys() - wanted.keys() <= NEW_SETTINGS
        differing = {n: (found[n], wanted[n]) for n in wanted if found[n] != wanted[n] and n != "watch_every"}
        assert not differing, stage
    without_labels = case["verb"] == "train" and case["facts"] == "unlabelled"  # its second stage never runs
    dropped = {"run"} if without_labels else {"pretrain"} if name in ONE_STAGE else set()
    assert stages.keys() == golden.keys() - dropped
