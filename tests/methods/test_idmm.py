"""IDMM against a slow, literal version, and in the company of DRLoc."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_backbone
from vitling.errors import UserError
from vitling.methods.drloc.loss import make_drloc_term
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.objectives import Batch
from vitling.objectives.progress import Progress
from vitling.views import Group, Mix, Plan, Views

START = Progress(0, 10, 1)


def make(images: int = 7, plan: Plan | None = None, size: int = 16, **settings) -> IDMM:
    torch.manual_seed(0)
    config = IDMMConfig(**settings)
    objective = IDMM(tiny_backbone(size), plan or idmm_plan(config, size), images, config)
    nn.init.normal_(objective.classifier.weight)  # at its own scale every loss would be that of uniform answers
    nn.init.normal_(objective.classifier.bias)
    return objective


def draw(objective: IDMM, ids: Tensor, seed: int = 0) -> list[Views]:
    """Draw views of noise, with partners and lambdas for the groups that are mixed."""
    random = torch.Generator().manual_seed(seed)
    views = []
    for group in objective.plan.groups:
        crops = group.count * len(ids)
        pixels = torch.randn(crops, 3, group.size, group.size, generator=random)
        if group.mix.on:
            partner = ids.repeat(group.count)[torch.randperm(crops, generator=random)]
            views.append(Views(pixels, group.count, partner, torch.rand(crops, generator=random)))
        else:
            views.append(Views(pixels, group.count))
    return views


# --- the loss, literally --------------------------------------------------------------------------------------------


def literal_target(own: int, partner: int, lam: float, config: IDMMConfig, images: int) -> list[float]:
    """Compute Eq. 17 for each image, or its released form, class by class; then mix."""

    def smoothed(c: int, image: int) -> float:
        if config.smoothing_form == "all":
            return (1 - config.smoothing) * (c == image) + config.smoothing / images
        return 1 - config.smoothing if c == image else config.smoothing / (images - 1)

    return [lam * smoothed(c, own) + (1 - lam) * smoothed(c, partner) for c in range(images)]


@torch.no_grad()
def literal_group(objective: IDMM, config: IDMMConfig, view: Views, ids: Tensor) -> float:
    """Compute the mean loss of a group, crop by crop."""
    weight, bias = objective.classifier.weight, objective.classifier.bias
    total, images = 0.0, len(weight)
    for crop in range(len(view.pixels)):
        z = objective.projection(objective.backbone(view.pixels[crop : crop + 1]).pooled)[0]
        p = torch.stack([(weight[c] @ z + bias[c]).exp() for c in range(images)])
        log_p = (p / p.sum()).log()
        own = int(ids[crop % len(ids)])
        mixed = view.partner is not None
        partner, lam = (int(view.partner[crop]), float(view.lam[crop])) if mixed else (own, 1.0)
        target = literal_target(own, partner, lam, config, images)
        assert sum(target) == pytest.approx(1)
        total -= sum(t * float(log_p[c]) for c, t in enumerate(target))
    return total / len(view.pixels)


PARTS = [
    {},
    {"smoothing_form": "all"},
    {"smoothing": 0.0},
    {"smoothing": 0.3},
    {"cutmix": False},
    {"multi_crop": False},
    {"multi_crop": False, "cutmix": False, "smoothing": 0.0},
    {"projection": "mlp"},
    {"classifier": "sampled", "negatives": 7},
]


@pytest.mark.parametrize("settings", PARTS, ids=str)
def test_the_loss_matches_a_literal_version(settings):
    objective, config, ids = make(**settings), IDMMConfig(**settings), torch.tensor([5, 0, 3])
    views = draw(objective, ids)
    terms = objective(views, Batch(ids, None), START)
    assert list(terms) == (["global", "local"] if config.multi_crop else ["instance"])
    for term, view in zip(terms.values(), views):
        assert term.item() == pytest.approx(literal_group(objective, config, view, ids), rel=1e-5)
    assert objective.total(terms, START).item() == pytest.approx(sum(t.item() for t in terms.values()))


@pytest.mark.parametrize("form", ["all", "others"])
@pytest.mark.parametrize("ids", [[0, 1, 0, 1, 1], [1, 1, 1, 1]], ids=str)
def test_fewer_images_than_the_batch(form, ids):
    """Partners are often another crop of the same image."""
    objective, ids = make(images=2, smoothing_form=form), torch.tensor(ids)
    views = draw(objective, ids)
    assert any((view.partner == ids.repeat(view.count)).any() for view in views)
    for term, view in zip(objective(views, Batch(ids, None), START).values(), views):
        expected = literal_group(objective, IDMMConfig(smoothing_form=form), view, ids)
        assert term.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classifier", ["full", "sampled"])
def test_a_single_image_costs_nothing(classifier):
    objective, ids = make(images=1, classifier=classifier), torch.tensor([0])
    terms = objective(draw(objective, ids), Batch(ids, None), START)
    objective.total(terms, START).backward()
    assert [term.item() for term in terms.values()] == pytest.approx([0, 0], abs=1e-5)
    assert all(p.grad.isfinite().all() for p in objective.parameters())


def test_the_loss_begins_at_2_ln_n():
    """15.24 on the 2040 images of Flowers, one ln N for each group."""
    torch.manual_seed(0)
    objective, ids = IDMM(tiny_backbone(), idmm_plan(IDMMConfig(), 16), 2040), torch.arange(0, 2040, 40)
    terms = objective(draw(objective, ids), Batch(ids, None), START)
    assert objective.total(terms, START).item() == pytest.approx(2 * math.log(2040), abs=0.05)
    assert objective.classifier.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not objective.classifier.bias.any()


@pytest.mark.parametrize("settings", [{}, {"projection": "mlp"}, {"classifier": "sampled", "negatives": 3}], ids=str)
def test_gradients_reach_everything(settings):
    objective, ids = make(**settings), torch.tensor([5, 0, 3])
    objective.total(objective(draw(objective, ids), Batch(ids, None), START), START).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in objective.parameters())


def test_it_has_no_state_besides_its_weights():
    """A resume needs no more than the weights."""
    objective = make()
    assert not list(objective.buffers())
    assert {name.split(".")[0] for name in objective.state_dict()} == {"backbone", "classifier"}


def test_the_loss_falls_in_training():
    objective, ids = make(), torch.arange(7)
    views = draw(make(cutmix=False), ids)
    optimiser = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    values = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = objective.total(objective(views, Batch(ids, None), START), START)
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert values[-1] < values[0] / 3


@pytest.mark.parametrize("settings", [{}, {"classifier": "sampled", "negatives": 4}], ids=str)
def test_the_loss_is_not_in_half_precision(settings):
    objective, ids = make(**settings), torch.tensor([5, 0, 3])
    views = draw(objective, ids)
    exact = objective(views, Batch(ids, None), START)
    with torch.autocast("cpu", torch.bfloat16):
        terms = objective(views, Batch(ids, None), START)
    for name, term in terms.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, exact[name], rtol=0.02, atol=0)


# --- crops ----------------------------------------------------------------------------------------------------------


def two_sizes() -> Plan:
    return Plan((Group(8, 4), Group(16, 2)))


def calls_of(objective: IDMM, views: list[Views], ids: Tensor) -> list[tuple]:
    shapes: list[tuple] = []
    objective.backbone.register_forward_pre_hook(lambda module, inputs: shapes.append(tuple(inputs[0].shape)))
    objective(views, Batch(ids, None), START)
    return shapes


def test_crops_of_one_size_are_one_call():
    ids = torch.tensor([5, 0, 3])
    objective = make()
    assert calls_of(objective, draw(objective, ids), ids) == [(18, 3, 16, 16)]
    objective = make(plan=two_sizes())
    assert calls_of(objective, draw(objective, ids), ids) == [(12, 3, 8, 8), (6, 3, 16, 16)]


def test_groups_of_two_sizes_have_their_own_terms():
    objective, ids = make(plan=two_sizes()), torch.tensor([5, 0, 3])
    views = draw(objective, ids)
    for term, view in zip(objective(views, Batch(ids, None), START).values(), views):
        assert term.item() == pytest.approx(literal_group(objective, IDMMConfig(), view, ids), rel=1e-5)


def test_terms_go_by_group_and_not_by_size():
    objective, ids = make(plan=two_sizes()), torch.tensor([5, 0, 3])
    views = draw(objective, ids)
    terms = objective(views, Batch(ids, None), START)
    turned = objective(views[::-1], Batch(ids, None), START)
    torch.testing.assert_close(turned["global"], terms["local"])
    torch.testing.assert_close(turned["local"], terms["global"])


def test_a_third_group_has_no_name():
    with pytest.raises(ValueError, match="one group of crops or two"):
        make(plan=Plan((Group(16),) * 3))


def test_parts_of_the_plan():
    whole, size = idmm_plan(IDMMConfig()), 112
    assert [(g.size, g.count, g.policy.scale) for g in whole.groups] == [(size, 2, (0.14, 1)), (size, 4, (0.05, 0.4))]
    assert all(g.mix == Mix(cutmix=0.5, per="batch", fold=True) for g in whole.groups)
    unmixed = idmm_plan(IDMMConfig(cutmix=False), 224)
    assert [(g.size, g.count, g.mix.on) for g in unmixed.groups] == [(224, 2, False), (224, 4, False)]
    (single,) = idmm_plan(IDMMConfig(multi_crop=False)).groups
    assert (single.count, single.policy, single.mix.on) == (1, whole.groups[0].policy, True)


# --- with DRLoc -----------------------------------------------------------------------------------------------------


def with_drloc(plan: Plan | None = None, variant: str = "l1", weight: float = 1.0) -> IDMM:
    objective = make(plan=plan)
    objective.attach("drloc", make_drloc_term(objective.backbone, DRLocConfig(variant, hidden=16)), weight)
    return objective


def drloc_names(objective: IDMM, ids: Tensor) -> list[Tensor]:
    """Record the draws of each call."""
    drloc, recorded = objective.auxiliaries["drloc"].drloc, []
    original = drloc.forward
    drloc.forward = lambda grids, names: recorded.append(names) or original(grids, names)
    objective(draw(objective, ids), Batch(ids, None), START)
    return recorded


@pytest.mark.parametrize("plan", [None, two_sizes()], ids=["one size", "two sizes"])
def test_every_crop_draws_pairs_of_its_own(plan):
    ids = torch.tensor([5, 0, 3])
    names = torch.cat(drloc_names(with_drloc(plan), ids))
    assert len(set(names.tolist())) == 18
    part = torch.cat(drloc_names(with_drloc(plan), ids[1:]))  # another process, or another pass
    assert torch.equal(names.view(6, 3)[:, 1:], part.view(6, 2))


@pytest.mark.parametrize("variant", ["l1", "all"])
@pytest.mark.parametrize("plan", [None, two_sizes()], ids=["one size", "two sizes"])
def test_drloc_is_a_mean_over_all_crops(plan, variant):
    objective, ids = with_drloc(plan, variant), torch.tensor([5, 0, 3])
    views = draw(objective, ids)
    terms = objective(views, Batch(ids, None), START)
    assert list(terms) == ["global", "local", "drloc"]
    term, values = objective.auxiliaries["drloc"], []
    for v, pixels in enumerate(part for view in views for part in view.pixels.split(3)):
        values.append(term(objective.features(pixels), Batch(ids, None, first_view=v), START))
    torch.testing.assert_close(terms["drloc"], torch.stack(values).mean())


def test_drloc_leaves_the_other_terms_alone():
    ids, plain, both = torch.tensor([5, 0, 3]), make(), with_drloc(weight=0.0)
    terms = [o(draw(o, ids), Batch(ids, None), START) for o in (plain, both)]
    assert torch.equal(terms[0]["global"], terms[1]["global"])
    for objective, term in zip((plain, both), terms):
        objective.total(term, START).backward()
    others = [p.grad for name, p in both.named_parameters() if not name.startswith("auxiliaries")]
    assert all(torch.equal(p.grad, q) for p, q in zip(plain.parameters(), others, strict=True))


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 1.0}, "below 1"),
        ({"smoothing_form": "some"}, "others, all"),
        ({"projection": "linear"}, "none, mlp"),
        ({"classifier": "half"}, "full, sampled"),
        ({"negatives": 0}, "at least 1"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make(**settings)


def test_weight_decay_on_every_parameter():
    objective = make()
    decayed, free = objective.param_groups(1e-3, decay_all=True)
    assert len(decayed["params"]) == len(list(objective.parameters()))
    assert free["params"] == []
    assert any(p is objective.classifier.bias for p in objective.param_groups(1e-3)[1]["params"])
    torch.optim.AdamW([decayed, free]).step()
