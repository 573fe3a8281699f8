"""Batch norm over groups of images, against one batch norm per group."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.training.helpers import QUIET, config, free_port, open_store, train
from vitling.backbones import create
from vitling.errors import UserError
from vitling.methods.supervised.loss import Supervised
from vitling.training.batch_norm import GroupedBatchNorm, group_batch_norm
from vitling.views import ViewsConfig


def shaken_norm() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            values.uniform_(0.5, 2.0)
    return norm


@pytest.mark.parametrize(("images", "sizes"), [(4, (4, 4, 4)), (5, (4, 4, 4)), (7, (6, 6)), (11, (6, 6)), (12, (12,))])
def test_groups_match_processes_that_share_nothing(images, sizes):
    """Each process has its own batch norm; afterwards their running statistics are averaged."""
    torch.manual_seed(0)
    norm, x = shaken_norm(), torch.randn(12, 3, 5, 4) * torch.linspace(1, 3, 12)[:, None, None, None]
    processes = [copy.deepcopy(norm) for _ in sizes]
    grouped = GroupedBatchNorm(copy.deepcopy(norm), images)
    expected_input, found_input = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = torch.cat([one(part) for one, part in zip(processes, expected_input.split(sizes))])
    found = grouped(found_input)
    torch.testing.assert_close(found, expected)
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(one, name) for one in processes]).mean(0)
        torch.testing.assert_close(getattr(grouped, name), mean)
    assert grouped.num_batches_tracked == 1
    direction = torch.randn_like(x)
    found.backward(direction)
    expected.backward(direction)
    torch.testing.assert_close(found_input.grad, expected_input.grad)
    torch.testing.assert_close(grouped.weight.grad, sum(one.weight.grad for one in processes))


def normalise_part(rank: int, port: int, norm: nn.BatchNorm2d, x: torch.Tensor, out: Path) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    norm = GroupedBatchNorm(copy.deepcopy(norm), 3)  # processes share the memory of what they are given
    norm(x[6 * rank : 6 * rank + 6])
    torch.save(norm.state_dict(), out / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_average_their_running_statistics(tmp_path):
    """Two processes with two groups each end with the statistics of one process with four."""
    torch.manual_seed(0)
    norm, x = shaken_norm(), torch.randn(12, 3, 5, 4) * torch.linspace(1, 3, 12)[:, None, None, None]
    whole = GroupedBatchNorm(copy.deepcopy(norm), 3)
    whole(x)
    torch.multiprocessing.spawn(normalise_part, (free_port(), norm, x, tmp_path), nprocs=2)
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            torch.testing.assert_close(value, whole.state_dict()[name])


def test_unequal_groups_differ_by_one_image():
    norm, x = shaken_norm(), torch.randn(11, 3, 2, 2)
    processes = [copy.deepcopy(norm) for _ in range(3)]
    expected = torch.cat([one(part) for one, part in zip(processes, x.split((4, 4, 3)))])
    torch.testing.assert_close(GroupedBatchNorm(norm, 4)(x), expected)


@torch.no_grad()
def test_evaluation_and_weights_stay_the_same():
    objective = nn.ModuleDict({"backbone": create("cvt_13", 32, seed=0), "head": nn.Linear(384, 2)})
    parameters, before = list(objective.parameters()), copy.deepcopy(objective)
    group_batch_norm(objective, 2)
    assert objective.state_dict().keys() == before.state_dict().keys()
    assert all(one is other for one, other in zip(objective.parameters(), parameters, strict=True))
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(objective.eval()["backbone"](x).pooled, before.eval()["backbone"](x).pooled)
    trained, whole = (network.train()["backbone"](x).pooled for network in (objective, before))
    assert not torch.allclose(trained, whole, atol=1e-3)


def test_a_run_trains_in_groups(folder, tmp_path):
    store = open_store(folder)
    settings = config(epochs=1, loop=replace(QUIET, batch_norm_group=4))
    model = Supervised(create("resnet18", 32, seed=0), ViewsConfig().plan(32), classes=3)
    train(store, tmp_path / "run", settings, model=model)
    assert all(isinstance(m, GroupedBatchNorm) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    with pytest.raises(UserError, match="no batch norm"):
        train(store, tmp_path / "other", settings)
