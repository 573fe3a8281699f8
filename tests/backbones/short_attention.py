"""Literal attention, and the differences of ours from it."""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.backbones.short_attention import attend


def literal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend for each head of each image with tensors [B, tokens, heads, width]."""
    out = torch.empty_like(q)
    for image in range(q.shape[0]):
        for head in range(q.shape[2]):
            scores = scale * q[image, :, head] @ k[image, :, head].T
            weights = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
            out[image, :, head] = weights @ v[image, :, head]
    return out


def compare(shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> list[float]:
    """Compute relative errors of the output and of the gradients of q, k and v. `shape`: images, queries, keys, heads,
    width. As in a network, k and v are parts of one tensor."""
    images, queries, keys, heads, width = shape
    generator, scale = torch.Generator().manual_seed(0), 1.5 * width**-0.5

    def draw(*sides: int) -> Tensor:
        return torch.randn(*sides, generator=generator).to(device, dtype)

    q, both, slope = (
        draw(images, queries, heads, width),
        draw(images, keys, 2, heads, width),
        draw(images, queries, heads, width),
    )
    exact = [tensor.double().requires_grad_() for tensor in (q, *both.unbind(2))]
    expected = literal(*exact, scale)
    slopes = torch.autograd.grad(expected, exact, slope.double())

    q, both = q.requires_grad_(), both.requires_grad_()
    found = attend(q, *both.unbind(2), scale)
    q_gradient, both_gradient = torch.autograd.grad(found, [q, both], slope)
    pairs = zip([found.detach(), q_gradient, *both_gradient.unbind(2)], [expected.detach(), *slopes])
    return [float((one.double() - other).norm() / other.norm()) for one, other in pairs]
