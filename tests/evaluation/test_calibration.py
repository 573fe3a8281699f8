from __future__ import annotations

import pytest
import torch

from vitling.evaluation import fit_temperature
from vitling.evaluation.metrics import log_loss


def draw_calibrated_logits(n, classes=5):
    """Draw logits whose softmax is the true distribution of the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, classes, generator=generator)
    return logits, logits.softmax(1).multinomial(1, generator=generator)[:, 0]


@pytest.mark.parametrize("planted", [0.3, 1.0, 4.0])
def test_known_temperature_is_recovered(planted):
    logits, labels = draw_calibrated_logits(8000)
    assert fit_temperature(logits * planted, labels) == pytest.approx(planted, rel=0.06)


@pytest.mark.parametrize("planted", [0.5, 3.0])
def test_multi_label(planted):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3000, 4, generator=generator)
    labels = torch.rand(3000, 4, generator=generator) < logits.sigmoid()
    assert fit_temperature(logits * planted, labels) == pytest.approx(planted, rel=0.06)


@pytest.mark.parametrize("seed", range(8))
def test_likelihood_never_decreases_even_on_few_images(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 3, generator=generator) * 10 ** float(seed - 4)
    labels = torch.randint(3, (4,), generator=generator)
    temperature = fit_temperature(logits, labels)
    assert 0.05 <= temperature <= 20
    assert log_loss(logits / temperature, labels) <= log_loss(logits, labels)


def test_tiny_split_without_errors_does_not_imply_certainty():
    logits = torch.eye(4).repeat(5, 1) * 4
    labels = torch.arange(4).repeat(5)
    assert 0.3 < fit_temperature(logits, labels) < 1
