"""Schedules of learning rates and weights, compared with the released DRLoc and IDMM and with timm."""

from __future__ import annotations

import pytest

from vitling.errors import UserError
from vitling.objectives.progress import Progress
from vitling.training import FitConfig, OptimConfig
from vitling.training.schedules import lr_schedule, rise_and_fall, warmup_cosine

PER_EPOCH = 7


def at(epoch: float, epochs: int = 101) -> Progress:
    return Progress(round(epoch * PER_EPOCH), epochs * PER_EPOCH, epochs)


def test_epochs_done_are_whole_at_every_step():
    steps = [Progress(step, 3 * 101, 101).epochs_done for step in range(3 * 101)]
    assert steps == [step // 3 for step in range(3 * 101)]


@pytest.mark.parametrize(
    ("epoch", "weight"), [(0, 0), (1, 0.025), (10, 0.25), (20, 0.5), (21, 0.4982), (50, 0.4464), (100, 0.3571)]
)
def test_the_released_weight_of_drloc(epoch, weight):
    schedule = rise_and_fall(0.5, 20, 300)
    assert schedule(at(epoch)) == pytest.approx(weight, abs=5e-5)
    assert schedule(at(epoch + 6 / 7)) == schedule(at(epoch))  # constant within an epoch


def test_mean_of_the_released_weight_of_drloc():
    values = [rise_and_fall(0.5, 20, 300)(at(epoch)) for epoch in range(101)]
    assert sum(values) / 101 == pytest.approx(0.3907, abs=5e-5)


def test_the_released_learning_rate_of_drloc():
    optim = OptimConfig(
        lr=1e-3, min_lr=1e-5, warmup_epochs=20, warmup_lr=1e-6, schedule_epochs=300, cosine_from="start"
    )
    lr = lr_schedule(FitConfig(epochs=101, batch=1024, optim=optim))
    assert lr(at(0)) == pytest.approx(1e-6)
    assert lr(at(10)) == pytest.approx((1e-6 + 1e-3) / 2)
    assert lr(at(20)) / 1e-3 == pytest.approx(0.989, abs=5e-4)
    assert lr(at(100)) / 1e-3 == pytest.approx(0.7525, abs=5e-5)


@pytest.mark.parametrize(
    ("epochs", "warmup", "epoch", "released", "meant"),
    [(800, 2, 400, 0.4993, 0.5020), (100, 10, 50, 0.468, 0.587), (100, 10, 100, 0.014, 0.0), (100, 10, 10, 0.986, 1.0)],
)
def test_the_released_learning_rate_of_idmm(epochs, warmup, epoch, released, meant):
    for shape, value in (("idmm", released), ("warmup", meant)):
        optim = OptimConfig(lr=1.0, min_lr=0.0, warmup_epochs=warmup, cosine_from=shape)
        assert lr_schedule(FitConfig(epochs=epochs, optim=optim))(at(epoch, epochs)) == pytest.approx(value, abs=5e-4)


def test_the_released_learning_rate_of_idmm_reaches_zero_early():
    lr = warmup_cosine(1.0, 0.0, 10, cosine_from="idmm")
    values = [lr(at(epoch, 100)) for epoch in range(101)]
    assert values.index(min(values[10:])) == 93
    assert values[93] < 1e-4


def test_cosine_from_start_is_timms():
    import torch
    from timm.scheduler import CosineLRScheduler

    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    theirs = CosineLRScheduler(
        optimiser,
        t_initial=300 * PER_EPOCH,
        lr_min=1e-5,
        warmup_t=20 * PER_EPOCH,
        warmup_lr_init=1e-6,
        t_in_epochs=False,
    )
    ours = warmup_cosine(1e-3, 1e-5, 20, start=1e-6, over_epochs=300, cosine_from="start")
    for step in range(0, 101 * PER_EPOCH, 11):
        theirs.step_update(step)
        assert ours(Progress(step, 101 * PER_EPOCH, 101)) == pytest.approx(optimiser.param_groups[0]["lr"])


def test_a_longer_schedule_is_cut_off():
    short, whole = (warmup_cosine(1.0, 0.1, 2, over_epochs=30)(at(9, epochs)) for epochs in (10, 30))
    assert short == pytest.approx(whole)
    assert warmup_cosine(1.0, 0.1, 2)(at(9, 10)) < short


def test_a_schedule_shorter_than_the_run_is_refused():
    with pytest.raises(UserError, match=r"--optim\.schedule-epochs 5 is less than --epochs 10"):
        FitConfig(epochs=10, optim=OptimConfig(schedule_epochs=5)).check()


def test_linear_decay_after_the_warm_up():
    optim = OptimConfig(lr=1.0, min_lr=0.1, warmup_epochs=10, schedule="linear")
    lr = lr_schedule(FitConfig(epochs=100, optim=optim))
    assert lr(at(0, 100)) == pytest.approx(1 / 71)
    for epoch in (10, 40, 100):
        assert lr(at(epoch, 100)) == pytest.approx(1 - 0.9 * (epoch - 10) / 90)


def test_steps_divide_the_learning_rate_by_ten():
    optim = OptimConfig(lr=1.0, warmup_epochs=0.5, schedule="steps", drops=(8 / 12, 11 / 12))
    lr = lr_schedule(FitConfig(epochs=12, optim=optim))
    assert [round(lr(at(epoch, 12)), 6) for epoch in range(1, 12)] == [1.0] * 7 + [0.1] * 3 + [0.01]
    assert lr(at(8 - 1 / PER_EPOCH, 12)) == 1.0


def test_steps_and_drops_need_each_other():
    for optim in (OptimConfig(schedule="steps"), OptimConfig(drops=(0.5,))):
        with pytest.raises(UserError, match="need each other"):
            FitConfig(optim=optim).check()
