"""Settings to train on a part of a run's images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitling.runs.subset import keep_batch_size, scale_length
from vitling.settings.config import FinetuneConfig
from vitling.training.config import LoopConfig, OptimConfig
from vitling.training.feed import choose_batch_sizes

CPU = torch.device("cpu")


def make_config(compile: str, **more) -> FinetuneConfig:
    return FinetuneConfig(epochs=200, batch=256, loop=LoopConfig(compile=compile), **more)


@pytest.mark.parametrize(("images", "part"), [(2040, 1632), (500, 400), (10_000, 8000), (3840, 3072)])
def test_a_part_has_the_batch_size_of_the_run_and_as_many_images_in_all(images, part):
    config = make_config("on")
    kept = keep_batch_size(config, images, part, CPU)
    size = choose_batch_sizes(config.fit_config(), images, CPU)[0]
    sizes = choose_batch_sizes(kept.fit_config(), part, CPU)
    assert set(sizes) == {size}
    assert kept.epochs * sum(sizes) == pytest.approx(config.epochs * part, rel=0.01)


def test_runs_that_are_not_compiled_and_parts_below_one_batch_keep_their_settings():
    off, on = make_config("off"), make_config("on")
    assert keep_batch_size(off, 2040, 1632, CPU) is off
    assert keep_batch_size(on, 200, 160, CPU) is on


def test_schedules_and_averages_follow_the_length():
    config = make_config("off", optim=OptimConfig(warmup_epochs=20, schedule_epochs=300, ema=0.9999))
    short = scale_length(config, 0.25)
    assert (short.epochs, short.optim.warmup_epochs, short.optim.schedule_epochs) == (50, 5, 75)
    assert short.optim.ema == pytest.approx(0.9999**4)
    assert scale_length(replace(config, epochs=1), 0.25).epochs == 1


def test_averages_remember_the_same_share_of_the_steps():
    config = make_config("on", optim=OptimConfig(ema=0.99))
    kept = keep_batch_size(config, 500, 400, CPU)
    steps, own = (count_steps(one, images) for one, images in ((config, 500), (kept, 400)))
    assert own * (1 - kept.optim.ema) == pytest.approx(steps * (1 - config.optim.ema), rel=0.01)


def count_steps(config: FinetuneConfig, images: int) -> int:
    return config.epochs * len(choose_batch_sizes(config.fit_config(), images, CPU))
