"""Losses between regions of different views, and the matching of these regions.

A matching [B, S, R] is the share of an image's loss that falls on the student's region s and the teacher's region r. S
counts the regions of all the student's views, R those of the teacher's global views. So no loss loops over pairs of
views, and matchings may be soft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitling.objectives.heads import normalise_rows

BLOCK = 2**28  # logits held at a time: 512 MB in bf16, and as much for their softmax
SHARPNESS, ROUNDS = 0.05, 10  # of Sinkhorn's algorithm: weight of the entropy relative to 1 - cosine, iterations


def subsample(grid: Tensor, stride: int) -> Tensor:
    """Take every `stride`-th place of maps [.., h, w] down and across, centred as well as possible.

    EsViT samples DeiT's features "uniformly" (Sec. 4.3). A stride, unlike a number of regions, keeps them equally far
    apart in local and global views: every second place of DeiT's 14 x 14 and 6 x 6 gives 7 x 7 and 3 x 3, as in Swin.
    """
    down, across = ((side - 1) % stride // 2 for side in grid.shape[-2:])
    return grid[..., down::stride, across::stride]


def split_regions(grid: Tensor, images: int) -> Tensor:
    """Split the maps [V B, D, h, w] of V views into regions [B, V, T, D]."""
    return grid.flatten(2).unflatten(0, (-1, images)).permute(1, 0, 3, 2)


def join_regions(regions: Sequence[Tensor]) -> Tensor:
    """Join the regions of views of several sizes, [B, V, T, D] each, to [B, S, D]."""
    return torch.cat([group.flatten(1, 2) for group in regions], dim=1)


@torch.no_grad()
def match_by_features(
    student: Sequence[Tensor], teacher: Tensor, match: Literal["argmax", "sinkhorn"] = "argmax"
) -> Tensor:
    """Match the student's regions [B, V, T, D], global views first, with the teacher's [B, G, T', D] by cosine (Eq. 2).

    Regions are compared within an image, one size of views at a time. All pairs of different views have equal shares,
    and so have the student's regions within a pair; an image's shares sum to 1.
    """
    images, views, regions, _ = teacher.shape
    pairs = views * (sum(group.shape[1] for group in student) - 1)
    with torch.autocast(teacher.device.type, enabled=False):
        keys = normalise_rows(teacher.flatten(1, 2)).transpose(1, 2)
        cosines = [(normalise_rows(g.flatten(1, 2)) @ keys).view(*g.shape[:3], views, regions) for g in student]
    matchings = [_MATCHES[match](block) / (pairs * block.shape[2]) for block in cosines]
    same_view = torch.eye(views, dtype=torch.bool, device=teacher.device)[:, None, :, None]
    matchings[0] = matchings[0].masked_fill(same_view, 0.0)
    return torch.cat([matching.reshape(images, -1, views * regions) for matching in matchings], dim=1)


def _assign_nearest(cosines: Tensor) -> Tensor:
    """Give all of a region's share to the teacher's most similar region."""
    return torch.zeros_like(cosines).scatter_(-1, cosines.argmax(-1, keepdim=True), 1.0)


def _transport_mass(cosines: Tensor) -> Tensor:
    """Compute the optimal transport [.., T, .., T'] between the regions of two views, where each of the student's gives
    1 and each of the teacher's takes T / T'. Sinkhorn's algorithm (Cuturi 2013), with exact sums over the teacher's."""
    logs = cosines / SHARPNESS
    for _ in range(ROUNDS):
        logs = logs - logs.logsumexp(2, keepdim=True)
        logs = logs - logs.logsumexp(4, keepdim=True)
    return logs.exp()


_MATCHES = {"argmax": _assign_nearest, "sinkhorn": _transport_mass}


@torch.no_grad()
def take_matches(mine: Tensor, theirs: Tensor, values: Tensor) -> Tensor:
    """Take, for each region of a view [B, T, D], the row of `values` [B, T', P] that belongs to the most similar
    region, by cosine, of another view [B, T', D]."""
    with torch.autocast(mine.device.type, enabled=False):
        best = (normalise_rows(mine) @ normalise_rows(theirs).transpose(1, 2)).argmax(2, keepdim=True)
    return values.gather(1, best.expand(-1, -1, values.shape[2]))


def squared_distance(student: Tensor, teacher: Tensor, matching: Tensor) -> Tensor:
    """Return |u - v|^2 of matched unit vectors [B, S, P] and [B, R, P], averaged over images (BYOL, Eq. 2)."""
    with torch.autocast(student.device.type, enabled=False):
        cosines = student.float() @ teacher.float().transpose(1, 2)
    return (matching * (2 - 2 * cosines)).sum() / len(matching)


def cross_entropy(
    student: Tensor,
    prototypes: Tensor,
    temperature: float,
    teacher: Tensor,
    teacher_prototypes: Tensor,
    centre: Tensor,
    teacher_temperature: Tensor,
    matching: Tensor,
) -> Tensor:
    """Return - sum_(s, r) m(s, r) p_r log q_s for a matching m, averaged over images (Eq. 2).

    q_s = softmax(W u_s / temperature) for the student's vectors u [B, S, P], and
    p_r = softmax((W' v_r - centre) / temperature') for the teacher's v [B, R, P].

    With L_s = log sum exp (W u_s / temperature), and since p_r sums to 1, this is
    sum_s L_s sum_r m(s, r) - sum_s u_s . sum_r m(s, r) (p_r W) / temperature: the teacher's outputs are needed as
    p_r W [P] only. So rows of K logits are computed for a few images at a time, and the gradient along with the loss;
    B T K numbers are never held. Products are computed in autocast's type, as in the view loss, and summed in float32.
    """
    kind = student.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    with torch.autocast(kind, enabled=False):
        targets = (teacher.float() / teacher_temperature).to(dtype), teacher_prototypes.to(dtype)
        offset = (-centre / teacher_temperature).to(dtype)
        return _CrossEntropy.apply(student, prototypes, temperature, *targets, offset, matching)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy that computes its gradients along with the loss, and scales them in `backward`."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        prototypes: Tensor,
        temperature: float,
        teacher: Tensor,
        teacher_prototypes: Tensor,
        offset: Tensor,
        matching: Tensor,
    ) -> Tensor:
        images, regions, _ = student.shape
        weights = (prototypes / temperature).to(teacher.dtype)
        least = math.exp(-2 / temperature) / len(weights)  # smallest possible softmax of unit vectors
        loss = torch.zeros((), device=matching.device)
        d_student = student.new_empty(student.shape, dtype=torch.float32)
        d_weights = torch.zeros_like(weights, dtype=torch.float32)
        at_once = max(1, BLOCK // (sum(matching.shape[1:]) * len(weights)))
        for i in range(0, images, at_once):
            block = slice(i, i + at_once)
            share = matching[block] * regions  # about 1, because smaller numbers underflow in fp16
            u, v = student[block].to(weights.dtype), teacher[block]
            block_loss, d_student[block], d_block = _compute_block(
                u, weights, v, teacher_prototypes, offset, share, least
            )
            loss += block_loss
            d_weights += d_block
        count = images * regions
        ctx.scales = (1 / count, student.dtype), (1 / (count * temperature), prototypes.dtype)
        ctx.save_for_backward(d_student, d_weights)
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_student, d_prototypes = (
            (gradients[0] * scale * saved).to(dtype) for saved, (scale, dtype) in zip(ctx.saved_tensors, ctx.scales)
        )
        return d_student, d_prototypes, None, None, None, None, None


def _compute_block(
    u: Tensor, weights: Tensor, v: Tensor, teacher_weights: Tensor, offset: Tensor, share: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of a few images and its gradients for u and the weights. The student's and the teacher's K-wide
    rows are stacked, so that they are read only twice after their softmax, and the weights' gradient is summed once."""
    own, mass = u.shape[:2].numel(), share.sum(2, keepdim=True)
    logits = weights.new_empty(own + v.shape[:2].numel(), len(weights))
    torch.mm(u.flatten(0, 1), weights.T, out=logits[:own])
    torch.addmm(offset, v.flatten(0, 1), teacher_weights.T, out=logits[own:])
    answers = logits.softmax(1)
    total = _log_sums(logits[:own], answers[:own], least)
    del logits
    means = (answers @ weights).float()  # q W, and p W
    targets = share @ means[own:].view(v.shape)
    loss = (mass.flatten() * total).sum() - (u * targets).sum()
    rows = torch.cat([(mass * u).flatten(0, 1), (share.transpose(1, 2) @ -u.float()).flatten(0, 1)])
    return loss, mass * means[:own].view(u.shape) - targets, answers.T @ rows.to(u.dtype)


def _log_sums(logits: Tensor, shares: Tensor, least: float) -> Tensor:
    """Return the log of the softmax's denominator: any logit minus the log of its share. Use the first of each row if
    even the `least` share does not underflow, otherwise the largest, which means reading all."""
    if least > torch.finfo(shares.dtype).tiny:
        return logits[:, 0].float() - shares[:, 0].float().log()
    largest, at = logits.max(1, keepdim=True)
    return (largest.float() - shares.gather(1, at).float().log()).squeeze(1)
