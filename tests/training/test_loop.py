"""The loop through its public name, `fit`, on a tiny ViT."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import make_image
from tests.tiny import Stop, StopAfter, relative_distance
from tests.training.helpers import (
    ALONE,
    QUIET,
    Score,
    close,
    config,
    equal,
    lines,
    objective,
    open_store,
    train,
    weights,
)
from vitling import data
from vitling.backbones import create
from vitling.console import Log
from vitling.data.store import build_store
from vitling.errors import Interrupted, InvalidFile, RunAborted, UserError
from vitling.methods.supervised.loss import Supervised
from vitling.objectives.progress import Progress
from vitling.training import CheckpointConfig, OptimConfig, Processes, RunDirectory, compilation
from vitling.training.checkpoint import Checkpoints
from vitling.training.feed import Feed, choose_batch_sizes
from vitling.training.resume import collect_state, restore
from vitling.training.schedules import warmup_cosine
from vitling.training.signals import catch_signals
from vitling.training.trainer import Trainer
from vitling.views import ViewsConfig


def test_it_learns(store, tmp_path):
    _, outcome = train(store, tmp_path / "run", config(epochs=25))
    written = lines(tmp_path / "run")
    assert [line["epoch"] for line in written] == list(range(1, 26))
    assert written[-1]["classification"] < written[0]["classification"] - 0.15
    assert outcome.steps == 100
    assert {"loss", "classification", "grad_norm", "lr", "images_per_second", "data_wait"} <= written[-1].keys()


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not(store, tmp_path):
    one, again, other = (
        weights(train(store, tmp_path / name, config(seed=seed))[0]) for name, seed in [("a", 0), ("b", 0), ("c", 1)]
    )
    assert equal(one, again)
    assert not equal(one, other)


@pytest.mark.parametrize(("last", "name"), [(1, "adamw"), (2, "adamw"), (3, "adamw"), (2, "sgd"), (2, "muon")])
def test_a_resumed_run_is_bit_identical(store, tmp_path, last, name):
    """Stochastic depth, averaged weights and a best epoch all have state to restore."""
    settings = config(optim=OptimConfig(name=name, lr=2e-3, ema=0.9), best="score")
    scores = (0.1, 0.9, 0.3, 0.2)
    whole, expected = train(store, tmp_path / "whole", settings, [Score(*scores)], objective(0.3))
    with pytest.raises(Stop):
        train(store, tmp_path / "run", settings, [Score(*scores, last=last)], objective(0.3))
    resumed, outcome = train(store, tmp_path / "run", settings, [Score(*scores)], objective(0.3))
    assert equal(weights(whole), weights(resumed))
    assert (outcome.best.epoch, outcome.best.value) == (2, 0.9)
    assert equal(outcome.best.weights.values(), expected.best.weights.values())
    kept = ("epoch", "step", "loss", "lr", "grad_norm", "score")
    written, expected_lines = lines(tmp_path / "run"), lines(tmp_path / "whole")
    assert [[line[k] for k in kept] for line in written] == [[line[k] for k in kept] for line in expected_lines]


@pytest.mark.parametrize(("before", "after"), [("on", "off"), ("off", "on")])
def test_a_run_is_resumed_with_the_batches_it_was_started_with(store, tmp_path, before, after):
    """As one that was compiled, and is resumed where it is not."""

    def settings(even):
        return config(batch=7, loop=replace(QUIET, even=even))  # five batches of at most 7, or four of 7

    whole, _ = train(store, tmp_path / "whole", settings(before))
    with pytest.raises(Stop):
        train(store, tmp_path / "run", settings(before), [StopAfter(2)])
    resumed, outcome = train(store, tmp_path / "run", settings(after))
    assert outcome.steps == {"on": 16, "off": 20}[before]
    assert equal(weights(whole), weights(resumed))


def test_a_checkpoint_without_batch_sizes_is_refused_for_other_steps_per_epoch(store, tmp_path):
    def make_trainer(even):
        settings = config(batch=7, loop=replace(QUIET, even=even))
        return Trainer(objective(), store, settings, ALONE, Log())

    state = collect_state(make_trainer("off"))
    del state["batch_sizes"]
    with pytest.raises(UserError, match="5 steps per epoch and would now have 4"):
        restore(make_trainer("on"), state)
    restore(make_trainer("off"), state)


class Signals(Supervised):
    """Objective that sends itself one SIGTERM in the middle of an epoch."""

    at = 6

    def forward(self, views, batch, progress):
        if progress.step == self.at:
            signal.raise_signal(signal.SIGTERM)
        return super().forward(views, batch, progress)


def test_a_signal_within_an_epoch_saves_the_step(store, tmp_path):
    """Steps, metrics and weights equal those of an uninterrupted run."""
    whole, _ = train(store, tmp_path / "whole", model=objective(0.3))
    with pytest.raises(Interrupted) as stop:
        train(store, tmp_path / "run", model=objective(0.3, Signals))
    assert stop.value.exit_code == 143
    assert (tmp_path / "run" / "checkpoints" / "step-00000007.pt").exists()
    resumed, _ = train(store, tmp_path / "run", model=objective(0.3))
    assert equal(weights(whole), weights(resumed))
    means = [[line["loss"] for line in lines(tmp_path / name)] for name in ("whole", "run")]
    assert means[0] == pytest.approx(means[1], abs=1e-6)


def test_a_signal_during_the_last_writes_reports_the_last_step(store, tmp_path, monkeypatch):
    """Nothing is trained again on resume, whichever of the last writes it arrives in."""
    whole, _ = train(store, tmp_path / "whole")
    for name in ("log_metrics", "sync_metrics"):
        folder = tmp_path / name
        original = getattr(RunDirectory, name)

        def write(self, *entry, original=original):
            if not entry or entry[0]["step"] == 16:
                signal.raise_signal(signal.SIGTERM)
            return original(self, *entry)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, name, write)
            with pytest.raises(Interrupted) as stop:
                train(store, folder, config(checkpoint=CheckpointConfig(float("inf"))))
        assert "Stopped at step 16 of 16" in str(stop.value)
        assert stop.value.exit_code == 143
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", lambda *_: pytest.fail("nothing is left to train"))
            resumed, _ = train(store, folder, config(checkpoint=CheckpointConfig(float("inf"))))
        assert equal(weights(whole), weights(resumed))
        assert [line["epoch"] for line in lines(folder)] == [1, 2, 3, 4]


def test_a_signal_that_nobody_obeyed_reaches_the_handler_outside(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with catch_signals():
            signal.raise_signal(signal.SIGTERM)
            assert seen == []
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_while_compiling_ends_at_once(store, tmp_path, monkeypatch):
    """The step is repeated on resume, so that nothing is lost."""
    whole, _ = train(store, tmp_path / "whole")
    settings = config(loop=replace(QUIET, compile="views", even="off"))

    def compile_for_long(step, undo, warn):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the signal was not obeyed")

    with monkeypatch.context() as patch:
        patch.setattr(compilation, "compile_or_warn", compile_for_long)
        with pytest.raises(Interrupted, match="while compiling") as stop:
            train(store, tmp_path / "run", settings)
    assert stop.value.exit_code == 143
    resumed, _ = train(store, tmp_path / "run")
    assert equal(weights(whole), weights(resumed))


def test_the_time_of_earlier_starts_counts(store, tmp_path):
    train(store, tmp_path / "run", config(epochs=2))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000008.pt"
    state = torch.load(checkpoint, weights_only=True)
    assert state["seconds"] > 0
    torch.save(state | {"seconds": 1000.0}, checkpoint)
    _, outcome = train(store, tmp_path / "run", config(epochs=3))
    assert outcome.seconds > 1000


def test_a_resume_on_other_images_is_refused(store, folder, tmp_path):
    train(store, tmp_path / "run", config(epochs=2))
    make_image(0, 77).save(folder / "class-0" / "image-00.png")
    other = open_store(folder)
    with pytest.raises(UserError, match="differ from those this run was started with"):
        train(other, tmp_path / "run")


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(store, tmp_path):
    whole, _ = train(store, tmp_path / "whole")
    train(store, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    resumed, _ = train(store, tmp_path / "run")
    assert equal(weights(whole), weights(resumed))
    log = tmp_path / "run" / "log.txt"
    assert "step-00000016.pt is damaged" in log.read_text()
    assert "starts again" not in log.read_text()
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.write_bytes(b"")
    anew, _ = train(store, tmp_path / "run")
    assert equal(weights(whole), weights(anew))
    assert "starts again at its first step" in log.read_text()


def test_a_batch_of_all_images_is_warned_about(store, tmp_path):
    train(store, tmp_path / "one", config(batch=len(store), epochs=2))
    assert f"takes all {len(store)} images at once: 2 steps in all" in (tmp_path / "one" / "log.txt").read_text()
    train(store, tmp_path / "two", config(batch=len(store) - 1, epochs=2))
    assert "at once" not in (tmp_path / "two" / "log.txt").read_text()


@pytest.mark.parametrize(("batch", "accumulate"), [(1, 1), (8, 4)])
def test_batch_norm_is_not_given_single_images(store, tmp_path, batch, accumulate):
    model = Supervised(create("resnet18", 32), ViewsConfig().plan(32), classes=3)
    settings = config(batch=batch, optim=OptimConfig(accumulate=accumulate))
    with pytest.raises(UserError, match=r"--loop\.drop-last"):
        train(store, tmp_path / "run", settings, model=model)


def test_batch_norm_leaves_out_a_last_batch_of_one_image(store, tmp_path):
    """97 images in the planned batches of 32 would end with one, which a ResNet cannot use."""
    model = Supervised(create("resnet10t", 32), ViewsConfig().plan(32), classes=3)
    assert len(store) == 30
    train(store, tmp_path / "run", config(batch=29, epochs=2), model=model)
    assert lines(tmp_path / "run")[-1]["step"] == 2
    device = torch.device("cpu")
    assert choose_batch_sizes(config(batch=32), 97, device, least=2) == [32, 32, 32]
    assert choose_batch_sizes(config(batch=32), 97, device) == [32, 32, 32, 1]
    assert choose_batch_sizes(config(batch=1), 3, device, least=2) == [1, 1, 1]


def test_only_the_latest_checkpoints_stay(store, tmp_path):
    train(store, tmp_path / "run", config(checkpoint=CheckpointConfig(0.0, keep=2)))
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "step-00000012.pt",
        "step-00000016.pt",
    ]


def test_accumulation_gives_the_same_weights(store, tmp_path):
    plain, _ = train(store, tmp_path / "one")
    passes, _ = train(store, tmp_path / "three", config(optim=OptimConfig(lr=2e-3, accumulate=3)))
    assert relative_distance(plain.state_dict(), passes.state_dict(), objective().state_dict()) < 1e-3


SHORTAGES = [
    torch.OutOfMemoryError("made up"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: made up"),
    MemoryError(),
]


class MemoryLimited(Supervised):
    """Objective that runs out of memory above a number of images."""

    room = 3
    problem: Exception = SHORTAGES[0]

    def forward(self, views, batch, progress):
        if len(batch.ids) > self.room:
            raise self.problem
        return super().forward(views, batch, progress)


def make_limited(room: int, problem: Exception = SHORTAGES[0]) -> MemoryLimited:
    model = objective(kind=MemoryLimited)
    model.room, model.problem = room, problem
    return model


@pytest.mark.parametrize("problem", SHORTAGES, ids=lambda problem: type(problem).__name__)
def test_out_of_memory_splits_batches_and_warns(store, tmp_path, capsys, problem):
    plain, _ = train(store, tmp_path / "plain")
    model, outcome = train(store, tmp_path / "run", model=make_limited(room=3, problem=problem))
    assert outcome.accumulate == 4
    assert relative_distance(plain.state_dict(), model.state_dict(), objective().state_dict()) < 1e-3
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("Out of memory") == 2  # 8 -> 4 -> 2 images per pass
    assert "--optim.accumulate 4" in log


def test_out_of_memory_with_a_single_image_ends_the_run(store, tmp_path):
    with pytest.raises(RunAborted, match="smaller --batch") as caught:
        train(store, tmp_path / "run", model=make_limited(room=0))
    assert str(caught.value).count("smaller --batch") == 1
    assert "accumulate" not in str(caught.value)  # each pass has one image already


def test_out_of_memory_in_an_update_ends_the_run(store, tmp_path, monkeypatch):
    """Some weights may have changed, so the step cannot be repeated; the last checkpoint stays."""

    def fail(self, *arguments):
        if len(list((tmp_path / "run" / "checkpoints").iterdir())):
            raise SHORTAGES[1]
        return original(self, *arguments)

    original = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(RunAborted, match="Out of memory"):
        train(store, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004.pt"]


def test_weights_that_the_last_update_spoils_are_not_saved(store, tmp_path, monkeypatch):
    """The loss of a step is that of the weights before its update."""
    original = Trainer.step

    def spoil(self, loaded):
        terms = original(self, loaded)
        if self.done == self.steps:
            next(self.objective.parameters()).data.fill_(float("nan"))
        return terms

    monkeypatch.setattr(Trainer, "step", spoil)
    watcher = Score(*range(4))
    with pytest.raises(RunAborted, match=r"After step 16: backbone\S+ is not finite.*step-00000012.pt"):
        train(store, tmp_path / "run", watchers=[watcher])
    assert [epoch for epoch, *_ in watcher.seen] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())[-1] == "step-00000012.pt"


class Breaks(Supervised):
    """Objective with a second term that is NaN from a given step on."""

    first_bad = 9

    def forward(self, views, batch, progress):
        terms = super().forward(views, batch, progress)
        bad = float("nan") if progress.step >= self.first_bad else 0.0
        return {**terms, "extra": terms["classification"] * 0 + bad}


def test_a_loss_that_is_not_finite_stops_and_names_step_and_term(store, tmp_path):
    with pytest.raises(RunAborted, match=r"Step 9 \(epoch 3\): the term '(loss|extra)' is nan"):
        train(store, tmp_path / "run", model=objective(kind=Breaks))
    last = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert last.name == "step-00000008.pt"
    saved = torch.load(last, weights_only=True)["objective"]
    assert all(v.isfinite().all() for v in saved.values())


def test_the_advice_on_a_first_loss_that_is_not_finite(store, tmp_path):
    model = objective(kind=Breaks)
    model.first_bad = 0
    with pytest.raises(RunAborted, match=r"Step 0 .* learning rate is not the cause. Check the images"):
        train(store, tmp_path / "run", model=model)


def test_the_ema_is_evaluated_and_left_in_the_objective(store, tmp_path):
    """Compare with a literal moving average of the weights of a run without EMA."""
    watcher = Score(0, 0, 0, 0)
    settings = config(batch=30, optim=OptimConfig(lr=2e-3, ema=0.5))  # one step per epoch
    averaged, _ = train(store, tmp_path / "averaged", settings, [watcher])
    plain = Score(0, 0, 0, 0)
    train(store, tmp_path / "plain", config(batch=30), [plain])
    shadow = [v.float() for v in weights(objective())]
    for t, (_, _, live) in enumerate(plain.seen, start=1):
        decay = min(0.5, (1 + t) / (10 + t))
        shadow = [decay * s + (1 - decay) * v for s, v in zip(shadow, live)]
        assert close(shadow, watcher.seen[t - 1][2], 1e-6)
    assert close(shadow, weights(averaged), 1e-6)


def test_watchers_see_evaluation_mode_when_they_are_due(store, tmp_path):
    watcher = Score(0.1, 0.2, 0.3, 0.4, 0.5, every=2)
    _, outcome = train(store, tmp_path / "run", config(epochs=5, best="score"), [watcher])
    assert [(epoch, training) for epoch, training, _ in watcher.seen] == [(2, False), (4, False), (5, False)]
    assert outcome.best.epoch == 5
    assert outcome.metrics["score"] == 0.5


class Reads(Score):
    """Watcher that records the loss and stops the run after a number of epochs."""

    def __init__(self, stop_after: int, every: int = 1):
        super().__init__(every=every)
        self.stop_after, self.terms = stop_after, {}

    def __call__(self, moment):
        self.terms[moment.step] = moment.terms
        if moment.epoch == self.stop_after:
            raise RunAborted("seen enough")
        return {}


def test_watchers_get_the_means_of_the_epoch(store, tmp_path):
    watcher = Reads(stop_after=0)
    train(store, tmp_path / "run", watchers=[watcher])
    written = {line["step"]: line for line in lines(tmp_path / "run")}
    assert list(watcher.terms) == list(written) == [4, 8, 12, 16]
    for step, terms in watcher.terms.items():
        assert {"loss", "classification", "grad_norm"} == terms.keys()
        assert terms.items() <= written[step].items()


def test_a_run_stopped_by_a_watcher_has_its_metrics(store, tmp_path):
    with pytest.raises(RunAborted, match="seen enough"):
        train(store, tmp_path / "run", watchers=[Reads(stop_after=3, every=3)])
    assert [line["epoch"] for line in lines(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("per", ["global", "tensor"])
def test_clipping_against_a_literal_version(per):
    from vitling.training.optim import clip_gradients

    torch.manual_seed(1)
    parameters = [torch.nn.Parameter(torch.zeros(n, 3)) for n in (2, 5)]
    for p in parameters:
        p.grad = torch.randn_like(p) * 3
    before = [p.grad.clone() for p in parameters]
    whole = math.sqrt(sum((g**2).sum().item() for g in before))
    total = clip_gradients(parameters, 1.0, per)
    assert math.isclose(total.item(), whole, rel_tol=1e-5)
    for p, g in zip(parameters, before):
        norm = whole if per == "global" else g.norm().item()
        assert torch.allclose(p.grad, g * min(1.0, 1.0 / norm), atol=1e-5)


def test_schedule_warms_up_and_falls_to_its_floor():
    lr = warmup_cosine(peak=1.0, floor=0.1, warmup_epochs=2)
    values = [lr(Progress(step, 100, 10)) for step in range(101)]
    assert values[0] > 0
    assert np.all(np.diff(values[:20]) > 0)
    assert max(values) == values[20] == 1.0
    assert np.all(np.diff(values[20:]) < 0)
    assert math.isclose(values[60], 0.1 + 0.9 / 2)
    assert math.isclose(values[100], 0.1)


def test_default_learning_rates_follow_the_batch():
    assert OptimConfig().peak_lr(128) == 2.5e-4
    assert OptimConfig().peak_lr(4096) == 1e-3
    assert OptimConfig(lr=0.3).peak_lr(128) == 0.3


IMPOSSIBLE = [
    {"epochs": 0},
    {"batch": 0},
    {"optim": OptimConfig(ema=1.0)},
    {"optim": OptimConfig(accumulate=9)},
    {"optim": OptimConfig(name="adam")},
    {"optim": OptimConfig(momentum=1.0)},
    {"checkpoint": CheckpointConfig(keep=0)},
]


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=str)
def test_impossible_settings_are_refused(store, tmp_path, changes):
    with pytest.raises(UserError, match="--"):
        train(store, tmp_path / "run", config(**changes))


def test_a_data_set_smaller_than_the_batch_is_one_batch(store, tmp_path):
    _, outcome = train(store, tmp_path / "run", config(batch=1000, loop=replace(QUIET, drop_last=True)))
    assert outcome.steps == 4


def test_batches_are_even_if_compiled_or_requested(store):
    device = torch.device("cpu")
    assert len(store) % 8

    def sizes(**loop) -> set[int]:
        return set(choose_batch_sizes(config(batch=8, loop=replace(QUIET, **loop)), len(store), device))

    kept, even = {8, len(store) % 8}, {8}
    assert sizes() == sizes(even="off", compile="on") == kept
    assert sizes(even="on") == sizes(compile="on") == sizes(compile="views") == even
    assert sizes(compile="on", drop_last=True) == {8}
    with pytest.raises(UserError, match="even"):
        config(loop=replace(QUIET, even="on", drop_last=True)).check()


@pytest.mark.parametrize(("part", "batches"), [(1.0, 4), (0.75, 3), (0.1, 1)])
def test_part_of_an_epoch_has_fewer_batches(store, part, batches):
    settings = config(batch=8, loop=replace(QUIET, epoch_part=part))
    assert len(store) == 30
    assert choose_batch_sizes(settings, len(store), torch.device("cpu")) == [8, 8, 8, 6][:batches]


@pytest.mark.parametrize(("batch", "images"), [(8, 32), (7, 28)])
def test_a_run_with_even_batches_repeats_or_leaves_out_other_images_each_epoch(store, tmp_path, batch, images):
    settings = config(epochs=3, batch=batch, loop=replace(QUIET, even="on"))
    feed = Feed(store, objective().plan, settings, ALONE)
    batches = [[loaded.key.ids for loaded in feed.batches(epoch, 0)] for epoch in range(40)]
    seen = [np.concatenate(ids) for ids in batches]
    assert {len(ids) for ids in seen} == {images}
    assert {len(ids) for epoch in batches for ids in epoch} == {batch}
    assert all(len(set(ids.tolist())) == len(ids) for ids in seen)
    assert all(len(set((ids % 30).tolist())) == batch for epoch in batches for ids in epoch)
    assert set(np.concatenate(seen).tolist()) >= set(range(len(store)))
    assert len({tuple(sorted((ids % 30).tolist())) for ids in seen}) > 1
    _, outcome = train(store, tmp_path / "run", settings)
    assert outcome.steps == 3 * len(feed.sizes)


@pytest.mark.parametrize("how", ["on", "blocks"])
def test_a_broken_compiler_costs_speed_only(store, tmp_path, monkeypatch, how):
    """Whatever is compiled raises an inductor error; the run continues with a one-line warning."""
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(*arguments, **options):
        raise BackendCompilerFailed(lambda: None, RuntimeError("no C++ compiler"), None)

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    plain, _ = train(store, tmp_path / "plain")
    model, _ = train(store, tmp_path / "run", config(loop=replace(QUIET, compile=how, even="off")))
    assert equal(weights(plain), weights(model))
    assert (tmp_path / "run" / "log.txt").read_text().count("torch.compile failed") == 1


@pytest.mark.parametrize("sampler", ["shuffle", "balanced"])
def test_streamed_and_host_pixels_train_equally(folder, tmp_path, sampler):
    dataset = data.open(str(folder), val="none").train
    settings = config(loop=replace(QUIET, sampler=sampler))
    host, stream = (
        weights(train(build_store(dataset, 16, placement=placement), tmp_path / placement, settings)[0])
        for placement in ("host", "stream")
    )
    assert equal(host, stream)


def test_other_ranks_write_nothing(store, tmp_path):
    """Rank 1 writes nothing."""
    run = RunDirectory(tmp_path / "run", writes=False)
    run.start({}, ())
    run.log_metrics({"step": 1})
    run.write("x.json", {})
    assert not (tmp_path / "run").exists()
    assert not Processes(1, 2, torch.device("cpu")).is_main


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("data"),
        lambda state: state.pop("optimiser"),
        lambda state: state["optimiser"]["param_groups"].pop(),
        lambda state: state["optimiser"]["param_groups"][0].pop("weight_decay"),
        lambda state: state["optimiser"]["state"].update({0: {"exp_avg": torch.zeros(7)}}),
        lambda state: state["optimiser"]["state"].update({10**6: {}}),
        lambda state: state["optimiser"]["state"][0].pop("step"),
        lambda state: state["optimiser"]["state"][0].update(exp_avg=torch.eye(3).to_sparse()),
        lambda state: state["objective"].update({k: v.to_sparse() for k, v in state["objective"].items() if v.ndim}),
        lambda state: state["objective"].update({k: v.to("meta") for k, v in state["objective"].items()}),
        lambda state: state["objective"].update(extra=torch.zeros(1)),
        lambda state: state["objective"].popitem(),
        lambda state: state["objective"].update(dict.fromkeys(state["objective"], torch.zeros(3, 3, 3))),
        lambda state: state["objective"].update(dict.fromkeys(state["objective"], 1.0)),
        lambda state: state.update(seconds="x"),
        lambda state: state.update(step=None),
        lambda state: state.update(step=-1),
        lambda state: state.update(best={}),
        lambda state: state["recorder"].update(totals={0: torch.zeros(2)}),
        lambda state: state["scaler"].update(scale="x"),
    ],
)
def test_a_checkpoint_of_wrong_content_is_passed_over_or_named(change, store, tmp_path):
    train(store, tmp_path / "run", config(epochs=2))
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=2)
    newest = checkpoints.all()[-1]
    state = torch.load(newest, weights_only=True)
    change(state)
    checkpoints.save(int(newest.stem.removeprefix("step-")), state)
    train(store, tmp_path / "run", config(epochs=2))
    assert f"{newest.name}" in (tmp_path / "run" / "log.txt").read_text()
    for path in checkpoints.all():
        path.unlink()
    checkpoints.save(int(newest.stem.removeprefix("step-")), state)
    with pytest.raises(InvalidFile, match=newest.name):
        train(store, tmp_path / "run", config(epochs=2))
