"""The mirrored-view benchmark, compared with the released loop, and for networks whose matches are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vitling.backbones import Features
from vitling.errors import UserError
from vitling.evaluation import BundleMeta, load
from vitling.evaluation.correspondence import match_regions, measure_correspondence, measure_mirror_errors, mirror_views
from vitling.evaluation.inputs import list_sources
from vitling.evaluation.model import Model

META = BundleMeta("none", (), 32, 36, (0.5,) * 3, (0.25,) * 3)


class Colours(nn.Module):
    """Features of a region: the mean colour of its 8 x 8 pixels, and its square, so that greys differ by angle."""

    def forward(self, x):
        grid = nn.functional.avg_pool2d(x, 8)
        grid = torch.cat([grid, grid.square(), torch.ones_like(grid[:, :1])], dim=1)
        return Features(grid.mean(dim=(2, 3)), grid)


class Places(nn.Module):
    """Features of a region: its position, whatever it shows."""

    def forward(self, x):
        grid = torch.eye(16).reshape(1, 16, 4, 4).expand(len(x), -1, -1, -1)
        return Features(grid.mean(dim=(2, 3)), grid)


def images(folder, count=5):
    """Write images of different coloured squares of 16 x 16 px."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(count):
        squares = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(squares).resize((96, 96), Image.Resampling.NEAREST).save(folder / f"{i}.png")
    return list_sources(str(folder))


def literal(first, second, size):
    """Run the release's loop for one image: [D, h, w] each, square."""
    side = first.shape[-1]
    cell = size / side
    centres = [(r * cell + cell / 2, c * cell + cell / 2) for r in range(side) for c in range(side)]
    pairs = []
    for i, a in enumerate(first.flatten(1).T):
        similar = [float(a @ b / (a.norm() * b.norm())) for b in second.flatten(1).T]
        j = int(np.argmax(similar))
        pairs.append((similar[j], i, j))
    distances = []
    for _, i, j in sorted(pairs, key=lambda pair: -pair[0])[:10]:
        (y, x), (found_y, found_x) = centres[i], centres[j]
        distances.append(math.hypot(size - x - found_x, y - found_y))
    return distances


def test_pairs_and_errors_match_a_literal_version():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(3, 6, 4, 4, generator=generator) for _ in range(2))
    matches = match_regions(first, second)
    errors = measure_mirror_errors(matches, 96)
    assert errors.shape == (3, 10)
    for i in range(3):
        assert errors[i].tolist() == pytest.approx(literal(first[i], second[i], 96), abs=1e-4)
    assert (matches.similarity.diff(dim=1) <= 0).all()


def test_oblong_grids():
    first = torch.randn(1, 8, 2, 5)
    matches = match_regions(first, first.flip(-1))
    assert measure_mirror_errors(matches, 80).abs().max() == 0
    (rows, columns), (found_rows, found_columns) = matches.locate(matches.first), matches.locate(matches.second)
    assert torch.equal(rows, found_rows)
    assert torch.equal(columns, 4 - found_columns)
    moved = match_regions(first, first.roll(1, dims=2).flip(-1))
    assert torch.equal(measure_mirror_errors(moved, 80), torch.full((1, 10), 40.0))


def without_colours(monkeypatch):
    monkeypatch.setattr("vitling.evaluation.correspondence._JITTER", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("vitling.evaluation.correspondence._GREY", {"paper": 0.0, "released": 1.0})


def test_pixels_match_all_regions_and_positions_none(tmp_path, monkeypatch):
    without_colours(monkeypatch)
    sources = images(tmp_path / "images")
    found = measure_correspondence(Model(Colours(), None, META), sources, "paper")
    assert (found.accuracy, found.distance) == (1.0, 0.0)
    assert (found.images, found.pairs, found.grid, found.size) == (5, 10, (4, 4), 32)
    places = measure_correspondence(Model(Places(), None, META), sources, "paper")
    assert places.accuracy == 0.0  # with four columns no region is its own mirror image
    assert places.distance > 8


def test_grey_views_lower_the_accuracy(tmp_path):
    sources = images(tmp_path / "images", count=20)
    released = measure_correspondence(Model(Colours(), None, META), sources, "released")
    paper = measure_correspondence(Model(Colours(), None, META), sources, "paper")
    assert released.accuracy < paper.accuracy < 1


def test_draws_depend_on_image_and_seed():
    model = Model(Colours(), None, META)
    views = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 0.3
    whole = mirror_views(model, views, range(4), "paper", seed=0)
    assert torch.allclose(mirror_views(model, views[2:3], [2], "paper", seed=0), whole[2:3], atol=1e-6)
    assert not torch.allclose(mirror_views(model, views, range(4), "paper", seed=1), whole)
    grey = mirror_views(model, views, range(4), "released", seed=0)
    assert torch.allclose(grey[:, 0], grey[:, 1], atol=1e-5)
    many = torch.randn(1, 5, 32, 32)
    assert torch.equal(mirror_views(model, many, [0], "released", seed=0), many.flip(-1))


def test_files_that_are_not_images_are_listed(make_bundle, tmp_path):
    make_bundle(tmp_path / "m", classes=(), task="none")
    images(tmp_path / "images")
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    found = measure_correspondence(load(tmp_path / "m", device="cpu"), list_sources(str(tmp_path / "images")))
    assert found.images == 5
    assert 0 <= found.accuracy <= 1
    with pytest.raises(UserError, match="None of the images"):
        measure_correspondence(
            load(tmp_path / "m", device="cpu"), list_sources(str(tmp_path / "images" / "broken.png"))
        )
