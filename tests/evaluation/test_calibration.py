from __future__ import annotations

import pytest
import torch

from vitling.evaluation import fit_temperature
from vitling.evaluation.metrics import calibration_error, log_loss


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


def simulate(images: int, classes: int, spread: float, repeats: int = 30) -> dict[str, float]:
    """Measure the mean calibration error on 2,000 new images: untouched, fitted freely, and as vitling fits it.

    The logits are too large or too small by a random factor, whose logarithm has the standard deviation `spread`.
    """
    generator = torch.Generator().manual_seed(images + classes)
    errors: dict[str, list[float]] = {"none": [], "free": [], "ours": []}
    for _ in range(repeats):
        scale = 1 + 3 * torch.rand(1, generator=generator)
        factor = (spread * torch.randn(1, generator=generator)).exp()
        logits = scale * torch.randn(images + 2000, classes, generator=generator)
        labels = logits.softmax(1).multinomial(1, generator=generator)[:, 0]
        logits = logits * factor
        few, new = (logits[:images], labels[:images]), (logits[images:], labels[images:])
        for name, temperature in (("none", 1.0), ("free", fit_freely(*few)), ("ours", fit_temperature(*few))):
            errors[name].append(calibration_error(new[0] / temperature, new[1]))
    return {name: sum(values) / repeats for name, values in errors.items()}


def fit_freely(logits: torch.Tensor, labels: torch.Tensor) -> float:
    candidates = torch.linspace(-3, 3, 121).exp().tolist()
    return min(candidates, key=lambda temperature: log_loss(logits / temperature, labels))


@pytest.mark.parametrize(("images", "classes"), [(20, 6), (20, 20), (36, 6), (36, 20)])
def test_few_images_do_not_spoil_the_calibration(images, classes):
    """The rule was chosen with this simulation: a temperature fitted freely on 20 images makes a good model worse."""
    found = simulate(images, classes, spread=0.2)
    assert found["ours"] < found["none"]
    assert found["ours"] < found["free"]


@pytest.mark.parametrize("images", [36, 200])
def test_bad_calibration_is_mended(images):
    found = simulate(images, 6, spread=0.5)
    assert found["ours"] < 0.7 * found["none"]
    assert found["ours"] < found["free"] + 0.01
