"""The equations of the IDMM paper, against autograd on the loss that is trained."""

from __future__ import annotations

import pytest
import torch

from vitling.methods.idmm.loss import cross_entropy, uniform_mass
from vitling.methods.idmm.settings import IDMMConfig
from vitling.objectives.classifiers import FullClassifier

N, D = 9, 5


def classifier() -> FullClassifier:
    torch.manual_seed(0)
    made = FullClassifier(D, N)
    torch.nn.init.normal_(made.weight)
    return made


def features(count: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def loss_of(made, z, own, partner=None, lam=1.0, **settings):
    """Compute the loss of one crop, smoothed as the objective does for these settings."""
    own = torch.tensor([own])
    partner = own if partner is None else torch.tensor([partner])
    epsilon = uniform_mass(IDMMConfig(**{"smoothing": 0.0, **settings}), N)
    return cross_entropy(made(z, own, partner, None), torch.tensor([lam]), epsilon)[0]


def posterior(made, z) -> torch.Tensor:
    return (made.weight @ z[0] + made.bias).softmax(0).detach()


@pytest.mark.parametrize("i", [0, 4, 8])
def test_eq_15_gradient_of_the_feature(i):
    made, z = classifier(), features()
    loss_of(made, z, i).backward()
    p = posterior(made, z)
    expected = -made.weight[i] + sum(p[j] * made.weight[j] for j in range(N))
    torch.testing.assert_close(z.grad[0], expected)


@pytest.mark.parametrize("i", [0, 4, 8])
def test_eq_16_gradient_of_the_classifier(i):
    made, z = classifier(), features()
    loss_of(made, z, i).backward()
    p = posterior(made, z)
    for k in range(N):
        torch.testing.assert_close(made.weight.grad[k], (p[k] - float(k == i)) * z[0])


def masses(lam: float, epsilon: float, images: int = N) -> tuple[float, float, float]:
    """Compute Eq. 19, with the C for which the masses add up to 1: the paper's has a lambda too many."""
    rest = epsilon / (images - 1)
    return lam * (1 - epsilon) + (1 - lam) * rest, (1 - lam) * (1 - epsilon) + lam * rest, rest


@pytest.mark.parametrize("lam", [0.5, 0.818, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_eq_20_gradient_with_cutmix_and_smoothing(lam, epsilon):
    i, other = 2, 7
    made, z = classifier(), features()
    loss_of(made, z, i, other, lam, smoothing=epsilon, smoothing_form="others").backward()
    p, (c_i, c_other, c) = posterior(made, z), masses(lam, epsilon)
    for k in range(N):
        mass = c_i if k == i else c_other if k == other else c
        torch.testing.assert_close(made.weight.grad[k], (p[k] - mass) * z[0])


def test_eq_19_adds_up_without_the_lambda_of_its_c():
    """At N = 2040 and lambda = 0.5 the paper finds C = 2.5e-5; it is 4.9e-5."""
    c_i, c_other, c = masses(0.5, 0.1, 2040)
    assert c_i + c_other + 2038 * c == pytest.approx(1)
    assert c_i + c_other + 2038 * 0.5 * c == pytest.approx(0.95, abs=1e-4)
    assert (c_i, c_other, c) == pytest.approx((0.45, 0.45, 4.9e-5), rel=1e-2)


@pytest.mark.parametrize("form", ["others", "all"])
@pytest.mark.parametrize("pair", [(2, 7), (3, 3)], ids=["two images", "one image twice"])
def test_the_targets_that_autograd_finds_add_up_to_1(form, pair):
    """The gradient of the bias is p - t."""
    made, z = classifier(), features()
    loss_of(made, z, *pair, 0.6, smoothing=0.1, smoothing_form=form).backward()
    target = posterior(made, z) - made.bias.grad
    assert target.sum().item() == pytest.approx(1, abs=1e-6)
    assert target.min() >= 0.1 / N - 1e-6
    own, partner = pair
    assert target.argmax() == own
    assert (target[own] == target[partner]) == (own == partner)


def test_eq_17_is_the_released_form_with_a_little_more_smoothing():
    made, z = classifier(), features()
    paper = loss_of(made, z, 2, smoothing=0.1, smoothing_form="others")
    released = loss_of(made, z, 2, smoothing=0.1 * N / (N - 1), smoothing_form="all")
    torch.testing.assert_close(paper, released)


def test_eq_6_and_7_the_contrastive_loss_is_a_special_case():
    """w_j = z_jA, two views of each image."""
    made = classifier()
    a, b = features(N, seed=2).detach(), features(N, seed=3).detach()
    made.weight.data.copy_(a)
    for i in range(N):
        both = loss_of(made, a[[i]], i) + loss_of(made, b[[i]], i)
        others = [j for j in range(N) if j != i]
        eq_6 = -a[i] @ b[i] + torch.log((a[i] @ b[i]).exp() + sum((b[i] @ a[j]).exp() for j in others))
        eq_7 = -a[i] @ a[i] + torch.log((a[i] @ a[i]).exp() + sum((a[i] @ a[j]).exp() for j in others))
        torch.testing.assert_close(both, eq_6 + eq_7)
