"""The logistic probe: the batched L-BFGS compared with scikit-learn's, and the search for C."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from vitling.errors import UserError
from vitling.evaluation.lbfgs import minimise
from vitling.evaluation.logistic import TOLERANCE, Problems, fit_logistic, fit_probe, grid_strength, search_strength
from vitling.evaluation.metrics import mean_average_precision, top1

STRENGTHS = [1e-6, 1e-3, 1.0, 1e3, 1e6]


def draw_clusters(classes: int, n: int = 300, dim: int = 12, uneven: float = 0.0, noise: float = 1.5):
    """Draw overlapping clusters; uneven ones lie on axes of different lengths, away from zero."""
    torch.manual_seed(0)
    labels = torch.arange(n) % classes
    features = torch.randn(classes, dim)[labels] + noise * torch.randn(n, dim)
    return features * torch.logspace(uneven / 2, -uneven / 2, dim) + uneven, labels


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_fits_match_scikit_learn(classes):
    """The steps are the same, not only the minimum, so the tolerance stops both at the same point."""
    features, labels = draw_clusters(classes, noise=3.0)  # separable classes have no minimum at a large C
    ours = fit_logistic(features, labels, classes, STRENGTHS, "torch")
    theirs = fit_logistic(features, labels, classes, STRENGTHS, "sklearn")
    for one, other in zip(ours, theirs):
        assert other.converged
        assert one.converged
        assert one.iterations == other.iterations
        assert (one.weight - other.weight).abs().max() < 1e-5
        assert (one.bias - other.bias).abs().max() < 1e-5


@pytest.mark.parametrize("classes", [2, 5])
def test_fits_match_on_features_of_unequal_scale(classes):
    """Rounding separates the two after some hundred steps; at a tight tolerance they converge to the same point."""
    features, labels = draw_clusters(classes, uneven=1.0)
    ours, theirs = (fit_logistic(features, labels, classes, [1e-2, 1.0], b, 1e-7) for b in ("torch", "sklearn"))
    for one, other in zip(ours, theirs):
        assert (one.weight - other.weight).abs().max() < 1e-3
        assert (one.bias - other.bias).abs().max() < 1e-3


def test_probabilities_match_scikit_learn():
    for classes in (2, 4):
        features, labels = draw_clusters(classes)
        reference = LogisticRegression(C=0.3, max_iter=1000, tol=TOLERANCE)
        reference.fit(features.double().numpy(), labels.numpy())
        for backend in ("sklearn", "torch"):
            (fit,) = fit_logistic(features, labels, classes, [0.3], backend)
            expected = reference.predict_proba(features.double().numpy())
            assert np.abs(fit.logits(features).softmax(dim=1).numpy() - expected).max() < 1e-6


def test_gradient_vanishes_at_a_tight_tolerance():
    features, labels = draw_clusters(5)
    (fit,) = fit_logistic(features, labels, 5, [2.0], "torch", tolerance=1e-7)
    weight = fit.weight.clone().requires_grad_()
    bias = fit.bias.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(features.double() @ weight + bias, labels)
    (loss + weight.square().sum() / (2 * 2.0 * len(features))).backward()
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) <= 1e-7


def test_float32_products_are_close():
    features, labels = draw_clusters(5)
    exact = fit_logistic(features, labels, 5, STRENGTHS, "torch")
    rough = fit_logistic(features, labels, 5, STRENGTHS, "torch", dtype=torch.float32)
    for one, other in zip(rough, exact):
        assert (one.logits(features) - other.logits(features)).abs().max() < 0.03  # of 13
        assert one.converged


def test_each_of_several_labels_is_one_problem():
    features, labels = draw_clusters(4)
    several = torch.nn.functional.one_hot(labels, 6).bool() | (torch.rand(len(labels), 6) < 0.1)
    several[:, 4], several[:, 5] = False, True
    for backend in ("torch", "sklearn"):
        (fit,) = fit_logistic(features, several, 6, [0.5], backend)
        for c in range(4):
            (alone,) = fit_logistic(features, several[:, c].long(), 2, [0.5], "sklearn")
            assert (fit.logits(features)[:, c] - alone.logits(features)[:, 1]).abs().max() < 1e-3
        assert (fit.logits(features)[:, 4] < -20).all()
        assert (fit.logits(features)[:, 5] > 20).all()


def test_classes_without_images_are_never_predicted():
    features, labels = draw_clusters(3)
    for shifted, n in ((labels * 2 + 1, 8), ((labels % 2) * 3, 5)):
        ours, theirs = (fit_logistic(features, shifted, n, [1.0], b)[0].logits(features) for b in ("torch", "sklearn"))
        assert (ours - theirs).abs().max() < 1e-3
        assert set(ours.argmax(dim=1).tolist()) <= set(shifted.tolist())
        assert top1(ours, shifted) > 0.5


def test_block_size_does_not_matter(monkeypatch):
    features, labels = draw_clusters(3)
    problems = Problems(features.double(), labels, [0.1, 10.0])
    points = torch.randn_like(problems.start())
    whole = problems(points, torch.arange(2))
    monkeypatch.setattr("vitling.evaluation.logistic.BLOCK", 100)
    assert all(torch.allclose(one, other) for one, other in zip(whole, problems(points, torch.arange(2))))
    alone = problems(points[1:], torch.tensor([1]))
    assert all(torch.allclose(one[1:], other) for one, other in zip(whole, alone))


@pytest.mark.parametrize("seed", range(3))
def test_minimise_takes_the_steps_of_scipy(seed):
    """Rosenbrock's function in six dimensions, from several starts at once, exercises the line search."""

    def value(x):
        return 100 * (x[:, 1:] - x[:, :-1] ** 2).square().sum(dim=1) + (1 - x[:, :-1]).square().sum(dim=1)

    def objective(x, rows):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            f = value(x)
            (gradient,) = torch.autograd.grad(f.sum(), x)
        return f.detach(), gradient

    def alone(x):
        f, g = objective(torch.from_numpy(x)[None], None)
        return float(f[0]), g[0].numpy()

    start = torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, (4, 6)))
    found = minimise(objective, start, tolerance=1e-6)
    for i in range(4):
        options = {"maxiter": 1000, "maxls": 50, "gtol": 1e-6, "ftol": 64 * np.finfo(float).eps}
        theirs = minimize(alone, start[i].numpy(), jac=True, method="L-BFGS-B", options=options)
        assert found.iterations[i] == theirs.nit
        assert np.abs(found.points[i].numpy() - theirs.x).max() < 1e-4
    assert found.converged.all()


def test_start_at_the_minimum_and_iteration_limit():
    def bowl(x, rows):
        return x.square().sum(dim=1), 2 * x

    found = minimise(bowl, torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=torch.float64))
    assert found.iterations[0] == 0
    assert found.converged.all()
    assert found.points.abs().max() < 1e-4
    features, labels = draw_clusters(4)
    problems = Problems(features.double(), labels, [1e6])
    cut = minimise(problems, problems.start(), max_iterations=3)
    assert not cut.converged[0]
    assert cut.iterations[0] == 3


def test_minimise_stops_if_no_step_decreases_the_value():
    """The gradient is wrong and no step decreases the value, so the search must give up."""
    found = minimise(lambda x, rows: (x.sum(dim=1), -torch.ones_like(x)), torch.zeros(1, 2, dtype=torch.float64))
    assert not found.converged[0]


def test_search_tries_at_most_15_of_97():
    tried: list[float] = []

    def peaked_at(peak):
        def evaluate(strengths):
            tried.extend(strengths)
            return [-abs(np.log10(C) - peak) for C in strengths]

        return evaluate

    for step in (0, 3, 41, 96):
        tried.clear()
        best, scores = search_strength(peaked_at(np.log10(grid_strength(step))))
        assert best == pytest.approx(grid_strength(step))
        assert tried[:7] == pytest.approx([1e-6, 1e-4, 1e-2, 1, 1e2, 1e4, 1e6])
        assert len(tried) == len(scores) <= 15
    assert (grid_strength(0), grid_strength(96)) == pytest.approx((1e-6, 1e6))
    assert grid_strength(8) / grid_strength(0) == pytest.approx(10)


def test_stronger_penalty_wins_ties():
    best, _ = search_strength(lambda strengths: [0.5] * len(strengths))
    assert best == pytest.approx(1e-6)


def test_backends_choose_the_same_c_and_refit_on_both_parts():
    features, labels = draw_clusters(3, n=240, dim=8, noise=2.5)
    parts = (features[:150], labels[:150]), (features[150:], labels[150:])
    ours, theirs = (fit_probe(*parts, 3, top1, backend) for backend in ("torch", "sklearn"))
    assert ours.C == theirs.C
    assert ours.scores == pytest.approx(theirs.scores)
    assert (ours.fit.weight - theirs.fit.weight).abs().max() < 1e-3
    (whole,) = fit_logistic(features, labels, 3, [ours.C], "torch")
    assert torch.allclose(whole.weight, ours.fit.weight)
    assert ours.score == max(ours.scores.values())
    assert not ours.not_converged


@pytest.mark.parametrize("backend", ["torch", "sklearn"])
def test_final_fit_is_at_the_minimum(backend):
    """Check the gradient of the equation on axes of decreasing length."""
    features, labels = draw_clusters(10, n=600, dim=128, noise=4.0)
    features = features * torch.arange(1, 129) ** -0.75
    found = fit_probe((features[:480], labels[:480]), (features[480:], labels[480:]), 10, top1, backend)
    weight, bias = (part.clone().requires_grad_() for part in (found.fit.weight, found.fit.bias))
    loss = F.cross_entropy(features.double() @ weight + bias, labels) + weight.square().sum() / (2 * found.C * 600)
    loss.backward()
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) <= 1e-6


def test_search_fits_are_close_to_their_minimum():
    """At scikit-learn's tolerance the search chooses too strong a penalty here, C = 1.8 instead of 316."""
    features, labels = draw_clusters(20, n=1500, dim=128, noise=2.5)
    features = features * torch.arange(1, 129) ** -0.75
    train, held = (features[:1200], labels[:1200]), (features[1200:], labels[1200:])

    def best(tolerance):
        def evaluate(strengths):
            return [
                top1(fit.logits(held[0]), held[1]) for fit in fit_logistic(*train, 20, strengths, "torch", tolerance)
            ]

        return search_strength(evaluate)[0]

    assert fit_probe(train, held, 20, top1).C == best(1e-8) > 100 * best(1e-4)


def test_multi_label_search_uses_the_given_metric():
    features, labels = draw_clusters(3, n=120, dim=6)
    several = torch.nn.functional.one_hot(labels, 3).bool()
    found = fit_probe((features[:80], several[:80]), (features[80:], several[80:]), 3, mean_average_precision, "torch")
    assert 0.5 < found.score <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_fits_match_scikit_learn():
    features, labels = draw_clusters(7, noise=3.0)
    theirs = fit_logistic(features, labels, 7, STRENGTHS, "sklearn")
    for dtype, near in ((torch.float64, 1e-3), (torch.float32, 1e-2)):
        ours = fit_logistic(features.cuda(), labels.cuda(), 7, STRENGTHS, "torch", dtype=dtype)
        for one, other in zip(ours, theirs):
            assert (one.weight.cpu() - other.weight).abs().max() < near
    parts = (features[:200].cuda(), labels[:200].cuda()), (features[200:].cuda(), labels[200:].cuda())
    on_host = [(x.cpu(), y.cpu()) for x, y in parts]
    assert fit_probe(*parts, 7, top1).C == fit_probe(*on_host, 7, top1).C


def test_impossible_fits_are_refused():
    features, labels = draw_clusters(2, n=20)
    with pytest.raises(UserError, match="one class"):
        fit_logistic(features, labels * 0, 2, [1.0])
    with pytest.raises(UserError, match="on all training images or on none"):
        fit_logistic(features, torch.zeros(20, 3, dtype=torch.bool), 3, [1.0])
    with pytest.raises(UserError, match="do not match"):
        fit_logistic(features[:9], labels, 2, [1.0])
    features[3, 0] = torch.nan
    with pytest.raises(UserError, match="not finite for 1 of 20"):
        fit_logistic(features, labels, 2, [1.0])
