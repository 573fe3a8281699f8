from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.views.batches import ASPECT, NORMALISE, PIXELS, N, batch_key, render
from vitling.errors import UserError
from vitling.ranges import check_ranges
from vitling.views import (
    Blur,
    Flip,
    Grey,
    Jitter,
    Mix,
    RandAugment,
    Rotate,
    Solarise,
    ViewBatch,
    ViewChanges,
    Views,
    ViewsConfig,
    eval_view,
)
from vitling.views.draws import tabulate
from vitling.views.policies import POLICIES, make_plan
from vitling.views.renderer import FunctionCache, Renderer


def render_policy(name: str, local=range(N), functions=None, **changes) -> list[Views]:
    return render(make_plan(name, 24), batch_key(**changes), local, functions)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_renders_finite_views_of_its_sizes(name):
    plan = make_plan(name, 24)
    for group, views in zip(plan.groups, render_policy(name)):
        assert views.pixels.shape == (group.count * N, 3, group.size, group.size)
        assert views.pixels.isfinite().all()


@pytest.mark.parametrize("name", POLICIES)
def test_a_slice_renders_the_same_views_as_the_whole_batch(name):
    """Every operation depends only on its own image."""
    whole, part = render_policy(name), render_policy(name, local=[2, 9])
    for ours, theirs in zip(part, whole):
        rows = torch.cat([torch.tensor([2, 9]) + N * view for view in range(theirs.count)])
        assert torch.allclose(ours.pixels, theirs.pixels[rows], atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("epoch", [0, 1])  # of which one has mixup and the other CutMix, where they take turns
def test_tabulated_numbers_give_the_same_views(name, epoch):
    """The path that compiled functions take."""
    made = []
    functions = FunctionCache(lambda function: made.append(function.func) or function)
    for ours, theirs in zip(render_policy(name, epoch=epoch, functions=functions), render_policy(name, epoch=epoch)):
        assert torch.equal(ours.pixels, theirs.pixels)
        assert (ours.lam is None) == (theirs.lam is None)
        assert ours.lam is None or torch.equal(ours.lam, theirs.lam)
    assert made.count(tabulate) == 1


def test_policies_have_the_papers_numbers():
    one, two, local = make_plan("dino").groups
    assert [g.size for g in (one, two, local)] == [224, 224, 96]
    assert local.count == 8
    assert one.policy.scale == two.policy.scale == (0.4, 1.0)
    assert local.policy.scale == (0.05, 0.4)
    shared = (Flip(0.5), Jitter(0.4, 0.4, 0.2, 0.1, 0.8), Grey(0.2))
    assert one.policy.steps == (*shared, Blur(1.0))
    assert two.policy.steps == (*shared, Blur(0.1), Solarise(0.2))
    assert local.policy.steps == (*shared, Blur(0.5))
    wide, narrow = make_plan("idmm-pretrain").groups
    assert (wide.size, wide.count, narrow.size, narrow.count) == (112, 2, 112, 4)
    assert (wide.policy.scale, narrow.policy.scale) == ((0.14, 1.0), (0.05, 0.4))
    assert wide.mix == narrow.mix == Mix(cutmix=0.5, per="batch", fold=True)
    (tuned,) = make_plan("idmm-finetune").groups
    assert tuned.policy.steps[-2:] == (RandAugment("uda"), Flip(0.5))
    assert tuned.policy.erase == 0
    (plain,) = make_plan("supervised").groups
    assert plain.policy.erase == 0.25
    assert plain.mix == Mix(mixup=0.8, cutmix=1.0, per="batch")


def test_idmm_finetuning_alternates_mixup_and_cutmix():
    even, odd = render_policy("idmm-finetune", epoch=4)[0], render_policy("idmm-finetune", epoch=5)[0]
    assert even.lam.min() >= 0.5
    (mix,) = (group.mix for group in make_plan("idmm-finetune").groups)
    assert (mix.at_epoch(4).cutmix, mix.at_epoch(5).mixup) == (0, 0)
    area = odd.lam[0] * 24 * 24
    assert torch.isclose(area, area.round(), atol=1e-3)  # CutMix keeps whole pixels


def test_groups_of_a_plan_draw_differently():
    first, second = render_policy("byol")
    assert not torch.allclose(first.pixels, second.pixels)


def test_eval_policy_matches_eval_view():
    ours = render_policy("eval")[0].pixels
    assert torch.allclose(ours, eval_view(PIXELS, ASPECT, 24, 0.875, NORMALISE.mean, NORMALISE.std), atol=1e-5)


def test_every_policy_takes_one_channel():
    for name in POLICIES:
        view_batch = ViewBatch(make_plan(name, 16), batch_key(), np.arange(N))
        views = view_batch.render(PIXELS[:, :1], ASPECT, Renderer(type(NORMALISE)((0.5,), (0.2,))))
        assert views[0].pixels.shape[1] == 1


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(UserError, match="idmm-pretrain"):
        make_plan("nothing")


def test_a_named_policy_replaces_the_settings():
    assert ViewsConfig(policy="idmm-finetune", crop_fraction=0.9).plan(32) == make_plan("idmm-finetune", 32)
    for wrong, message in (
        (ViewsConfig(policy="idmm-finetune", mixup=0.1), "leave out"),
        (ViewsConfig(policy="simclr"), "2 views"),
        (ViewsConfig(policy="no-such"), "no-such"),
    ):
        with pytest.raises(UserError, match=message):
            wrong.plan(32)


def test_colour_steps_need_1_or_3_channels():
    make_plan("simclr").check_channels(1)
    ViewsConfig(erase=0.5).plan(32).check_channels(4)
    for plan in (make_plan("simclr"), ViewsConfig(augment="uda").plan(32)):
        with pytest.raises(UserError, match="channels 4"):
            plan.check_channels(4)


@pytest.mark.parametrize("name", POLICIES)
def test_no_changes_keep_the_plan(name):
    assert ViewChanges().apply(make_plan(name)) == make_plan(name)


def test_changes_apply_to_a_plan():
    changes = ViewChanges(scale=(0.5, 1.0), local_scale=(0.3, 0.7), flip=0.0, rotate=10.0, colour=False, blur=0.1)
    wide, narrow = changes.apply(make_plan("idmm-pretrain")).groups
    assert (wide.policy.scale, narrow.policy.scale) == ((0.5, 1.0), (0.3, 0.7))
    assert wide.policy.steps == narrow.policy.steps == (Rotate(10.0), Blur(0.1))
    assert [(group.count, group.mix) for group in (wide, narrow)] == [
        (group.count, group.mix) for group in make_plan("idmm-pretrain").groups
    ]
    first, second, _ = ViewChanges(flip=1.0, blur=0.0).apply(make_plan("dino")).groups
    shared = (Flip(1.0), Jitter(0.4, 0.4, 0.2, 0.1, 0.8), Grey(0.2))
    assert (first.policy.steps, second.policy.steps) == (shared, (*shared, Solarise(0.2)))
    ViewChanges(colour=False).apply(make_plan("dino")).check_channels(4)


def test_unused_changes_are_listed():
    changes = ViewChanges(local_scale=(0.3, 0.7), flip=0.2, blur=0.1, mix_parts=4)
    assert changes.list_unused(make_plan("idmm-pretrain")) == []
    for policy, unused in (("simclr", ["local-scale", "mix-parts"]), ("idmm-finetune", ["local-scale", "blur"])):
        assert [reason.partition(":")[0] for reason in changes.list_unused(make_plan(policy))] == unused
    off = ViewChanges(flip=0.0, blur=0.0, rotate=10.0, colour=False)
    assert [off.list_unused(make_plan(name)) for name in POLICIES] == [[]] * len(POLICIES)


def test_wrong_scales_are_refused():
    for wrong in (ViewChanges(scale=(0.0, 1.0)), ViewChanges(local_scale=(0.4, 0.3)), ViewChanges(scale=(0.5, 1.5))):
        with pytest.raises(UserError, match="scale"):
            check_ranges(wrong)


def test_store_side_fits_the_crops():
    """12/7 of a view of the usual scale; with local crops the same fraction, 28 %, is enlarged."""
    assert ViewsConfig().plan(224).store_side(2_000) == make_plan("supervised", 224).store_side(2_000) == 384
    assert ViewsConfig().plan(112).store_side(2_000) == 192
    side = make_plan("idmm-pretrain", 112).store_side(2_000)
    scales = torch.empty(100_000).uniform_(0.05, 0.4, generator=torch.Generator().manual_seed(0))
    assert side == 320
    assert ((scales.sqrt() * (side - 32)) < 112).float().mean() > 0.28 > ((scales.sqrt() * side) < 112).float().mean()
    assert make_plan("idmm-pretrain", 112).store_side(20_000) == 320
    assert make_plan("idmm-pretrain", 112).store_side(100_000) == 192  # memory
    for less in (make_plan("eval", 224), make_plan("dino", 224), ViewsConfig(scale=(1.0, 1.0)).plan(224)):
        assert less.store_side(2_000) == less.store_side(100_000) == 384
