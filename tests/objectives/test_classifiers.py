"""Classifiers for many images, compared with the plain one."""

from __future__ import annotations

import pytest
import torch

from vitling.keys import make_key
from vitling.methods.idmm.loss import cross_entropy
from vitling.objectives.classifiers import FullClassifier, SampledClassifier

D, CROPS = 5, 6


def at(step: int) -> int:
    """Return the key of a step."""
    return make_key("step", step)


def make_sampled(images: int, count: int, seed: int = 0) -> SampledClassifier:
    torch.manual_seed(0)
    made = SampledClassifier(D, images, count, seed)
    torch.nn.init.normal_(made.weight)
    torch.nn.init.normal_(made.bias)
    return made


def full_like(made: SampledClassifier) -> FullClassifier:
    full = FullClassifier(D, made.images)
    full.load_state_dict(made.state_dict())
    return full


def crops(images: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    own, partner = (torch.randint(images, (CROPS,), generator=random) for _ in range(2))
    partner[0] = own[0]
    return torch.randn(CROPS, D, generator=random).requires_grad_(), own, partner


def loss_of(made: FullClassifier, z, own, partner, step: int = 0) -> torch.Tensor:
    return cross_entropy(made(z, own, partner, at(step)), torch.linspace(0.5, 1, CROPS), 0.1).mean()


@pytest.mark.parametrize("count", [40, 1000])
def test_drawing_all_classes_is_the_full_softmax(count):
    made = make_sampled(40, count)
    full, found = full_like(made), []
    for one in (made, full):
        z, own, partner = crops(40)
        loss = loss_of(one, z, own, partner)
        loss.backward()
        found.append((loss.detach(), z.grad, one.weight.grad, one.bias.grad))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("count", [3, 10, 39])
def test_the_sums_are_unbiased(count):
    """This holds for the sum under the logarithm and for the mean that smoothing uses."""
    made, (z, own, partner) = make_sampled(40, count), crops(40)
    with torch.no_grad():
        exact = full_like(made)(z, own, partner, None)
        drawn = [made(z, own, partner, at(step)) for step in range(1500)]
    for name, transform in (("total", torch.exp), ("mean", lambda x: x)):
        values = torch.stack([transform(getattr(scores, name)) for scores in drawn])
        error = (values.mean(0) - transform(getattr(exact, name))) / (values.std(0) / len(values) ** 0.5)
        assert error.abs().max() < 4.5
    torch.testing.assert_close(drawn[0].own, exact.own)
    torch.testing.assert_close(drawn[0].partner, exact.partner)


def test_more_classes_come_closer_to_the_loss():
    z, own, partner = crops(400)

    def error(count: int) -> float:
        made = make_sampled(400, count)
        exact = loss_of(full_like(made), z, own, partner)
        return sum(abs(loss_of(made, z, own, partner, step) - exact).item() for step in range(50)) / 50

    few, some, many = error(10), error(100), error(399)
    assert few > 2 * some > 4 * many


def test_one_class_is_drawn_per_interval_and_every_class_in_the_end():
    made = make_sampled(23, 5)
    drawn = torch.stack([made.draw(at(step), torch.device("cpu"))[0] for step in range(400)])
    lengths = made.draw(0, torch.device("cpu"))[1]
    assert lengths.tolist() == [4, 5, 4, 5, 5]
    edges = [0, *lengths.cumsum(0).tolist()]
    for run in range(5):
        assert set(drawn[:, run].tolist()) == set(range(edges[run], edges[run + 1]))


def test_draws_depend_on_seed_and_step():
    made, again, other = make_sampled(1000, 10), make_sampled(1000, 10), make_sampled(1000, 10, seed=1)
    cpu = torch.device("cpu")
    assert torch.equal(made.draw(3, cpu)[0], again.draw(3, cpu)[0])
    assert not torch.equal(made.draw(3, cpu)[0], made.draw(4, cpu)[0])
    assert not torch.equal(made.draw(3, cpu)[0], other.draw(3, cpu)[0])
