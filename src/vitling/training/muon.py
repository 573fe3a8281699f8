"""Muon (Jordan et al. 2024): momentum whose direction is made orthogonal, for the matrices inside a backbone.

Everything else (biases, norms, embeddings, depthwise convolutions, heads) is trained with AdamW. Muon's steps are
scaled to the root mean square of AdamW's (Liu et al. 2025, Eq. 4), so both take the same learning rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from vitling.objectives.objective import Objective

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz iteration; brings singular values to about 0.7 to 1.2
ITERATIONS = 5
ADAMW_RMS = 0.2  # typical root mean square of an AdamW step at learning rate 1
MOST_PADDED_ROWS = 256  # above, the products take longer than starting their kernels; an estimate
SMALLEST = 16  # rows or columns; a depthwise convolution has 9 columns


class Muon(torch.optim.AdamW):
    """Muon for groups with `matrices`, AdamW for the others."""

    def __init__(self, groups: list[dict[str, Any]], lr: float | Tensor, betas: tuple[float, float], **options: Any):
        super().__init__(groups, lr, betas, **options)
        self._step_supports_amp_scaling = False  # in fp16 the scaler skips steps that overflow

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's expects its own moments for every parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["matrices"]:
                self._step_matrices(group)
            else:
                self._step_others(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return
        gradients = [p.grad for p in moved]
        for p in moved:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in moved]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
        directions = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)  # Nesterov's
        torch._foreach_mul_(moved, 1 - group["lr"] * group["weight_decay"])
        wide = [d.mT if d.shape[0] > d.shape[1] else d for d in (d.flatten(1) for d in directions)]
        for chosen in group_alike(wide, pads=wide[0].is_cuda):
            steps = orthogonalise(stack([wide[i] for i in chosen])) * (group["lr"] * ADAMW_RMS)
            alike: dict[tuple[int, bool], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
            for i, step in zip(chosen, steps.unbind()):
                columns, tall = wide[i].shape[1], len(moved[i]) != len(step)
                alike[columns, tall][0].append(moved[i])
                alike[columns, tall][1].append(step[:, :columns].mT if tall else step[:, :columns])
            for (columns, tall), (weights, own) in alike.items():
                if tall or columns < steps.shape[2]:  # one copy to the weights' strides, for one kernel below
                    own = list(torch.stack(own).unbind())
                shaped = [step.view_as(weight) for step, weight in zip(own, weights)]
                torch._foreach_sub_(weights, shaped, alpha=math.sqrt(columns))

    def _step_others(self, group: dict[str, Any]) -> None:
        moved, gradients, means, squares, largest, steps = ([] for _ in range(6))  # type: ignore[var-annotated]
        self._init_group(group, moved, gradients, means, squares, largest, steps)
        if moved:
            beta1, beta2 = group["betas"]
            shared = {name: group[name] for name in ("fused", "capturable", "lr", "weight_decay", "eps")}
            options = {"decoupled_weight_decay": True, "amsgrad": False, "maximize": False, **shared}
            adam(moved, gradients, means, squares, largest, steps, beta1=beta1, beta2=beta2, **options)


def group_alike(matrices: list[Tensor], pads: bool) -> list[list[int]]:
    """Group the indices of wide matrices by their shape. If `pads`, group small ones by their rows only where that
    starts fewer kernels: padding takes two per matrix and saves three per iteration and shape."""
    heights: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, (rows, columns) in enumerate(matrix.shape for matrix in matrices):
        heights[rows][columns].append(i)
    groups: list[list[int]] = []
    for rows, shapes in heights.items():
        together = sorted(chain.from_iterable(shapes.values()))
        fewer = 3 * ITERATIONS * (len(shapes) - 1) > 2 * len(together)
        groups += [together] if pads and fewer and rows <= MOST_PADDED_ROWS else shapes.values()
    return groups


def stack(matrices: list[Tensor]) -> Tensor:
    """Stack matrices of equal height, padded with columns of zeros, which `orthogonalise` keeps."""
    columns = max(matrix.shape[1] for matrix in matrices)
    if all(matrix.shape[1] == columns for matrix in matrices):
        return torch.stack(matrices)
    stacked = matrices[0].new_zeros(len(matrices), len(matrices[0]), columns)
    for place, matrix in zip(stacked, matrices):
        place[:, : matrix.shape[1]] = matrix
    return stacked


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices [N, rows, columns] close to 1; the singular vectors stay.

    On GPUs that have bfloat16 this is computed in it: small errors in the direction of a step do not matter.
    """
    a, b, c = COEFFICIENTS
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    x = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + 1e-7)
    x = x.bfloat16() if _has_bfloat16(x.device.type) else x
    for _ in range(ITERATIONS):  # X <- a X + (b X X^T + c (X X^T)^2) X
        squares = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squares, squares, squares, beta=b, alpha=c), x, beta=a)
    return (x if wide is matrices else x.mT).to(matrices.dtype)


@cache
def _has_bfloat16(device_type: str) -> bool:
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def split_groups(groups: list[dict[str, Any]], objective: Objective) -> list[dict[str, Any]]:
    """Split the groups of AdamW into matrices for Muon and other parameters."""
    backbone = objective.backbone
    exempt = backbone.no_decay()  # embeddings and tables
    named = backbone.named_parameters()
    chosen = {p for name, p in named if name not in exempt and _is_hidden_matrix(p, backbone.channels)}
    return [
        {**group, "params": params, "matrices": matrices}
        for group in groups
        for matrices in (True, False)
        if (params := [p for p in group["params"] if (p in chosen) == matrices])
    ]


def _is_hidden_matrix(p: nn.Parameter, channels: int) -> bool:
    """Return whether a parameter maps features to features; a convolution of the image does not."""
    of_image = p.ndim == 4 and p.shape[1] == channels
    return p.ndim in (2, 4) and not of_image and min(p.shape[0], p[0].numel()) >= SMALLEST
