"""Muon: equal to a literal version of its equations, and AdamW for everything that is no hidden matrix."""

from __future__ import annotations

import pytest
import torch

from tests.training.helpers import objective
from vitling.errors import UserError
from vitling.training import OptimConfig, muon
from vitling.training.config import FitConfig
from vitling.training.muon import MOMENTUM, group_alike, orthogonalise, split_groups, stack
from vitling.training.optim import make_optimiser, set_lr


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16), (1, 7)])
def test_singular_values_become_one_and_vectors_stay(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = u.mT @ orthogonalise(matrix[None])[0] @ v.mT  # diagonal: the new singular values
    values = found.diagonal()
    assert (values > 0.6).all()
    assert (values < 1.3).all()
    assert (found - values.diag()).abs().max() < 1e-9


@pytest.mark.parametrize("padded", [False, True])
def test_steps_equal_the_equations(padded, monkeypatch):
    """M <- mu M + G; O = orthogonal(G + mu M); W <- (1 - lr wd) W - lr 0.2 sqrt(max(n, m)) O. AdamW for the rest."""
    if padded:  # as on a GPU
        monkeypatch.setattr(muon, "group_alike", group_by_rows)
    torch.manual_seed(0)
    model, other = objective(), objective()
    other.load_state_dict(model.state_dict())
    optimiser = make_optimiser(model, OptimConfig(name="muon", weight_decay=0.1))
    adamw = make_optimiser(other, OptimConfig(name="adamw", weight_decay=0.1))
    matrices = {p for group in optimiser.param_groups if group["matrices"] for p in group["params"]}
    momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(3):
        expected = {}
        for (name, p), q in zip(model.named_parameters(), other.parameters()):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
            momentum[name] = MOMENTUM * momentum[name] + p.grad
            if p in matrices:
                step = orthogonalise((p.grad + MOMENTUM * momentum[name]).flatten(1)[None])[0].view_as(p)
                scale = 0.2 * max(p.shape[0], p[0].numel()) ** 0.5
                expected[name] = (1 - 0.01 * 0.1) * p.detach() - 0.01 * scale * step
        for one in (optimiser, adamw):
            set_lr(one, 0.01)
            one.step()
        expected |= {name: p.detach() for name, p in other.named_parameters() if name not in expected}
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], msg=name)


def group_by_rows(matrices: list[torch.Tensor], pads: bool) -> list[list[int]]:
    heights = [len(matrix) for matrix in matrices]
    return [[i for i, own in enumerate(heights) if own == height] for height in set(heights)]


def test_small_matrices_are_padded_where_that_starts_fewer_kernels():
    several = [(16, 48), (16, 16), (16, 48), (512, 512), (512, 1024)]
    many = [(192, columns) for columns in (192, 576, 768, 768) for _ in range(12)]  # DeiT-Tiny
    for shapes, padded in ((several, [[0, 1, 2], [3], [4]]), (many, [12, 12, 24])):
        matrices = [torch.empty(shape) for shape in shapes]
        found = group_alike(matrices, pads=True)
        assert (found if shapes is several else [len(group) for group in found]) == padded
    assert group_alike([torch.empty(shape) for shape in several], pads=False) == [[0, 2], [1], [3], [4]]


def test_padding_changes_nothing():
    torch.manual_seed(0)
    matrices = [torch.randn(16, columns, dtype=torch.float64) for columns in (16, 48, 20)]
    together = orthogonalise(stack(matrices))
    for matrix, found in zip(matrices, together):
        columns = matrix.shape[1]
        torch.testing.assert_close(found[:, :columns], orthogonalise(matrix[None])[0])
        assert not found[:, columns:].any()


def test_only_matrices_inside_the_backbone_are_orthogonalised():
    model = objective()
    groups = split_groups(model.param_groups(0.1), model)
    names = {p: name for name, p in model.named_parameters()}
    chosen = {names[p] for group in groups if group["matrices"] for p in group["params"]}
    assert any("mlp.fc1.weight" in name for name in chosen)
    assert not any("embed" in name or "head" in name or "bias" in name or "norm" in name for name in chosen)
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize("wrong", [{"momentum": 0.5}, {"final_weight_decay": 0.1}])
def test_settings_of_other_optimisers_are_refused(wrong):
    with pytest.raises(UserError, match="muon"):
        FitConfig(optim=OptimConfig(name="muon", **wrong)).check()


def test_the_iteration_equals_its_equation():
    """X <- a X + (b X X^T + c (X X^T)^2) X, five times, from X of norm 1."""
    torch.manual_seed(0)
    matrices = torch.randn(3, 24, 16, dtype=torch.float64)
    a, b, c = 3.4445, -4.7750, 2.0315
    for matrix, found in zip(matrices, orthogonalise(matrices)):
        x = matrix.mT / (matrix.norm() + 1e-7)
        for _ in range(5):
            x = a * x + (b * (x @ x.mT) + c * (x @ x.mT) @ (x @ x.mT)) @ x
        torch.testing.assert_close(found, x.mT)
