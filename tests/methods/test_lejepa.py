"""LeJEPA against a slow version of its equations, and at points where the statistic is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from tests.made_runs import read, refused
from tests.methods.helpers import START, batch_of, noise, step
from tests.tiny import tiny_backbone
from tests.training.helpers import open_store
from vitling.cli import run
from vitling.errors import UserError
from vitling.methods.lejepa.loss import LeJEPA, draw_directions, invariance
from vitling.methods.lejepa.settings import LeJEPAConfig, lejepa_plan, recipe
from vitling.objectives import Batch
from vitling.training import FitConfig, OptimConfig, RunDirectory, fit
from vitling.training.config import LoopConfig

SMALL = {"directions": 7, "hidden": 24, "dim": 4, "local_crops": 3}
CPU = torch.device("cpu")


def make(seed: int = 0, **settings) -> LeJEPA:
    torch.manual_seed(0)
    config = LeJEPAConfig(**{**SMALL, **settings})
    return LeJEPA(tiny_backbone(), lejepa_plan(config, 16), config, seed)


def embeddings(views: int = 3, images: int = 5, dim: int = 4, seed: int = 1) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(views, images, dim, generator=random, dtype=torch.float64)


def sigreg(z: torch.Tensor, key: int = 3, **settings) -> torch.Tensor:
    objective = make(dim=z.shape[-1], **settings)
    return objective.sigreg(z.float(), Batch(torch.arange(z.shape[1]), None, key=key))


# --- the equations --------------------------------------------------------------------------------------------------


def literal_sigreg(z: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Integrate over both signs of t, one view, direction and knot at a time."""
    knots = [-5 + 10 * k / 16 for k in range(17)]
    views, count, _ = z.shape
    total = torch.zeros((), dtype=torch.float64)
    for view in range(views):
        for direction in directions.double():
            values = []
            for t in knots:
                terms = [torch.exp(1j * t * (z[view, n] @ direction)) for n in range(count)]
                phi = sum(terms) / count
                values.append((phi - math.exp(-(t**2) / 2)).abs() ** 2 * math.exp(-(t**2) / 2))
            trapezoids = [(a + b) / 2 * 10 / 16 for a, b in pairwise(values)]
            total = total + count * sum(trapezoids)
    return total / (views * len(directions))


def literal_invariance(z: torch.Tensor, global_views: int) -> torch.Tensor:
    views, count, dim = z.shape
    total = torch.zeros((), dtype=torch.float64)
    for n in range(count):
        centre = sum(z[view, n] for view in range(global_views)) / global_views
        total = total + sum(((z[view, n] - centre) ** 2).sum() for view in range(views))
    return total / (views * count * dim)


def test_sigreg_and_its_gradient_match_the_equation():
    slow, quick = embeddings().requires_grad_(), embeddings().requires_grad_()
    expected = literal_sigreg(slow, draw_directions(7, 4, 0, 3, CPU))
    found = sigreg(quick)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    expected.backward()
    found.backward()
    torch.testing.assert_close(quick.grad, slow.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("global_views", [1, 2, 3])
def test_invariance_and_its_gradient_match_the_equation(global_views):
    """Gradients flow through the mean of the global views too."""
    slow, quick = embeddings().requires_grad_(), embeddings().requires_grad_()
    expected, found = literal_invariance(slow, global_views), invariance(quick, global_views)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(quick.grad, slow.grad)


def test_the_loss_weighs_both_terms():
    objective = make(sigreg_weight=0.2)
    terms = objective(noise(objective, 4), batch_of(4), START)
    assert terms.keys() == {"invariance", "sigreg"}
    expected = 0.8 * terms["invariance"] + 0.2 * terms["sigreg"]
    torch.testing.assert_close(objective.total(terms, START), expected)


def test_embeddings_are_ordered_by_view_and_image():
    """The embeddings of an image stand in one column, whatever the number and size of its views."""
    objective = make().eval()
    views, seen = noise(objective, 4), []
    objective.sigreg = lambda z, batch: seen.append(z) or z.new_zeros(())
    objective(views, batch_of(4), START)
    (z,) = seen
    assert z.shape == (5, 4, 4)
    for view in views:
        for i, image in enumerate(view.pixels):
            expected = objective.projector(objective.backbone(image[None]).pooled)[0]
            row = i // 4 + (0 if view.pixels.shape[-1] == 16 else 2)
            torch.testing.assert_close(z[row, i % 4], expected, rtol=1e-4, atol=1e-5)


def test_gradients_reach_the_backbone_and_the_projector():
    objective = make()
    objective.total(objective(noise(objective, 4), batch_of(4), START), START).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in objective.parameters())


# --- known values ---------------------------------------------------------------------------------------------------


def test_one_image_at_the_origin():
    """phi is 1 everywhere."""
    step_size = 10 / 16
    knots = [-5 + step_size * k for k in range(17)]
    values = [(1 - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2) for t in knots]
    expected = step_size * (sum(values) - (values[0] + values[-1]) / 2)
    assert sigreg(torch.zeros(1, 1, 4)).item() == pytest.approx(expected, rel=1e-5)


def test_a_normal_sample_costs_little_and_a_collapsed_one_much():
    """N times the squared error: of a normal sample it stays, of any other it grows with N."""
    costs = {}
    for count in (64, 512):
        normal = embeddings(1, count, 8)
        shifted = normal + 2.0
        line = normal[..., :1].expand_as(normal)
        collapsed = torch.zeros_like(normal) + normal[:, :1]
        samples = {"normal": normal, "shifted": shifted, "line": line, "wide": normal * 3, "collapsed": collapsed}
        costs[count] = {name: sigreg(z, directions=256).item() for name, z in samples.items()}
    few, many = costs[64], costs[512]
    for costly in ("shifted", "line", "wide", "collapsed"):
        assert few[costly] > 5 * few["normal"], costly
        assert many[costly] / few[costly] == pytest.approx(8, rel=0.3), costly
    assert many["normal"] < 2 * few["normal"]


def test_the_expected_cost_of_a_normal_sample():
    """E |phi_x - phi|^2 is (1 - exp(-t^2)) / N, so the statistic's mean does not depend on N."""
    step_size = 10 / 16
    knots = [-5 + step_size * k for k in range(17)]
    values = [(1 - math.exp(-(t**2))) * math.exp(-(t**2) / 2) for t in knots]
    expected = step_size * (sum(values) - (values[0] + values[-1]) / 2)
    for count in (8, 128):
        found = [sigreg(embeddings(1, count, 16, seed), key=seed, directions=128).item() for seed in range(20)]
        assert sum(found) / 20 == pytest.approx(expected, rel=0.15)


def test_the_order_of_the_batch_does_not_matter():
    z, order = embeddings(), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(sigreg(z[:, order]), sigreg(z))
    torch.testing.assert_close(invariance(z[:, order], 2), invariance(z, 2))


def test_the_order_of_views_does_not_matter_within_their_kind():
    z = embeddings(5)
    torch.testing.assert_close(sigreg(z[[1, 0, 4, 2, 3]]), sigreg(z))
    torch.testing.assert_close(invariance(z[[1, 0, 4, 2, 3]], 2), invariance(z, 2))
    assert not torch.isclose(invariance(z[[2, 1, 0, 3, 4]], 2), invariance(z, 2))


# --- directions -----------------------------------------------------------------------------------------------------


def test_directions_are_uniform_on_the_sphere():
    found = draw_directions(4096, 8, 0, 0, CPU)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4096))
    assert found.mean(0).abs().max() < 0.03
    torch.testing.assert_close(found.T @ found / 4096, torch.eye(8) / 8, rtol=0, atol=0.02)
    assert (found**4).mean().item() == pytest.approx(3 / (8 * 10), rel=0.05)  # kurtosis: not that of a cube


def test_every_step_and_seed_has_its_own_directions():
    again, first = draw_directions(16, 4, 0, 1, CPU), draw_directions(16, 4, 0, torch.tensor(1), CPU)
    assert torch.equal(again, first)
    assert not torch.isclose(draw_directions(16, 4, 0, 10**12, CPU), first).any(1).all()
    assert not torch.isclose(draw_directions(16, 4, 1, 1, CPU), first).any(1).all()


def test_the_global_generator_is_not_used():
    objective, batch = make(), Batch(torch.arange(5), None, key=3)
    before = torch.get_rng_state()
    objective.sigreg(embeddings().float(), batch)
    assert torch.equal(torch.get_rng_state(), before)


# --- settings and runs ----------------------------------------------------------------------------------------------


def test_the_recipe_and_its_views():
    found = recipe()
    assert (found.optim.lr, found.optim.weight_decay, found.batch, found.epochs) == (5e-4, 0.05, 256, 800)
    wide, narrow = lejepa_plan(found.objective, 224).groups
    assert (wide.count, wide.size, wide.policy.scale) == (2, 224, (0.3, 1.0))
    assert (narrow.count, narrow.size, narrow.policy.scale) == (6, 96, (0.05, 0.3))
    assert len(lejepa_plan(LeJEPAConfig(local_crops=0), 112).groups) == 1
    with pytest.raises(UserError, match="no preset 'released'"):
        recipe(preset="released")
    with pytest.raises(ValueError, match="2 global views"):
        LeJEPA(tiny_backbone(), lejepa_plan(LeJEPAConfig(global_crops=3), 16), LeJEPAConfig())


def test_one_image_per_pass_is_refused(folder, tmp_path, capsys):
    words = ["pretrain", folder, "--out", tmp_path / "x", "--method", "lejepa"]
    assert "compares images" in refused(capsys, *words, "--batch", "1")
    assert "compares images" in refused(capsys, *words, "--batch", "4", "--optim.accumulate", "4")


def test_the_command_line(folder, tmp_path):
    words = ["pretrain", str(folder), "--out", str(tmp_path / "pre"), "--method", "lejepa", "--epochs", "2"]
    words += ["--backbone", "vit_nano_patch4_32", "--size", "16", "--batch", "16", "--aux", "drloc"]
    words += ["--lejepa.hidden", "32", "--lejepa.directions", "16", "--lejepa.local-crops", "1"]
    assert run([*words, "--loop.device", "cpu", "--loop.trackers", "none"]) == 0
    result = read(tmp_path / "pre" / "result.json")
    assert result["method"] == "lejepa"
    assert {"invariance", "sigreg", "drloc"} <= result["last"].keys()


def test_steps_lower_the_loss():
    objective = make()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    losses = [step(objective, optimiser, 0) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(("weight", "collapses"), [(0.05, False), (0.0, True)])
def test_a_run_does_not_collapse_but_without_sigreg(tmp_path, weight, collapses):
    """60 images of smooth colours, 200 steps. A standard normal has a variance of 1."""
    for i in range(60):
        colours = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((16, 16), Image.Resampling.BICUBIC).save(tmp_path / f"{i:03d}.png")
    store = open_store(tmp_path)
    objective = make(sigreg_weight=weight, directions=64, local_crops=0)
    config = FitConfig(100, 30, optim=OptimConfig(lr=2e-3, clip=0.0), loop=LoopConfig(device="cpu", trackers=()))
    (tmp_path / "run").mkdir()
    fit(objective, store, config, run=RunDirectory(tmp_path / "run"))
    pixels, _ = store.fetch(np.arange(len(store)))
    with torch.no_grad():
        z = objective.projector(objective.backbone((pixels / 255 - 0.5) / 0.25).pooled)
    variance = z.var(0).mean().item()
    assert (variance < 0.05) if collapses else (variance > 0.3)
