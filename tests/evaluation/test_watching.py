"""Watchers of pre-training: in healthy runs, in deliberately broken runs, and on made-up numbers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.conftest import make_folder
from tests.tiny import tiny_backbone
from vitling import data
from vitling.data.dataset import merge_unlabelled
from vitling.data.store import build_store
from vitling.errors import RunAborted
from vitling.evaluation.collapse import CollapseWatcher
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.knn import knn_votes
from vitling.evaluation.metrics import top1
from vitling.evaluation.spread import measure_spread
from vitling.evaluation.watching import ImageSubset, KnnWatcher, SpreadWatcher, split_for_knn, watch_pretraining
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.objectives import Objective
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, RunDirectory, fit
from vitling.views.plan import Flip, Group, Plan, Policy

SIZE, CROP, BATCH = 16, 0.875, 12


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """48 images, three classes."""
    return build_store(data.open(str(make_folder(tmp_path_factory.mktemp("made"), each=16)), val="none").train, 16)


def make_idmm(images: int) -> IDMM:
    """Make IDMM without smoothing, so that chance level costs ln N and certainty nothing."""
    config = IDMMConfig(smoothing=0.0)
    return IDMM(tiny_backbone(drop_path=0.1), idmm_plan(config, SIZE), images, config)


class TwoViews(Objective):
    """SimCLR; or without negatives and stop-gradient, where a constant output is optimal."""

    def __init__(self, negatives: bool):
        views = Group(SIZE, count=2, policy=Policy(scale=(0.3, 1.0), steps=(Flip(),)))  # colour tells these images
        super().__init__(tiny_backbone(), Plan((views,)))
        self.negatives = negatives
        self.projection = nn.Sequential(nn.Linear(self.backbone.dim, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, views, batch, progress):
        z = F.normalize(self.projection(self.backbone(views[0].pixels).pooled), dim=1)
        pairs = torch.arange(len(z)).roll(len(z) // 2)
        if not self.negatives:
            return {"alike": 1 - (z * z[pairs]).sum(dim=1).mean()}
        return {"contrast": F.cross_entropy((z @ z.T / 0.2).fill_diagonal_(-torch.inf), pairs)}

    def uniform_loss(self):
        return {"contrast": math.log(2 * BATCH - 1)}


def objective(kind: str, store) -> Objective:
    torch.manual_seed(0)
    return make_idmm(len(store)) if kind == "instances" else TwoViews(negatives=kind == "simclr")


def train(model, store, out, watcher, lr=2e-3):
    """Train 320 steps, slightly more than the grace period."""
    settings = FitConfig(
        epochs=80,
        batch=BATCH,
        optim=OptimConfig(lr=lr),
        loop=LoopConfig(device="cpu", trackers=()),
        checkpoint=CheckpointConfig(every_seconds=1e9),
    )
    run = RunDirectory(out)
    run.start(asdict(settings), ())
    return fit(model, store, settings, [watcher], run=run)


def watch(store, every=5):
    return watch_pretraining(store, None, SIZE, CROP, every, stop=True, warn=pytest.fail)


@pytest.mark.parametrize("kind", ["instances", "simclr"])
def test_healthy_runs_raise_no_alarm(kind, store, tmp_path):
    outcome = train(objective(kind, store), store, tmp_path / "run", watch(store, every=2))
    measured = ["knn/top1", "features/spread", "features/effective_rank", "features/cosine"]
    assert all(math.isfinite(outcome.metrics[name]) for name in measured)
    assert outcome.metrics["knn/top1"] > 0.5


def test_collapse_is_named_and_stops_the_run(store, tmp_path):
    with pytest.raises(RunAborted) as stop:
        train(objective("alike", store), store, tmp_path / "run", watch(store))
    words = str(stop.value)
    assert stop.value.exit_code == 3
    assert words.startswith("Epoch 75: this run has collapsed. Since epoch ")
    for part in ("all images look alike to the network", "stop-gradient", "--optim.lr"):
        assert part in words
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in written] == list(range(1, 76))


def test_loss_stuck_at_ln_k_is_named(store, tmp_path):
    """A tiny learning rate keeps the features of the random start, which are healthy."""
    with pytest.raises(RunAborted, match=r"Since epoch 5 the term 'global' sits at 3\.\d+, .* cost 3\.871") as stop:
        train(objective("instances", store), store, tmp_path / "run", watch(store), lr=1e-9)
    assert "higher --optim.lr" in str(stop.value)
    assert "look alike" not in str(stop.value)


# --- measurements ------------------------------------------------------------------------------------------------


def at(model, epoch=1, epochs=100, step=1000, **terms):
    return SimpleNamespace(objective=model, epoch=epoch, epochs=epochs, step=step, terms=terms)


def test_features_use_evaluation_mode_and_restore_training(store):
    model = objective("simclr", store)
    model.backbone.train()
    some = compute_pooled_features(model.backbone, store, SIZE, CROP, np.array([40, 3]), batch=1)
    everything = compute_pooled_features(model.backbone, store, SIZE, CROP, batch=7)
    assert everything.shape == (48, model.backbone.dim)
    assert torch.allclose(some, everything[[40, 3]], atol=1e-5)
    assert model.backbone.training


def test_compiled_backbone_is_bypassed(store):
    model = objective("simclr", store)
    model.backbone._compiled_call_impl = lambda *a, **k: pytest.fail("a graph of the training batch")
    assert SpreadWatcher(store, SIZE, CROP)(at(model))


def test_knn_classifies_the_hold_out_by_the_rest(store):
    model = objective("simclr", store)
    voters, queries = split_for_knn(store)
    features = compute_pooled_features(model.backbone, store, SIZE, CROP)
    votes = knn_votes(features[voters.ids], store.labels[voters.ids], features[queries.ids], [15], 3)[15]
    watcher = KnnWatcher(voters, queries, SIZE, CROP)
    assert watcher.k == 15  # 43 images of three classes vote
    assert watcher(at(model))["knn/top1"] == top1(votes, store.labels[queries.ids])


def test_hold_out_is_stratified_and_deterministic(store):
    voters, queries = split_for_knn(store)
    assert sorted([*voters.ids, *queries.ids]) == list(range(48))
    assert len(queries.ids) == 5
    assert set(queries.labels.tolist()) == {0, 1, 2}
    assert np.array_equal(queries.ids, split_for_knn(store)[1].ids)


def test_val_split_is_used_if_present(store):
    voters, queries = split_for_knn(store, val=store)
    assert len(voters.ids) == len(queries.ids) == 48


@pytest.fixture(scope="module")
def with_pool(store, tmp_path_factory):
    """The same 48 images and an unlabelled pool of 20; the first image and one of the pool cannot be read."""
    pool = data.open(str(make_folder(tmp_path_factory.mktemp("pool"), classes=2, first=50)), val="none").train
    both = merge_unlabelled(store.dataset, replace(pool, labels=None, class_names=()))
    broken = replace(both, reader=lambda row: b"" if row in (0, 60) else both.read(row))
    return build_store(broken, 16, use_cache=False, allow_bad=True)


def test_pool_neither_votes_nor_is_classified(store, with_pool):
    assert len(with_pool) == 66
    voters, queries = split_for_knn(with_pool)
    assert sorted([*voters.ids, *queries.ids]) == list(range(47))
    keys = store.dataset.keys
    for part in (voters, queries):
        assert part.labels.min() >= 0
        names = [with_pool.dataset.keys[i] for i in part.ids]
        assert part.labels.tolist() == [int(store.labels[keys.index(name)]) for name in names]
    everyone, held = split_for_knn(with_pool, val=store)
    assert everyone.ids.tolist() == list(range(47))
    assert len(held.ids) == 48


def test_pool_does_not_change_the_metrics(store):
    both = build_store(merge_unlabelled(store.dataset, replace(store.dataset, labels=None)), 16)
    model, parts = objective("simclr", store), [split_for_knn(s) for s in (store, both)]
    for mine, other in zip(*parts):
        assert np.array_equal(mine.ids, other.ids)
    alone, beside = (KnnWatcher(*p, SIZE, CROP)(at(model)) for p in parts)
    assert alone == beside


def test_groups_stay_together_with_a_pool(store):
    groups = np.arange(48) // 4
    grouped = replace(store.dataset, groups=groups)
    voters, queries = split_for_knn(build_store(merge_unlabelled(grouped, replace(store.dataset, labels=None)), 16))
    assert not set(groups[voters.ids]) & set(groups[queries.ids])


def test_spread_is_watched_without_labels_or_hold_out(tmp_path):
    alone = build_store(data.open(str(make_folder(tmp_path / "two", classes=2, each=1)), val="none").train, 16)
    assert split_for_knn(alone) is None
    watcher = watch(alone)
    assert isinstance(watcher.watcher, SpreadWatcher)
    assert all(map(math.isfinite, watcher(at(objective("simclr", alone))).values()))


def test_multi_label_is_scored_by_average_precision(store):
    labels = torch.stack([store.labels == 0, store.labels < 2], dim=1)
    dataset = SimpleNamespace(class_names=("first", "early"), name="made")
    several = SimpleNamespace(
        **{name: getattr(store, name) for name in ("fetch", "mean", "std", "device")}, labels=labels, dataset=dataset
    )
    watcher = KnnWatcher(
        ImageSubset(several, np.arange(0, 48, 2)), ImageSubset(several, np.arange(1, 48, 2)), SIZE, CROP
    )
    assert 0 < watcher(at(objective("simclr", store)))["knn/mean_average_precision"] <= 1


def test_spread_is_measured_on_a_sample(store):
    model = objective("simclr", store)
    features = compute_pooled_features(model.backbone, store, SIZE, CROP)
    whole, three = (SpreadWatcher(store, SIZE, CROP, sample=n)(at(model)) for n in (512, 3))
    assert whole["features/effective_rank"] == pytest.approx(measure_spread(features).effective_rank, rel=1e-4)
    assert three["features/cosine"] == pytest.approx(measure_spread(features[[0, 23, 47]]).cosine, rel=1e-4)


# --- alarms ------------------------------------------------------------------------------------


class FixedMetrics:
    """Watcher that returns made-up numbers."""

    every = 1

    def __init__(self, spread=0.8, rank=9.0):
        self.spread, self.rank = spread, rank

    def __call__(self, moment):
        return {"features/spread": self.spread, "features/effective_rank": self.rank, "features/cosine": 0.5}


class Parts:
    """The part of an objective that reports its health."""

    backbone = SimpleNamespace(dim=64)
    is_self_distillation = False

    def __init__(self, queue=1.0):
        self.queue = queue

    def uniform_loss(self):
        return {"view": 10.0, "not computed": 1.0, "one answer": 0.0}

    def health(self):
        return {"queue": self.queue}


def alarms(checks, epochs=100, first=30, steps=100) -> list[str]:
    """Return the alarms over checks, one per epoch of `steps` steps from epoch `first` on; omitted values are
    healthy."""
    messages = []
    watcher = CollapseWatcher(FixedMetrics(), stop=False, warn=messages.append)
    for i, check in enumerate(checks):
        watcher.watcher = FixedMetrics(check.get("spread", 0.8), check.get("rank", 9.0))
        epoch = first + i
        watcher(
            at(
                Parts(check.get("queue", 1.0)),
                epoch,
                epochs,
                epoch * steps,
                **{"view": check.get("view", 3.0), "one answer": 0.0},
            )
        )
    assert watcher.warnings == messages
    return messages


BAD = {
    "all images look alike": {"spread": 0.03},
    "along one direction: their effective rank is 1.3 of 64": {"rank": 1.3},
    "the queue died out": {"queue": 0.01},
    "the term 'view' sits at 9.995": {"view": 9.995},
    "the term 'view' sits at 14.000": {"view": 14.0},
}


@pytest.mark.parametrize("words", BAD)
def test_persistent_sign_raises_one_alarm(words):
    messages = alarms([{}, *[BAD[words]] * 9])
    assert len(messages) == 1
    assert words in messages[0]
    assert messages[0].startswith("Epoch 33: this run has collapsed. Since epoch 31 ")


def test_health_is_a_metric(monkeypatch):
    monkeypatch.setattr(Parts, "health", lambda self: {"answers to regions": 0.25})
    found = CollapseWatcher(FixedMetrics())(at(Parts(), 1, 9, 10, view=3.0))
    assert found["health/answers_to_regions"] == 0.25
    assert found["features/spread"] > 0


def test_disagreeing_teacher_is_no_alarm(monkeypatch):
    """Its loss is above that of uniform outputs; only a loss at that value means that nothing is learnt."""
    monkeypatch.setattr(Parts, "is_self_distillation", True)
    assert not alarms([{"view": 14.0}] * 9)
    assert alarms([{"view": 10.005}] * 9)


@pytest.mark.parametrize("words", BAD)
def test_dip_is_no_alarm(words):
    assert not alarms([BAD[words], BAD[words], {}] * 4)


@pytest.mark.parametrize(("epochs", "steps", "grace"), [(20, 10, 30), (100, 100, 10), (800, 8, 80), (100, 2, 150)])
def test_start_of_a_run_raises_no_alarm(epochs, steps, grace):
    messages = alarms([BAD["all images look alike"]] * grace, epochs, first=1, steps=steps)
    assert len(messages) == 1
    assert messages[0].startswith(f"Epoch {grace}: this run has collapsed. Since epoch 1 ")


def test_recovering_run_raises_no_alarm():
    assert not alarms([{"spread": 0.011 * i, "view": 10 - 0.004 * i} for i in range(30)])


def test_two_signs_share_one_message():
    (message,) = alarms([{"spread": 0.01, "rank": 1.1}] * 3)
    assert "look alike" in message
    assert "one direction" in message


def test_healthy_run_logs_nothing():
    assert not alarms([{}] * 70)


def test_later_term_has_its_own_grace_period():
    """EsViT's region loss may start late in a run, at ln K like every new term."""
    messages = []
    watcher = CollapseWatcher(FixedMetrics(), stop=False, warn=messages.append)
    without, later = Parts(), Parts()
    later.uniform_loss = lambda: {"view": 10.0, "region": 10.0}
    watcher(at(without, 30, 100, 3000, view=3.0))
    for epoch in range(31, 36):
        watcher(at(later, epoch, 100, 100 * epoch, view=3.0, region=10.0))
        assert bool(messages) == (epoch >= 34)  # 300 steps, and three checks
    assert "the term 'region' sits at 10.000" in messages[0]
