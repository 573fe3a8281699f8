"""Whole-batch operations (GPUs) against operations on the images in a mask (CPUs). Here both run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.views.batches import batch_key
from vitling.views import Normaliser, Renderer, ViewBatch
from vitling.views.masked import apply_masked, apply_masked_rare, select_rare
from vitling.views.policies import make_plan

IMAGES = torch.arange(40.0)[:, None, None, None].expand(-1, 1, 2, 2)


@pytest.fixture
def use_gpu_code(monkeypatch):
    return lambda: monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_only_images_in_the_mask_change(number, use_gpu_code):
    chosen, amount = torch.zeros(40, dtype=torch.bool), torch.arange(40.0) + 1
    chosen[torch.randperm(40, generator=torch.Generator().manual_seed(number))[:number]] = True

    def add(images, amount):
        return images + amount[:, None, None, None]

    expected = torch.where(chosen[:, None, None, None], add(IMAGES, amount), IMAGES)
    assert torch.equal(apply_masked(IMAGES, chosen, add, amount), expected)
    use_gpu_code()
    assert torch.equal(apply_masked(IMAGES, chosen, add, amount), expected)
    assert torch.equal(apply_masked_rare(IMAGES, chosen, 0.1, add, amount), expected)


def test_rare_indices_are_few_and_enough():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        chosen = torch.rand(256, generator=generator) < 1 / 6
        index = select_rare(chosen, 1 / 6)
        assert len(index) == 86
        assert chosen[index].sum() == chosen.sum()
    assert len(select_rare(torch.ones(3, dtype=torch.bool), 0.5)) == 3


@pytest.mark.parametrize("name", ["supervised", "idmm-pretrain", "idmm-finetune", "dino"])
def test_policies_match_between_cpu_and_gpu_code(name, use_gpu_code):
    n = 48
    small = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 255
    pixels = torch.nn.functional.interpolate(small, 40, mode="bicubic").clamp(0, 255).byte()
    view_batch = ViewBatch(make_plan(name, 32), batch_key(range(n), instances=n), np.arange(n))
    renderer = Renderer(Normaliser((0.0,) * 3, (1 / 255,) * 3))
    on_cpu = view_batch.render(pixels, torch.ones(n), renderer)
    use_gpu_code()
    for ours, theirs in zip(view_batch.render(pixels, torch.ones(n), renderer), on_cpu):
        difference = (ours.pixels - theirs.pixels).abs()
        assert difference.mean() < 1  # of 255
        assert difference.flatten()[::7].quantile(0.999) < 8  # a mean that rounds the other way, then a steep table
