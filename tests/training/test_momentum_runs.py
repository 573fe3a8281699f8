"""Methods with a momentum copy in the loop: processes, passes, resumes, few images, a collapse."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_folder
from tests.methods.helpers import METHODS, make
from tests.tiny import Stop, StopAfter, relative_distance, tiny_backbone
from tests.training.helpers import ALONE, latest, lines, open_store, run_two_processes
from tests.training.momentum_run import CHANGES, comparable, settings, train
from vitling.console import Log
from vitling.data.store import Store
from vitling.errors import RunAborted
from vitling.evaluation.watching import watch_pretraining
from vitling.methods.dino.loss import DINO
from vitling.methods.dino.settings import DINOConfig
from vitling.methods.esvit.loss import EsViT
from vitling.methods.esvit.settings import adapt, recipe
from vitling.objectives.progress import Progress
from vitling.training import CheckpointConfig, RunDirectory, fit, trainer
from vitling.training.optim import make_optimiser
from vitling.training.pace import measure_pace
from vitling.views.plan import Flip, Group, Plan, Policy


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), classes=3, each=11)


@pytest.fixture(scope="module")
def store(images) -> Store:
    return open_store(images)


@pytest.fixture(scope="module")
def two(images, tmp_path_factory) -> Path:
    """Return the folder with the results of two processes."""
    folder = tmp_path_factory.mktemp("two")
    run_two_processes("tests.training.momentum_run", images, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(method, two, store, tmp_path):
    """Weights, the copy, the queue with its order and the centre."""
    one = train(method, store, tmp_path / "run", ALONE, **comparable(method))
    other = latest(two / method / "0")["objective"]
    assert one.keys() == other.keys()
    assert relative_distance(one, other, make(method).state_dict()) < 1e-3
    for name in ("queue.ids", "queue.keys", "queue.at", "centre.mean", "region_centre.mean"):
        if name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-4, rtol=0)
    for a, b in zip(lines(tmp_path / "run"), lines(two / method / "0"), strict=True):
        assert (a["epoch"], a["step"]) == (b["epoch"], b["step"])
        assert abs(a["loss"] - b["loss"]) < 1e-4
    assert "Batch norm" not in (two / method / "0" / "log.txt").read_text()


@pytest.mark.parametrize("method", ["moco-v2", "dino", "esvit"])
def test_passes_change_nothing_where_images_are_not_compared(method, store, tmp_path):
    """Queue and centre are updated by whole steps."""
    one, three = (train(method, store, tmp_path / str(n), ALONE, accumulate=n) for n in (1, 3))
    assert relative_distance(one, three, make(method).state_dict()) < 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_bit_identical(method, store, tmp_path):
    whole = train(method, store, tmp_path / "whole", ALONE)
    changes = CHANGES.get(method, {})
    run = RunDirectory(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(Stop):
        fit(make(method, **changes), store, settings(method), [StopAfter(2)], run=run)
    resumed = make(method, **changes)
    fit(resumed, store, settings(method), run=run)
    assert "Resuming" in (tmp_path / "run" / "log.txt").read_text()
    for (name, a), b in zip(whole.items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("method", ["dino", "esvit"])
def test_steps_of_prototypes_are_counted_from_their_first(method, store, tmp_path, monkeypatch):
    """Prototypes are frozen for an epoch; the rest of the head is not."""
    made = []
    monkeypatch.setattr(
        trainer, "make_optimiser", lambda *arguments: made.append(make_optimiser(*arguments)) or made[0]
    )
    objective, config = make(method, freeze_epochs=1.0), replace(settings(method), epochs=3)
    steps = fit(objective, store, config, run=RunDirectory(tmp_path)).steps
    active = [step for step in range(steps) if objective.newly_active(Progress(step, steps, 3))]
    assert active == [steps // 3]
    heads = objective.student_heads()
    assert len(heads) == (2 if method == "esvit" else 1)
    for head in heads:
        counted = {p: int(made[0].state[p]["step"]) for p in head.parameters()}
        assert counted.pop(head.prototypes) == steps * 2 // 3
        assert set(counted.values()) == {steps}


def test_the_pace_is_measured_with_regions(store):
    """Regions may start late, so --minutes must not measure steps without them."""
    objective = make("esvit", region_from=3000)
    measure_pace(objective, store, replace(settings("esvit"), epochs=4000), ALONE, Log(silent=True))
    assert objective.phase == 1


FEW = [
    *((method, {}) for method in METHODS),
    ("moco-v2", {"queue": 80, "mask_own": True}),
    ("dino", {"local_crops": 0}),
    ("esvit", {"local_crops": 0}),
    ("esvit", {"match": "argmax"}),
    ("esvit", {"region_from": 1, "match": "sinkhorn"}),
    ("esvit", {"region_stride": 2}),
]


@pytest.mark.parametrize(("method", "changes"), FEW, ids=str)
def test_fewer_images_than_a_batch_or_a_queue(method, changes, store, tmp_path):
    objective = make(method, **changes)
    outcome = fit(objective, store, replace(settings(method), batch=64), run=RunDirectory(tmp_path))
    assert outcome.steps == 4
    assert all(value.isfinite().all() for value in objective.state_dict().values())
    if method == "moco-v2" and changes:  # two epochs and a half of keys: an image has two or three of them
        counts = torch.bincount(objective.queue.ids, minlength=33)
        assert counts.sum() == 80
        assert set(counts.tolist()) == {2, 3}


@pytest.mark.parametrize("centre", [0.9, 1.0])
def test_an_uncentred_teacher_collapses_and_is_stopped(centre, tmp_path):
    """48 images, 320 steps, slightly more than the grace period. Colours stay because they identify these images."""
    store = open_store(make_folder(tmp_path / "images", each=16))
    config = DINOConfig(centre=centre, momentum=0.97, prototypes=1024, hidden=128, bottleneck=64)
    config = replace(config, teacher_start=0.04, teacher_temperature=0.04)
    torch.manual_seed(0)
    objective = DINO(tiny_backbone(), Plan((CUT, CUT)), config)
    length = replace(settings("dino", lr=1e-3, clip=5.0), epochs=80, batch=12, checkpoint=CheckpointConfig(1e9))
    watcher = watch_pretraining(store, None, 16, 0.875, 5, stop=True, warn=pytest.fail)
    stops = pytest.raises(RunAborted, match=r"all images look alike to the network.*a centred teacher")
    with stops if centre == 1 else nullcontext():
        outcome = fit(objective, store, length, [watcher], run=RunDirectory(tmp_path))
        assert outcome.metrics["features/spread"] > 0.4


CUT = Group(16, policy=Policy(scale=(0.3, 1.0), steps=(Flip(),)))


@pytest.mark.slow
@pytest.mark.parametrize(("centre", "seed"), [(0.9, 0), (0.9, 1), (0.9, 2), (1.0, 0)])
def test_esvit_for_few_images_collapses_only_without_centring(centre, seed, tmp_path):
    """256 images of smooth colours in batches of 64, 340 steps; batch, prototypes, temperatures, momentum, learning
    rates and decay are those of the recipe."""
    images = tmp_path / "images"
    images.mkdir()
    for i in range(256):
        colours = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((20, 16), Image.Resampling.BICUBIC).save(images / f"{i:03d}.png")
    store = open_store(images)
    stage = adapt(recipe(epochs=85), len(store))
    config = replace(stage.objective, centre=centre, hidden=128, bottleneck=64, local_crops=0)
    torch.manual_seed(seed)
    cut = replace(CUT, return_boxes=config.needs_boxes)
    objective = EsViT(tiny_backbone(), Plan((cut, cut)), config)
    length = replace(settings("esvit"), epochs=85, batch=stage.batch, seed=seed, optim=stage.optim)
    watcher = watch_pretraining(store, None, 16, 0.875, 5, stop=True, warn=pytest.fail)
    stops = pytest.raises(RunAborted, match=r"the answers died out.*a centred teacher")
    with stops if centre == 1 else nullcontext():
        run = RunDirectory(tmp_path)
        outcome = fit(objective, store, replace(length, checkpoint=CheckpointConfig(1e9)), [watcher], run=run)
        assert outcome.metrics["features/spread"] > 0.4
        assert max(outcome.metrics[name] for name in ("view", "region")) < 0.6 * math.log(1024)
