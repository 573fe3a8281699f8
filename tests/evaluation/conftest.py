from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vitling.backbones import create
from vitling.evaluation import BundleMeta, save_bundle


def save_model(
    folder, name="vit_micro_patch4_32", classes=("cat", "dog", "owl"), task="single", size=None, channels=3, **meta
):
    """Save a model with random weights and a head that is far from zero."""
    backbone = create(name, size=size, channels=channels, seed=0).eval()
    torch.manual_seed(1)
    head = nn.Linear(backbone.dim, len(classes)) if classes else None
    about = BundleMeta(
        task=task,
        class_names=tuple(classes),
        size=backbone.size,
        store_size=48,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        channels=channels,
        **meta,
    )
    save_bundle(folder, backbone, head, about)
    return backbone, head


@pytest.fixture
def make_bundle():
    return save_model


@pytest.fixture
def bundle(tmp_path):
    save_model(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path):
    """Five images of different sizes and modes, in folders."""
    folder = tmp_path / "pictures"
    (folder / "deeper").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for i, (mode, shape) in enumerate({"RGB": (40, 60, 3), "L": (50, 30), "RGBA": (33, 33, 4)}.items()):
        pixels = draw.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels, mode).save(folder / f"{i}.png")
        Image.fromarray(pixels, mode).convert("RGB").save(folder / "deeper" / f"{i}.jpg")
    return folder
