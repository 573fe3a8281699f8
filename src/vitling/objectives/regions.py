"""Regions of one view beside those of another: which belong together, and what it costs that answers differ.

Who is compared with whom is a plan [B, S, R] for each image: how much of the loss falls on the student's region s and
the teacher's region r. S are the regions of all views of the student, R those of all global views of the teacher. So
no loss has a loop over pairs of views, and a plan may be soft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitling.objectives.heads import normalise_rows

BLOCK = 2**28  # logits that are held at a time: 512 MB in bf16, and their softmax as much again
SHARPNESS, ROUNDS = 0.05, 10  # of optimal transport: the entropy's weight beside 1 - cosine, and rounds of scaling


def subsample(grid: Tensor, stride: int) -> Tensor:
    """Of maps [.., h, w] every `stride`-th place down and across, as near to the middle as they can lie.

    EsViT sampled DeiT's features "uniformly" (Sec. 4.3). A stride, and not a number of regions, keeps them as far apart
    in local views as in global ones: every second of DeiT's 14 x 14 and 6 x 6 are 7 x 7 and 3 x 3, Swin's own.
    """
    down, across = ((side - 1) % stride // 2 for side in grid.shape[-2:])
    return grid[..., down::stride, across::stride]


def split_regions(grid: Tensor, images: int) -> Tensor:
    """The maps [V B, D, h, w] of V views as regions [B, V, T, D]."""
    return grid.flatten(2).unflatten(0, (-1, images)).permute(1, 0, 3, 2)


def join_regions(regions: Sequence[Tensor]) -> Tensor:
    """Of views of several sizes, [B, V, T, D] each: [B, S, D]."""
    return torch.cat([some.flatten(1, 2) for some in regions], dim=1)


@torch.no_grad()
def match_by_features(
    seen: Sequence[Tensor], taught: Tensor, match: Literal["argmax", "sinkhorn"] = "argmax"
) -> Tensor:
    """Of regions [B, V, T, D] of the student, the global views first, and of the teacher's [B, G, T', D]. Each pair of
    different views has the same share, and in it each region of the student; the shares of an image add up to 1.

    The features are compared by their cosine (Eq. 2), each image's among themselves, one size of views at a time.
    """
    images, teachers, theirs, _ = taught.shape
    pairs = teachers * (sum(some.shape[1] for some in seen) - 1)
    with torch.autocast(taught.device.type, enabled=False):
        keys = normalise_rows(taught.flatten(1, 2)).transpose(1, 2)
        cosines = [(normalise_rows(some.flatten(1, 2)) @ keys).view(*some.shape[:3], teachers, theirs) for some in seen]
    plans = [_MATCHES[match](block) / (pairs * block.shape[2]) for block in cosines]
    itself = torch.eye(teachers, dtype=torch.bool, device=taught.device)[:, None, :, None]
    plans[0] = plans[0].masked_fill(itself, 0.0)
    return torch.cat([plan.reshape(images, -1, teachers * theirs) for plan in plans], dim=1)


def _nearest(cosines: Tensor) -> Tensor:
    """All of a region's share to the teacher's region that is most alike."""
    return torch.zeros_like(cosines).scatter_(-1, cosines.argmax(-1, keepdim=True), 1.0)


def _transport(cosines: Tensor) -> Tensor:
    """The plan [.., T, .., T'] of least cost between all regions of two views, each of the student's giving 1 and each
    of the teacher's taking T / T': Sinkhorn's scalings (Cuturi 2013), with exact sums over the teacher's regions."""
    logs = cosines / SHARPNESS
    for _ in range(ROUNDS):
        logs = logs - logs.logsumexp(2, keepdim=True)
        logs = logs - logs.logsumexp(4, keepdim=True)
    return logs.exp()


_MATCHES = {"argmax": _nearest, "sinkhorn": _transport}


@torch.no_grad()
def take_matches(mine: Tensor, theirs: Tensor, values: Tensor) -> Tensor:
    """For each region of a view [B, T, D] what `values` [B, T', P] have of the region of another view [B, T', D] whose
    features have the highest cosine with its own."""
    with torch.autocast(mine.device.type, enabled=False):
        best = (normalise_rows(mine) @ normalise_rows(theirs).transpose(1, 2)).argmax(2, keepdim=True)
    return values.gather(1, best.expand(-1, -1, values.shape[2]))


def squared_distance(student: Tensor, teacher: Tensor, plan: Tensor) -> Tensor:
    """|u - v|^2 of vectors of unit length [B, S, P] and [B, R, P] by the plan, mean over images (BYOL, Eq. 2)."""
    with torch.autocast(student.device.type, enabled=False):
        cosines = student.float() @ teacher.float().transpose(1, 2)
    return (plan * (2 - 2 * cosines)).sum() / len(plan)


def cross_entropy(
    student: Tensor,
    prototypes: Tensor,
    temperature: float,
    teacher: Tensor,
    teacher_prototypes: Tensor,
    centre: Tensor,
    teacher_temperature: Tensor,
    plan: Tensor,
) -> Tensor:
    """- sum_(s, r) plan(s, r) p_r log q_s, mean over images (Eq. 2), where q_s = softmax(W u_s / temperature) for the
    student's vectors u [B, S, P] and p_r = softmax((W' v_r - centre) / temperature') for the teacher's v [B, R, P].

    With L_s = log sum exp (W u_s / temperature), the p of a region adding up to 1, it is
    sum_s L_s sum_r plan(s, r) - sum_s u_s . sum_r plan(s, r) (p_r W) / temperature: the teacher's answers are needed as
    p_r W [P] alone. So a few images at a time, K-wide rows are made, used and forgotten, in the loss as in its
    gradient, which is taken in the same go; nothing of B T K numbers is ever held. The products are made in autocast's
    type, in which the view loss has them too, and summed in float32; without autocast all is float32.
    """
    kind = student.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    with torch.autocast(kind, enabled=False):
        targets = (teacher.float() / teacher_temperature).to(dtype), teacher_prototypes.to(dtype)
        offset = (-centre / teacher_temperature).to(dtype)
        return _CrossEntropy.apply(student, prototypes, temperature, *targets, offset, plan)


class _CrossEntropy(torch.autograd.Function):
    """The gradients are computed with the loss, for a loss of which the derivative is 1."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        prototypes: Tensor,
        temperature: float,
        teacher: Tensor,
        teacher_prototypes: Tensor,
        offset: Tensor,
        plan: Tensor,
    ) -> Tensor:
        images, regions, _ = student.shape
        weights = (prototypes / temperature).to(teacher.dtype)
        least = math.exp(-2 / temperature) / len(weights)  # share, of vectors of unit length
        loss = torch.zeros((), device=plan.device)
        d_student = student.new_empty(student.shape, dtype=torch.float32)
        d_weights = torch.zeros_like(weights, dtype=torch.float32)
        at_once = max(1, BLOCK // (sum(plan.shape[1:]) * len(weights)))
        for i in range(0, images, at_once):
            some = slice(i, i + at_once)
            share = plan[some] * regions  # about 1: fp16 has no room for less
            given = student[some].to(weights.dtype), weights, teacher[some], teacher_prototypes, offset, share, least
            of_some, d_student[some], slopes = _of_some_images(*given)
            loss += of_some
            d_weights += slopes
        count = images * regions
        ctx.scales = (1 / count, student.dtype), (1 / (count * temperature), prototypes.dtype)
        ctx.save_for_backward(d_student, d_weights)
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_student, of_prototypes = (
            (gradients[0] * scale * saved).to(dtype) for saved, (scale, dtype) in zip(ctx.saved_tensors, ctx.scales)
        )
        return of_student, of_prototypes, None, None, None, None, None


def _of_some_images(
    u: Tensor, weights: Tensor, v: Tensor, teacher_weights: Tensor, offset: Tensor, share: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and what it changes by with u and with the weights. The rows as wide as K are the student's and, below
    them, the teacher's: so they are read twice after their softmax, and the slopes of the weights are summed once."""
    own, mass = u.shape[:2].numel(), share.sum(2, keepdim=True)
    logits = weights.new_empty(own + v.shape[:2].numel(), len(weights))
    torch.mm(u.flatten(0, 1), weights.T, out=logits[:own])
    torch.addmm(offset, v.flatten(0, 1), teacher_weights.T, out=logits[own:])
    answers = logits.softmax(1)
    total = _log_sums(logits[:own], answers[:own], least)
    del logits
    met = (answers @ weights).float()  # q W, and p W
    due = share @ met[own:].view(v.shape)
    loss = (mass.flatten() * total).sum() - (u * due).sum()
    rows = torch.cat([(mass * u).flatten(0, 1), (share.transpose(1, 2) @ -u.float()).flatten(0, 1)])
    return loss, mass * met[:own].view(u.shape) - due, answers.T @ rows.to(u.dtype)


def _log_sums(logits: Tensor, shares: Tensor, least: float) -> Tensor:
    """The logarithm of what a softmax divides by: any logit less the log of its share. The first of each row, if even
    the `least` share is more than nothing in the shares' type; or else the largest, which takes a look at all."""
    if least > torch.finfo(shares.dtype).tiny:
        return logits[:, 0].float() - shares[:, 0].float().log()
    largest, at = logits.max(1, keepdim=True)
    return (largest.float() - shares.gather(1, at).float().log()).squeeze(1)
