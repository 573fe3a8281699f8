"""DRLoc against a slow, literal version of each equation; the two share only the drawn pairs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.tiny import tiny_backbone
from vitling.backbones import Features, create
from vitling.errors import UserError
from vitling.keys import make_key
from vitling.methods.drloc.loss import DRLoc, DRLocTerm, make_drloc_term
from vitling.methods.drloc.pairs import (
    PairMLP,
    Pairs,
    _choose_then_project,
    _project_then_choose,
    draw_random_pairs,
    pool_grid,
)
from vitling.methods.drloc.settings import DRLocConfig, constant_loss, drloc_weight
from vitling.methods.supervised.loss import Supervised
from vitling.objectives import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.views import Group, Plan, Views

NAMES = torch.tensor([3, 1, 4])
SIZES = [(7, 7), (4, 4), (3, 5), (7, 2), (1, 6)]
PLAN = Plan((Group(16),))


def random_grid(size, dim=6, images=3, seed=0):
    return torch.randn(images, dim, *size, generator=torch.Generator().manual_seed(seed))


def make(variant="l1", dim=6, **settings) -> DRLoc:
    torch.manual_seed(1)
    return DRLoc(dim, variant, **{"pairs": 10, "hidden": 16, **settings})


# --- the equations, literally ---------------------------------------------------------------------------------------


def each_pair(drloc: DRLoc, grid: torch.Tensor, block: int = 0):
    """Yield for each image a list of ((i, j), (p, h), f(e_ij, e_ph)), counted from 1 as in the paper."""
    _, _, height, width = grid.shape
    pairs = drloc.draw(NAMES, (height, width), block)
    mlp = drloc.mlps[block]
    for x in range(len(grid)):
        found = []
        for a, b in zip(pairs.first[x].tolist(), pairs.second[x].tolist()):
            (i, j), (p, h) = divmod(a, width), divmod(b, width)
            e = torch.cat([grid[x, :, i, j], grid[x, :, p, h]])
            found.append(((i + 1, j + 1), (p + 1, h + 1), mlp.rest(mlp.first(e))))
        yield found


def literal_distance(drloc, grid, block=0, scale=lambda k: k):
    """Compute Eq. 2 with the targets of Eq. 1, or of Eq. 3 for the signed variant."""
    _, _, height, width = grid.shape
    total = 0.0
    for pairs in each_pair(drloc, grid, block):
        mean = 0.0
        for (i, j), (p, h), (d_u, d_v) in pairs:
            t_u, t_v = (i - p) / scale(height), (j - h) / scale(width)
            if drloc.variant != "signed":
                t_u, t_v = abs(t_u), abs(t_v)
            mean += (abs(t_u - d_u) + abs(t_v - d_v)) / len(pairs)
        total += mean
    return total


def literal_classes(drloc, grid):
    """Compute Eq. 5 with the classes of Eq. 4."""
    k, total = drloc.grid, 0.0
    for pairs in each_pair(drloc, grid):
        for (i, j), (p, h), out in pairs:
            p_u, p_v = out[: 2 * k + 1].softmax(0), out[2 * k + 1 :].softmax(0)
            total -= (torch.log(p_u[i - p + k]) + torch.log(p_v[j - h + k])) / len(pairs)
    return total


def literal_regression(drloc, grid, alpha=0.001):
    """Compute Eq. 6."""
    k, total = drloc.grid, 0.0
    for pairs in each_pair(drloc, grid):
        for (i, j), (p, h), out in pairs:
            for offset, logits in ((i - p, out[: 2 * k + 1]), (j - h, out[2 * k + 1 :])):
                posterior = logits.softmax(0)
                mu = sum(posterior[c + k] * c for c in range(-k, k + 1))
                variance = sum(posterior[c + k] * (c - mu) ** 2 for c in range(-k, k + 1))
                total += ((offset - mu) ** 2 / variance + alpha * torch.log(variance.sqrt())) / len(pairs)
    return total


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("variant", ["l1", "signed"])
def test_eq_2_and_3(variant, size):
    drloc, grid = make(variant), random_grid(size)
    torch.testing.assert_close(2 * len(grid) * drloc(grid, NAMES), literal_distance(drloc, grid))


@pytest.mark.parametrize(("target", "scale"), [("offset/(k-1)", lambda k: max(k - 1, 1)), ("offset", lambda k: 1)])
@pytest.mark.parametrize("size", [(7, 7), (3, 5), (1, 6)], ids=str)
def test_other_scales_of_the_target(target, scale, size):
    drloc, grid = make(target=target), random_grid(size)
    torch.testing.assert_close(6 * drloc(grid, NAMES), literal_distance(drloc, grid, scale=scale))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("variant", "literal"), [("ce", literal_classes), ("reg", literal_regression)])
def test_eq_4_to_6(variant, literal, size):
    drloc, grid = make(variant), random_grid(size)
    torch.testing.assert_close(len(grid) * drloc(grid, NAMES), literal(drloc, grid))


def test_eq_7_sums_over_blocks_and_pools_none():
    dims, sizes = (6, 8, 8), ((9, 9), (5, 4), (5, 4))
    drloc = make("all", dim=dims)
    grids = [random_grid(size, dim) for size, dim in zip(sizes, dims)]
    literal = sum(literal_distance(drloc, grid, block) for block, grid in enumerate(grids))
    torch.testing.assert_close(6 * drloc(grids, NAMES), literal)
    assert len(drloc.mlps) == 3
    drawn = [drloc.draw(NAMES, (5, 4), block).first for block in (1, 2)]
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_eq_8_pairs_every_token_once(size):
    drloc, grid = make("exhaustive"), random_grid(size)
    tokens = size[0] * size[1]
    assert drloc.draw(NAMES, size).first.tolist() == [list(range(tokens))] * 3
    literal = tokens * literal_distance(drloc, grid)  # a sum over tokens, not a mean
    torch.testing.assert_close(2 * 3 * tokens * drloc(grid, NAMES), literal)


@pytest.mark.parametrize(("pooling", "window"), [("adaptive", (2, 2)), ("released", (3, 2, 1, False, False))])
def test_a_long_side_is_pooled_before_the_loss(pooling, window):
    drloc, grid = make(pooling=pooling), random_grid((14, 14))
    torch.testing.assert_close(drloc(grid, NAMES), drloc(F.avg_pool2d(grid, *window), NAMES))


# --- values that are known ------------------------------------------------------------------------------------------


def constant(drloc: DRLoc, value: float) -> DRLoc:
    """Make it predict `value` always."""
    for mlp in drloc.mlps:
        torch.nn.init.zeros_(mlp.rest[-1].weight)
        torch.nn.init.constant_(mlp.rest[-1].bias, value)
    return drloc


@pytest.mark.parametrize(
    ("value", "settings", "expected"),
    [
        (0.0, {"target": "offset"}, 2.2857),
        (2.0, {"target": "offset"}, 1.3469),
        (2 / 7, {}, 0.1924),
        (2 / 6, {"target": "offset/(k-1)"}, 0.2245),
        (0.0, {"target": "offset", "grid": 14}, 4.6429),
        (4.0, {"target": "offset", "grid": 14}, 2.7245),
        (0.0, {"target": "offset", "variant": "signed"}, 2.2857),
        (0.0, {"variant": "ce"}, 2 * math.log(15)),
        (0.0, {"variant": "ce", "grid": 14}, 2 * math.log(29)),
    ],
    ids=str,
)
def test_the_cost_of_constant_predictions(value, settings, expected):
    side = settings.get("grid", 7)
    drloc = constant(make(**{"pairs": 256, **settings}), value)
    assert drloc(torch.zeros(256, 6, side, side)).item() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("side", [2, 7, 14])
@pytest.mark.parametrize("variant", ["l1", "signed", "exhaustive", "ce"])
def test_no_constant_prediction_is_better_than_the_best(variant, side):
    """Every offset of two places, literally; for classes the frequencies are the best prediction."""
    offsets = torch.tensor([(i - p, j - h) for i in range(side) for j in range(side) for p, h in _places(side)])
    if variant == "ce":
        logits = [torch.bincount(axis + side, minlength=2 * side + 1).float().log() for axis in offsets.T]
        expected = sum(F.cross_entropy(row.expand(len(offsets), -1), a + side) for row, a in zip(logits, offsets.T))
        assert constant_loss(DRLocConfig(variant="ce"), side) == pytest.approx(expected.item(), rel=1e-5)
        return
    targets = offsets if variant == "signed" else offsets.abs()
    best = min((targets - c / 2).abs().float().mean().item() for c in range(-2 * side, 2 * side + 1))
    for target, unit in (("offset", 1), ("offset/k", side), ("offset/(k-1)", side - 1)):
        assert constant_loss(DRLocConfig(variant=variant, target=target), side) == pytest.approx(best / unit)


def _places(side: int) -> list[tuple[int, int]]:
    return [divmod(place, side) for place in range(side * side)]


def test_the_best_constant_loss_in_figures():
    losses = [constant_loss(DRLocConfig(target=target), side) for target, side in (("offset/k", 7), ("offset", 7))]
    assert losses == pytest.approx([0.1924, 1.3469], abs=5e-5)
    assert constant_loss(DRLocConfig(target="offset"), 14) == pytest.approx(2.7245, abs=5e-5)
    assert constant_loss(DRLocConfig(variant="reg"), 7) is None


@pytest.mark.parametrize(("dim", "count"), [(768, 1_050_626), (384, 657_410)])
def test_parameters_of_the_mlp(dim, count):
    assert sum(p.numel() for p in DRLoc(dim).parameters()) == count
    assert list(DRLoc(dim).mlps[0].first.weight.shape) == [512, 2 * dim]


def test_the_mlp_starts_as_torch_or_as_the_release_does():
    """Swin and T2T-ViT initialise all linear layers again after DRLoc's MLP was made; the other networks do not."""
    small, usual = (
        make_drloc_term(tiny_backbone(), DRLocConfig(hidden=256, init=init)).drloc for init in ("trunc_normal", "torch")
    )
    for layer in (module for module in small.modules() if isinstance(module, torch.nn.Linear)):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not layer.bias.any()
    bound = usual.mlps[0].first.in_features ** -0.5
    assert usual.mlps[0].first.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert usual.mlps[0].first.bias.all()


def test_outputs_are_two_distances_or_two_rows_of_classes():
    assert make("l1").mlps[0].rest[-1].out_features == 2
    assert make("ce").mlps[0].rest[-1].out_features == make("reg").mlps[0].rest[-1].out_features == 30


# --- pieces ---------------------------------------------------------------------------------------------------------


def test_pooling_from_14_to_7_is_a_mean_of_2_by_2():
    grid = random_grid((14, 14))
    torch.testing.assert_close(pool_grid(grid, 7, "adaptive"), F.avg_pool2d(grid, 2))


@pytest.mark.parametrize("size", [(8, 8), (14, 5), (3, 10), (28, 9)], ids=str)
def test_adaptive_pooling_leaves_short_sides_alone(size):
    grid = random_grid(size)
    expected = F.adaptive_avg_pool2d(grid, [min(side, 7) for side in size])
    torch.testing.assert_close(pool_grid(grid, 7, "adaptive"), expected)


def test_released_pooling():
    grid = random_grid((14, 14))
    layer = torch.nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)
    torch.testing.assert_close(pool_grid(grid, 7, "released"), layer(grid))
    torch.testing.assert_close(pool_grid(random_grid((28, 28)), 7, "released"), layer(layer(random_grid((28, 28)))))
    assert pool_grid(random_grid((14, 5)), 7, "released").shape[-2:] == (7, 5)
    assert torch.equal(pool_grid(random_grid((7, 7)), 7, "released"), random_grid((7, 7)))


def test_places_count_along_rows():
    pairs = Pairs(torch.tensor([[0, 4, 9]]), torch.tensor([[4, 0, 5]]), (2, 5))
    assert pairs.offsets.tolist() == [[[0, -4], [0, 4], [0, 4]]]
    assert Pairs(torch.tensor([[6]]), torch.tensor([[3]]), (2, 5)).offsets.tolist() == [[[1, -2]]]


def test_pairs_are_uniform_and_independent():
    pairs = draw_random_pairs(torch.arange(400), "x", (3, 5), 100)
    joint = torch.bincount((pairs.first * 15 + pairs.second).flatten(), minlength=225)
    assert joint.sum() == 40_000
    chi2 = ((joint - 40_000 / 225) ** 2 / (40_000 / 225)).sum()
    assert chi2 < 300  # 224 degrees of freedom; the 99.95 % point is 300


def test_both_ways_through_the_first_layer_agree():
    mlp, tokens = PairMLP(6, 16, 2), random_grid((3, 5)).flatten(2).transpose(1, 2)
    pairs = draw_random_pairs(NAMES, "x", (3, 5), 20)
    one, other = (way(mlp.first, tokens, pairs) for way in (_project_then_choose, _choose_then_project))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("pairs", "way"), [(64, "_project_then_choose"), (40, "_choose_then_project")])
def test_the_cheaper_way_is_taken(monkeypatch, pairs, way):
    def taken(*arguments):
        raise StopIteration(way)

    monkeypatch.setattr(f"vitling.methods.drloc.pairs.{way}", taken)
    with pytest.raises(StopIteration):
        make(dim=384, pairs=pairs)(torch.zeros(1, 384, 7, 7))


# --- draws ----------------------------------------------------------------------------------------------------------


def test_draws_depend_on_the_name_alone():
    drloc = make()
    whole, part = drloc.draw(NAMES, (7, 7)), drloc.draw(NAMES[[2, 0]], (7, 7))
    assert torch.equal(whole.first[[2, 0]], part.first)
    assert not torch.equal(whole.first[0], whole.first[1])


def test_without_names_every_call_draws_anew_and_leaves_the_generator_alone():
    drloc, grid = make(), random_grid((7, 7))
    before = torch.get_rng_state()
    one, two = drloc(grid).item(), drloc(grid).item()
    assert one != two
    assert torch.equal(before, torch.get_rng_state())
    assert make()(grid).item() == one


def test_without_names_two_processes_draw_apart(monkeypatch):
    import torch.distributed as dist

    grid, values = random_grid((7, 7)), []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        values.append(make()(grid).item())
    assert values[0] != values[1]


class NameRecorder(DRLocTerm):
    """Term that returns the names of its draws."""

    def forward(self, features, batch, progress):
        self.drloc.forward = lambda grids, names: names
        return super().forward(features, batch, progress)


def names_of(ids, step=5, seed=0, views=1):
    images = views * len(ids)
    features = Features(torch.zeros(images, 6), torch.zeros(images, 6, 4, 4))
    key = torch.tensor(make_key("step", step))
    return NameRecorder(make(), seed)(features, Batch(torch.tensor(ids), None, key=key), Progress(step, 10, 1)).tolist()


def test_in_a_run_names_are_of_seed_step_instance_and_view():
    whole = names_of([7, 8, 9, 10])
    assert whole == names_of([7, 8]) + names_of([9, 10])  # two processes, or two passes
    apart = [whole, names_of([7, 8, 9, 10], step=6), names_of([7, 8, 9, 10], seed=1)]
    assert len({name for names in apart for name in names}) == 12
    two = names_of([7, 8], views=2)
    assert two[:2] == whole[:2]
    assert len(set(two)) == 4


# --- as a term ------------------------------------------------------------------------------------------------------


def supervised(drop: float = 0.0, variant: str | None = None, weight: float = 1.0) -> Supervised:
    torch.manual_seed(0)
    backbone = tiny_backbone(drop_path=drop)
    if variant:
        term = make_drloc_term(backbone, DRLocConfig(variant, hidden=32))
    objective = Supervised(backbone, PLAN, classes=3)
    if variant:
        objective.attach("drloc", term, weight)
    return objective


def step_of(objective: Supervised, step: int = 0) -> dict[str, torch.Tensor]:
    """Run a pass forwards and backwards, with dropout seeded as in the loop."""
    pixels = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    progress = Progress(step, 10, 1)
    terms = objective([Views(pixels, 1)], Batch(torch.arange(4), torch.tensor([0, 1, 2, 0])), progress)
    objective.total(terms, progress).backward()
    return terms


def gradients(objective: Supervised) -> list[torch.Tensor]:
    return [p.grad for p in (*objective.backbone.parameters(), *objective.head.parameters())]


VARIANTS = ["l1", "signed", "ce", "reg", "all", "exhaustive"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_zero_leaves_weights_masks_and_gradients_bit_identical(variant):
    plain, zero = supervised(drop=0.5), supervised(0.5, variant, weight=0.0)
    terms = [step_of(objective) for objective in (plain, zero)]
    assert torch.equal(terms[0]["classification"], terms[1]["classification"])
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(zero), strict=True))


def test_drloc_leaves_dropped_paths_alone():
    """With a weight, too, the classification term of the step is the one without DRLoc."""
    assert torch.equal(step_of(supervised(0.5))["classification"], step_of(supervised(0.5, "l1"))["classification"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_reach_the_backbone_and_both_halves_of_the_mlp(variant):
    objective = supervised(variant=variant)
    terms = step_of(objective)
    assert list(terms) == ["classification", "drloc"]
    assert terms["drloc"].dtype == torch.float32
    for mlp in objective.auxiliaries["drloc"].drloc.mlps:
        assert all(half.abs().sum() > 0 for half in mlp.first.weight.grad.chunk(2, dim=1))
    bare = supervised()
    step_of(bare)
    assert not all(torch.equal(a, b) for a, b in zip(gradients(bare), gradients(objective)))


class Agreement(Objective):
    """Self-supervised, with two views: they should look alike."""

    def forward(self, views, batch, progress):
        features = self.features(views[0].pixels)
        one, two = features.pooled.chunk(2)
        return {"agreement": F.mse_loss(one, two), **self.auxiliary_terms(features, batch, progress)}


@pytest.mark.parametrize("variant", ["l1", "all"])
def test_it_joins_objectives_without_labels(variant):
    torch.manual_seed(0)
    backbone = tiny_backbone()
    objective = Agreement(backbone, Plan((Group(16, 2),)))
    objective.attach("drloc", make_drloc_term(backbone, DRLocConfig(variant)), lambda progress: 0.5)
    terms = objective([Views(torch.randn(6, 3, 16, 16), 2)], Batch(torch.arange(3), None), Progress(0, 1, 1))
    assert list(terms) == ["agreement", "drloc"]
    torch.testing.assert_close(objective.total(terms, None), terms["agreement"] + 0.5 * terms["drloc"])


def test_there_is_no_term_in_evaluation():
    objective = supervised(variant="all").eval()
    objective.auxiliaries["drloc"].drloc.forward = None  # a call would fail
    pixels = torch.zeros(2, 3, 16, 16)
    terms = objective([Views(pixels, 1)], Batch(torch.arange(2), torch.tensor([0, 1])), Progress(0, 1, 1))
    assert list(terms) == ["classification"]
    assert objective.logits(pixels).shape == (2, 3)


def test_the_mlp_runs_in_half_precision_and_the_loss_does_not():
    drloc, grid = make(), random_grid((7, 7))
    seen = []
    drloc.mlps[0].register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        low = drloc(grid, NAMES)
    assert seen == [torch.bfloat16]
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, drloc(grid, NAMES), rtol=0.02, atol=0)


def test_the_loss_falls_in_training():
    """Below 0.1875, the cost of the best constant answer on a grid of 4 x 4."""
    objective = supervised(variant="l1")
    optimiser = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    values = []
    for step in range(150):
        optimiser.zero_grad()
        values.append(step_of(objective, step)["drloc"].item())
        optimiser.step()
    assert values[0] > 0.2
    assert sum(values[-5:]) / 5 < 0.13


def test_the_same_seed_gives_the_same_mlp_and_leaves_the_generator_alone():
    backbone = tiny_backbone()
    before = torch.get_rng_state()
    one, again, other = (make_drloc_term(backbone, DRLocConfig(), seed).drloc for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    weights = [m.mlps[0].first.weight for m in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "pvt_v2_b0", "resnet18"])
def test_every_block_has_its_own_mlp(name):
    backbone = create(name, 64).train()
    term = make_drloc_term(backbone, DRLocConfig("all", hidden=8))
    widths = [mlp.first.in_features // 2 for mlp in term.drloc.mlps]
    expected = {
        "swin_tiny_patch4_window7_224": [96] * 2 + [192] * 2 + [384] * 6 + [768] * 2,
        "pvt_v2_b0": [32] * 2 + [64] * 2 + [160] * 2 + [256] * 2,
        "resnet18": [64] * 2 + [128] * 2 + [256] * 2 + [512] * 2,
    }
    assert widths == expected[name]
    assert backbone.training


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # it looks through, rightly
@pytest.mark.parametrize("variant", ["l1", "reg"])
@pytest.mark.parametrize("side", [7, 14])
def test_one_graph_for_the_compiler(variant, side):
    drloc, grid = make(variant), random_grid((side, side))
    compiled = torch.compile(drloc, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(grid, NAMES), drloc(grid, NAMES))


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "l2"}, "l1, signed, ce, reg, all, exhaustive"),
        ({"target": "offset/2"}, "offset/k"),
        ({"pooling": "max"}, "adaptive, released"),
        ({"pairs": 0}, "--pairs 0: must be at least 1"),
        ({"grid": 1}, "at least 2"),
        ({"dim": (6, 6)}, "one grid"),
    ],
    ids=str,
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(UserError, match=message):
        make(**settings)


@pytest.mark.parametrize("size", [(1, 1), ()], ids=str)
def test_a_grid_must_have_two_tokens(size):
    with pytest.raises(UserError, match="at least two tokens"):
        make()(torch.zeros(2, 6, *size))


def test_backbones_without_a_grid_are_named():
    with pytest.raises(UserError, match="resnet18 at 32 px has one"):
        make_drloc_term(create("resnet18", 32), DRLocConfig())
    for variant in ("l1", "all"):
        features = Features(torch.zeros(2, 6), None)
        with pytest.raises(UserError, match="has no grid"):
            DRLocTerm(make(variant))(features, Batch(torch.arange(2), None), Progress(0, 1, 1))


def test_weights_of_the_paper():
    published = {
        "swin_tiny_patch4_window7_224": 0.5,
        "t2t_vit_14": 0.1,
        "cvt_13": 0.1,
        "vit_base_patch16_224": 0.01,
        "deit_base_patch16_224": 0.01,
        "deit_small_patch16_224": 0.1,
        "resnet50": 0.1,
        "pvt_v2_b0": 0.1,
    }
    assert {name: drloc_weight(name) for name in published} == published


@pytest.mark.parametrize(("norm", "expected"), [("before", 2.0), ("after", 1.0), ("published", 2.0)])
def test_the_grid_before_or_after_the_norm(norm, expected):
    """The published one of these features is the one before."""
    after, before = torch.ones(2, 4, 3, 3), torch.full((2, 4, 3, 3), 2.0)
    term = DRLocTerm(DRLoc(4), norm=norm)
    seen = []
    term.drloc.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    features = Features(torch.zeros(2, 4), after, raw_grid=before, published="before")
    term(features, Batch(torch.arange(2), None), Progress(0, 10, 1))
    assert (seen[0] == expected).all()
