"""SimCLR and SupCon against versions written from their equations, and at points where the loss is known."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import batch_of, noise
from tests.tiny import tiny_backbone
from vitling.errors import UserError
from vitling.methods.simclr.loss import SimCLR, nt_xent
from vitling.methods.simclr.settings import SimCLRConfig
from vitling.methods.supcon.loss import SupCon, sup_out
from vitling.methods.supcon.settings import SupConConfig
from vitling.objectives import Batch
from vitling.objectives.gather import GatheredRows
from vitling.views.policies import idmm_pretrain, simclr

TAU = 0.1
LABELS = torch.tensor([0, 1, 0, 2, 0, 1])


def views(images: int = 6, dim: int = 5, seed: int = 0) -> torch.Tensor:
    """Draw unit vectors: the first views of all images, then the second ones."""
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(2 * images, dim, generator=random), dim=1)


def simclr_loss(z: torch.Tensor, tau: float = TAU) -> torch.Tensor:
    return nt_xent(z, GatheredRows(z, 0), tau)


def supcon_loss(z: torch.Tensor, labels: torch.Tensor = LABELS, tau: float = TAU) -> torch.Tensor:
    classes = labels.repeat(2)
    return sup_out(z, GatheredRows(z, 0), classes, classes, tau)


def cosine(a, b) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def literal_nt_xent(z: torch.Tensor, tau: float) -> list[float]:
    """Compute SimCLR's Eq. 1."""
    count = len(z)
    losses = []
    for i in range(count):
        j = (i + count // 2) % count
        below = sum(math.exp(cosine(z[i], z[k]) / tau) for k in range(count) if k != i)
        losses.append(-math.log(math.exp(cosine(z[i], z[j]) / tau) / below))
    return losses


def literal_sup_out(z: torch.Tensor, classes: list[int], tau: float) -> list[float]:
    """Compute SupCon's Eq. 2: A(i) are all others, P(i) those of the same class."""
    losses = []
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        partners = [p for p in others if classes[p] == classes[i]]
        below = sum(math.exp(float(z[i] @ z[a]) / tau) for a in others)
        logs = [math.log(math.exp(float(z[i] @ z[p]) / tau) / below) for p in partners]
        losses.append(-sum(logs) / len(partners))
    return losses


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_simclr_against_a_literal_version(tau):
    z = views()
    assert torch.allclose(simclr_loss(z, tau), torch.tensor(literal_nt_xent(z, tau)), atol=1e-5)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_supcon_against_a_literal_version(tau):
    z = views()
    expected = literal_sup_out(z, LABELS.repeat(2).tolist(), tau)
    assert torch.allclose(supcon_loss(z, tau=tau), torch.tensor(expected), atol=1e-5)


@pytest.mark.parametrize("images", [1, 2, 7])
def test_equal_embeddings_cost_the_uniform_loss(images):
    z = F.normalize(torch.ones(2 * images, 4), dim=1)
    for loss in (simclr_loss(z), supcon_loss(z, torch.arange(images) % 2)):
        assert torch.allclose(loss, torch.tensor(math.log(2 * images - 1)), atol=1e-5)


def test_views_that_agree_and_images_at_right_angles():
    """Each has its partner at cosine 1 and 2n - 2 others at 0."""
    z = torch.eye(4).repeat(2, 1)
    expected = math.log(math.exp(1 / TAU) + 6) - 1 / TAU
    assert torch.allclose(simclr_loss(z), torch.tensor(expected), atol=1e-6)


def test_a_single_image_costs_nothing():
    z = views(1).requires_grad_()
    loss = simclr_loss(z)
    loss.sum().backward()
    assert torch.allclose(loss, torch.zeros(2), atol=1e-6)
    assert z.grad.abs().max() < 1e-5


def test_the_order_of_images_does_not_matter():
    z, order = views(), torch.tensor([3, 0, 5, 1, 4, 2])
    both = torch.cat([order, order + 6])
    assert torch.allclose(simclr_loss(z)[both], simclr_loss(z[both]), atol=1e-5)
    assert torch.allclose(supcon_loss(z)[both], supcon_loss(z[both], LABELS[order]), atol=1e-5)


def test_the_order_of_views_does_not_matter():
    z = views()
    swapped = torch.cat([z[6:], z[:6]])
    assert torch.allclose(simclr_loss(z).mean(), simclr_loss(swapped).mean())


def test_supcon_with_every_label_different_is_simclr():
    one, other = views().requires_grad_(), views().requires_grad_()
    simclr_loss(one).mean().backward()
    supcon_loss(other, torch.arange(6)).mean().backward()
    assert torch.allclose(simclr_loss(one), supcon_loss(other, torch.arange(6)), atol=1e-6)
    assert torch.allclose(one.grad, other.grad, atol=1e-6)


# --- the objectives -------------------------------------------------------------------------------------------------


def made(kind: str = "simclr", labels: torch.Tensor = LABELS, **settings):
    torch.manual_seed(0)
    if kind == "simclr":
        return SimCLR(tiny_backbone(), simclr(16), SimCLRConfig(**settings))
    return SupCon(tiny_backbone(), simclr(16), labels, SupConConfig(**settings))


@pytest.mark.parametrize("projection", ["none", "mlp"])
def test_the_loss_is_that_of_the_projected_features(projection):
    model = made(projection=projection, dim=7)
    (term,) = model(noise(model, 6), batch_of(6), None).values()
    pooled = model.backbone(noise(model, 6)[0].pixels).pooled
    z = pooled
    if projection == "mlp":
        first, last = model.projection[0], model.projection[2]
        assert (first.out_features, last.out_features) == (32, 7)
        z = last(first(pooled).clamp(min=0))
    assert torch.allclose(term, torch.tensor(literal_nt_xent(z.detach(), TAU)).mean(), atol=1e-4)


def test_classes_are_found_by_the_images_ids():
    model = made("supcon", torch.tensor([9, 9, 4, 4, 9, 5, 4, 9]))
    (term,) = model(noise(model, 6), Batch(torch.tensor([7, 2, 0, 5, 3, 1]), None), None).values()
    z = F.normalize(model.projection(model.backbone(noise(model, 6)[0].pixels).pooled), dim=1)
    assert torch.allclose(term, supcon_loss(z, torch.tensor([9, 4, 9, 5, 4, 9])).mean(), atol=1e-5)


def test_images_without_a_label_are_classes_of_their_own():
    """Also where there is a class of which they could take the number."""
    unlabelled, alone = torch.tensor([0, -1, 0, -1, 6, 7]), torch.tensor([0, 1, 0, 2, 6, 7])
    one, other = (made("supcon", labels) for labels in (unlabelled, alone))
    views = noise(one, 6)
    assert torch.allclose(one(views, batch_of(6), None)["contrast"], other(views, batch_of(6), None)["contrast"])


def test_in_low_precision_similarities_are_float32():
    """Similarities of 1 and 1 - 1e-4 are the same in bf16, and 20 logits apart at a temperature of 5e-6."""
    model = made(projection="none", temperature=5e-6)
    angle = math.acos(1 - 1e-4)
    z = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]]).repeat(2, 1)
    model.features = lambda pixels: type("Features", (), {"pooled": z})
    model.auxiliary_terms = lambda *arguments: {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        term = model(noise(model, 2), batch_of(2), None)["contrast"]
    assert term.dtype == torch.float32
    assert term < 1e-3


def test_a_whole_pass_under_autocast_is_close_to_float32():
    model = made()
    exact = model(noise(model, 6), batch_of(6), None)["contrast"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(noise(model, 6), batch_of(6), None)["contrast"]
    assert low.dtype == torch.float32
    assert abs(low - exact) < 0.1


@pytest.mark.parametrize("kind", ["simclr", "supcon"])
def test_steps_can_be_captured(kind):
    model = made(kind)
    assert model.capturable
    assert model.compares_images
    model.attach("late", torch.nn.Identity(), lambda progress: 1.0)
    assert not model.capturable


def test_the_uniform_loss_is_the_mean_over_an_epochs_batches():
    model = SimCLR(tiny_backbone(), simclr(16), batches=(8, 8, 2))
    assert model.uniform_loss()["contrast"] == pytest.approx((2 * math.log(15) + math.log(3)) / 3)
    assert made().uniform_loss() == {}


@pytest.mark.parametrize("kind", ["simclr", "supcon"])
def test_every_parameter_has_a_gradient_and_labels_are_no_weights(kind):
    model = made(kind)
    model(noise(model, 6), batch_of(6), None)["contrast"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert "classes" not in model.state_dict()


def test_settings_out_of_range():
    with pytest.raises(UserError, match="temperature"):
        made(temperature=0.0)
    with pytest.raises(UserError, match="--projection linear: choose from"):
        made(projection="linear")
    with pytest.raises(UserError, match="dim"):
        made("supcon", dim=0)
    with pytest.raises(ValueError, match="two views"):
        SimCLR(tiny_backbone(), idmm_pretrain(16))
    with pytest.raises(ValueError, match="one class per image"):
        made("supcon", torch.zeros(6, 3))
