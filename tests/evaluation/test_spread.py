from __future__ import annotations

import pytest
import torch

from vitling.evaluation.spread import effective_rank, measure_spread


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_effective_rank_of_known_matrices(dim):
    assert effective_rank(torch.eye(dim)) == pytest.approx(dim)
    assert effective_rank(torch.outer(torch.arange(1.0, 6), torch.randn(dim))) == pytest.approx(1, abs=1e-5)
    assert effective_rank(torch.zeros(5, dim)) == 0


def test_effective_rank_is_the_exponential_of_the_entropy():
    assert effective_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(2**1.5)


def test_isotropic_features_have_spread_one():
    torch.manual_seed(0)
    measured = measure_spread(torch.randn(2000, 64) * torch.rand(2000, 1))
    assert measured.spread == pytest.approx(1, abs=0.02)
    assert measured.cosine == pytest.approx(0, abs=0.005)
    assert measured.effective_rank > 60


@pytest.mark.parametrize("images", [2, 3, 500])
def test_constant_features(images):
    """Only directions count, not lengths."""
    measured = measure_spread(torch.randn(1, 32) * torch.linspace(1, 9, images)[:, None])
    assert measured.spread == pytest.approx(0, abs=1e-6)
    assert measured.effective_rank == pytest.approx(1, abs=1e-4)
    assert measured.cosine == pytest.approx(1)


def test_zero_features_give_finite_numbers():
    assert measure_spread(torch.zeros(4, 3)) == (0, 0, 0)


def test_cosine_is_the_mean_over_pairs():
    torch.manual_seed(0)
    x = torch.randn(9, 4)
    pairs = [float(torch.cosine_similarity(x[i], x[j], dim=0)) for i in range(9) for j in range(9) if i != j]
    assert measure_spread(x).cosine == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
