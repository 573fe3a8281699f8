"""MoCo v2 and v3 against slow, literal versions, and the queue."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import START, batch_of, make, noise, step
from tests.tiny import tiny_backbone
from vitling.backbones import create
from vitling.methods.moco_v2 import loss as moco_v2
from vitling.methods.moco_v2.loss import MoCoV2
from vitling.methods.moco_v3 import loss as moco_v3
from vitling.methods.moco_v3.loss import MoCoV3
from vitling.methods.moco_v3.settings import MoCoV3Config
from vitling.objectives.gather import GatheredRows
from vitling.objectives.heads import make_normed_mlp
from vitling.objectives.queue import KeyQueue
from vitling.views.policies import make_plan


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


# --- MoCo v2 --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def literal_v2(objective: MoCoV2, views, ids, temperature: float, masks: bool) -> float:
    """Compute MoCo's Eq. 1, image by image and key by key."""
    n, total = len(ids), 0.0
    pixels = views[0].pixels
    for i in range(n):
        q = objective.head(objective.backbone(pixels[i : i + 1]).pooled)[0]
        k = objective.copy.head(objective.copy.backbone(pixels[n + i : n + i + 1]).pooled)[0]
        q, k = q / q.norm(), k / k.norm()
        right = math.exp(float(q @ k) / temperature)
        wrong = 0.0
        for key, image in zip(objective.queue.keys, objective.queue.ids):
            if not (masks and image == ids[i]):
                wrong += math.exp(float(q @ key) / temperature)
        total -= math.log(right / (right + wrong))
    return total / n


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_v2_matches_a_literal_version(masks, temperature):
    objective = make("moco-v2", mask_own=masks, temperature=temperature)
    objective.queue.ids[:6] = torch.tensor([5, 5, 0, 3, 1, 5])
    batch = batch_of(4, first=2)  # 2, 3, 4, 5: some have keys in the queue
    torch.nn.init.normal_(objective.copy.head[2].weight)
    views = noise(objective, 4)
    loss = objective(views, batch, START)["contrast"]
    assert loss.item() == pytest.approx(literal_v2(objective, views, batch.ids, temperature, masks), rel=1e-5)


def test_v2_costs_ln_k_plus_1_if_all_keys_are_equal():
    same = units(1, 8)
    loss = moco_v2.contrast(same.repeat(3, 1), same.repeat(3, 1), same.repeat(2047, 1), 0.2)
    assert loss.item() == pytest.approx(math.log(2048), rel=1e-6)
    assert make("moco-v2", queue=2047).uniform_loss() == {"contrast": pytest.approx(math.log(2048))}


def test_an_image_alone_in_the_queue_has_no_negatives():
    objective = make("moco-v2", mask_own=True)
    objective.queue.ids.fill_(7)
    terms = objective(noise(objective, 1), batch_of(1, first=7), START)
    terms["contrast"].backward()
    assert terms["contrast"].item() == pytest.approx(0, abs=1e-6)
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.requires_grad)


def test_v2_takes_queries_from_first_views_and_keys_from_second_ones():
    objective, calls = make("moco-v2"), []
    for network in objective.networks():
        network.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0])))
    views = noise(objective, 3)
    objective(views, batch_of(3), START)
    (query_network, queries), (key_network, keys) = calls
    assert (query_network, key_network) == (objective.backbone, objective.copy.backbone)
    assert torch.equal(queries, views[0].pixels[:3])
    assert torch.equal(keys, views[0].pixels[3:])


# --- the queue ------------------------------------------------------------------------------------------------------


def fill(queue: KeyQueue, *batches: range) -> None:
    """Add each batch in a step of its own; all numbers of the key of image i are i."""
    for ids in batches:
        queue.begin()
        queue.add(torch.tensor(ids).float()[:, None].expand(-1, 2), torch.tensor(ids))
        queue.end()


def test_the_oldest_keys_are_replaced():
    queue = KeyQueue(5, 2)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    assert queue.ids.tolist() == [-1] * 5
    fill(queue, range(2))
    assert queue.ids.tolist() == [0, 1, -1, -1, -1]
    fill(queue, range(2, 4), range(4, 7))
    assert queue.ids.tolist() == [5, 6, 2, 3, 4]
    assert torch.equal(queue.keys, queue.ids[:, None].float().expand(-1, 2))
    assert queue.at == 2


def test_the_last_of_too_many_keys_stay():
    queue = KeyQueue(5, 2)
    fill(queue, range(3), range(10, 27))
    assert sorted(queue.ids.tolist()) == [22, 23, 24, 25, 26]
    fill(queue, range(1))
    assert 22 not in queue.ids.tolist()


def test_passes_of_a_step_see_the_same_queue_and_a_step_can_begin_again():
    queue, whole = KeyQueue(5, 2), KeyQueue(5, 2)
    fill(queue, range(3))
    fill(whole, range(3), range(3, 7))
    before = queue.keys.clone()
    queue.begin()
    queue.add(torch.full((9, 2), 99.0), torch.full((9,), 99))  # ran out of memory
    queue.begin()
    for ids in (range(3, 5), range(5, 7)):
        queue.add(torch.tensor(ids).float()[:, None].expand(-1, 2), torch.tensor(ids))
        assert torch.equal(queue.keys, before)
    queue.end()
    assert queue.ids.tolist() == whole.ids.tolist()
    assert torch.equal(queue.keys, whole.keys)


def test_health_reveals_a_dead_queue():
    queue = KeyQueue(200, 16)
    assert queue.health() > 0.95
    queue.keys.copy_(units(1, 16).expand(200, -1))
    assert queue.health() == pytest.approx(0, abs=1e-3)
    assert make("moco-v2").health().keys() == {"queue"}


def test_steps_fill_the_queue_with_the_keys_of_their_images():
    objective = make("moco-v2", queue=10)
    optimiser = torch.optim.SGD(objective.param_groups(0.0), lr=0.1)
    for s in range(3):
        views = noise(objective, 4, s)
        with torch.no_grad():
            keys = F.normalize(objective.copy.head(objective.copy.features(views[0].pixels[4:]).pooled), dim=1)
        step(objective, optimiser, s)
    assert objective.queue.ids.tolist() == [10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    torch.testing.assert_close(objective.queue.keys[[8, 9, 0, 1]], keys)


# --- MoCo v3 --------------------------------------------------------------------------------------------------------


def literal_ctr(q, k, temperature: float) -> float:
    """Compute the loss of MoCo v3's Algorithm 1."""
    total = 0.0
    for i in range(len(q)):
        logits = [float(F.cosine_similarity(q[i], k[j], dim=0)) / temperature for j in range(len(k))]
        total -= logits[i] - math.log(sum(math.exp(value) for value in logits))
    return 2 * temperature * total / len(q)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_v3_matches_a_literal_version(temperature):
    objective = make("moco-v3", temperature=temperature)
    views = noise(objective, 5)
    loss = objective(views, batch_of(5), START)["contrast"]
    fresh = make("moco-v3", temperature=temperature)  # batch norm has not seen these images
    with torch.no_grad():
        q1, q2 = (fresh.predictor(fresh.projector(fresh.backbone(v.pixels).pooled)) for v in views)
        k1, k2 = (fresh.copy.head(fresh.copy.backbone(v.pixels).pooled) for v in views)
    expected = literal_ctr(q1, k2, temperature) + literal_ctr(q2, k1, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    for name, value in fresh.state_dict().items():  # one view at a time went through the heads
        torch.testing.assert_close(objective.state_dict()[name], value)


def test_v3_costs_4_tau_ln_n_if_all_vectors_are_equal():
    same = units(1, 8).repeat(6, 1)
    loss = moco_v3.symmetric_loss((same, same), (GatheredRows(same, 0),) * 2, 0.2)
    assert loss.item() == pytest.approx(4 * 0.2 * math.log(6), rel=1e-6)
    objective = MoCoV3(tiny_backbone(), make_plan("moco-v3", 16), MoCoV3Config(dim=8, hidden=24), [6, 6, 3])
    assert objective.uniform_loss() == {"contrast": pytest.approx(0.8 * math.log(6 * 6 * 3) / 3)}
    assert make("moco-v3").uniform_loss() == {}


def test_the_right_key_is_found_among_those_of_other_processes():
    q, k = units(4, 8), units(9, 8, seed=1)
    whole = torch.cat([units(3, 8, seed=2), q, units(2, 8, seed=3)])
    each = torch.stack([moco_v3.contrast(whole[i : i + 1], GatheredRows(k, i), 0.2) for i in range(3, 7)])
    torch.testing.assert_close(moco_v3.contrast(q, GatheredRows(k, 3), 0.2), each.mean())


@pytest.mark.parametrize("frozen", [True, False])
def test_the_patch_projection_of_a_vit_may_stay_random(frozen):
    objective = make("moco-v3", frozen_patches=frozen)
    projection = objective.backbone.timm_model.patch_embed.proj
    before = projection.weight.clone()
    step(objective, torch.optim.AdamW(objective.param_groups(0.1), lr=1e-2), 0)
    assert torch.equal(projection.weight, before) == frozen


def test_networks_without_a_patch_projection_are_trained_whole():
    moco_v3.freeze_patches(backbone := create("pvt_v2_b0", 64))
    assert all(p.requires_grad for p in backbone.parameters())


def test_heads_are_as_published():
    """MoCo v3's for ViT-B: 3 layers 768-4096-4096-256 and 2 layers 256-4096-256; BYOL's have biases in between."""

    def shapes(head):
        return [
            (type(m).__name__, *(tuple(p.shape) for p in m.parameters())) for m in head if type(m).__name__ != "ReLU"
        ]

    assert shapes(make_normed_mlp(768, 4096, 4096, 256, last_norm=True, biases=False)) == [
        ("Linear", (4096, 768)),
        ("BatchNorm", (4096,), (4096,)),
        ("Linear", (4096, 4096)),
        ("BatchNorm", (4096,), (4096,)),
        ("Linear", (256, 4096)),
        ("BatchNorm",),
    ]
    assert shapes(make_normed_mlp(256, 4096, 256, last_norm=False, biases=True)) == [
        ("Linear", (4096, 256), (4096,)),
        ("BatchNorm", (4096,), (4096,)),
        ("Linear", (256, 4096)),
    ]
