"""Accuracy of matching regions, for networks whose matches are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitling.backbones.features import Features
from vitling.evaluation import matching as module
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit.settings import EsViTConfig
from vitling.views.plan import Flip, Plan

SIDE = 96
IMAGES = 70  # more than a batch


class Patches(nn.Module):
    """Network whose regions of 8 px are described by their colours or, if blind, by noise."""

    def __init__(self, blind: bool):
        super().__init__()
        self.blind, self.random = blind, torch.Generator().manual_seed(0)

    def forward(self, pixels: torch.Tensor) -> Features:
        grid = F.avg_pool2d(pixels, 8)
        if self.blind:
            grid = torch.randn(grid.shape, generator=self.random)
        return Features(pooled=grid.mean((2, 3)), grid=grid)

    def token_centres(self, side: int, device: torch.device) -> torch.Tensor:
        return (torch.arange(side // 8, device=device) + 0.5) / (side // 8)


def measure(blind: bool = False) -> module.Matching:
    """Measure images whose red is x and whose green is y, in views that keep their colours."""
    config = EsViTConfig(match="place")
    groups = dino_plan(config, 64).groups
    plan = Plan(tuple(replace(group, policy=replace(group.policy, steps=(Flip(),))) for group in groups))
    along = torch.linspace(0, 255, SIDE)
    image = torch.stack([along.expand(SIDE, SIDE), along[:, None].expand(SIDE, SIDE), torch.full((SIDE, SIDE), 255.0)])

    class Store:
        def __len__(self) -> int:
            return IMAGES

        def fetch(self, ids: np.ndarray):
            return image.to(torch.uint8).expand(len(ids), -1, -1, -1).contiguous(), torch.ones(len(ids))

    meta = SimpleNamespace(size=64, mean=(0.5,) * 3, std=(0.25,) * 3)
    model = SimpleNamespace(backbone=Patches(blind), meta=meta, device=torch.device("cpu"))
    return module.measure_matching(model, Store(), plan, config.global_crops)


def test_network_that_sees_positions_matches_correctly():
    found = measure()
    assert found.images == IMAGES
    assert found.right > 0.95  # the filter smooths the edges of images
    assert 0.04 < found.chance < 4 / 64


def test_blind_network_matches_at_chance_level():
    found = measure(blind=True)
    assert found.right == pytest.approx(found.chance, abs=0.01)
