"""Batch norm: its statistics are those of one pass or of groups of images, and a pass must have enough of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitling.errors import UserError
from vitling.objectives.heads import BatchNorm
from vitling.training.processes import Processes


def has_batch_norm(objective: nn.Module) -> bool:
    """Return whether training needs at least two images in every batch."""
    return any(isinstance(module, _BatchNorm) for module in objective.modules())


def check_batch_norm(
    objective: nn.Module, smallest_batch: int, processes: Processes, accumulate: int, warn: Callable[[str], None]
) -> None:
    """Raise UserError if a pass can have fewer than two images, and warn if statistics are not over the whole batch."""
    norms = [module for module in objective.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    passes = processes.world * accumulate
    if smallest_batch // passes < 2:
        raise UserError(
            "Batch norm needs two images in every pass, but the last batch of an epoch has fewer. Use "
            "--loop.drop-last or a different --batch."
        )
    synchronised = processes.device.type == "cuda" or all(isinstance(norm, BatchNorm) for norm in norms)
    if passes > 1 and not (synchronised and passes == processes.world):
        warn("Batch norm computes its statistics over each pass, not over the whole batch.")


class GroupedBatchNorm(nn.BatchNorm2d):
    """Ghost batch norm (Hoffer et al. 2017): in training, equal groups of at most `images` have their own statistics.

    The running statistics move once per pass, by the mean over the groups of all processes.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: nn.BatchNorm2d, images: int):
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.images = images
        self.train(norm.training)
        for name, value in (*norm.named_parameters(), *norm.named_buffers()):
            setattr(self, name, value)

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training:
            return super().forward(maps)
        groups = maps.tensor_split(-(-len(maps) // self.images))
        means = [self.running_mean.clone() for _ in groups]
        variances = [self.running_var.clone() for _ in groups]
        normed = [
            F.batch_norm(group, mean, variance, self.weight, self.bias, True, self.momentum or 0.0, self.eps)
            for group, mean, variance in zip(groups, means, variances)
        ]
        moved = torch.stack([torch.stack(means).mean(0), torch.stack(variances).mean(0)])
        if dist.is_initialized():
            dist.all_reduce(moved)
            moved /= dist.get_world_size()
        self.running_mean.copy_(moved[0])
        self.running_var.copy_(moved[1])
        self.num_batches_tracked.add_(1)
        return torch.cat(normed)


def group_batch_norm(objective: nn.Module, images: int) -> None:
    """Replace the networks' batch norms in place; those of heads, over rows instead of maps, are left alone."""
    found = False
    for parent in list(objective.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(parent, name, GroupedBatchNorm(child, images))
                found = True
            found = found or isinstance(child, GroupedBatchNorm)
    if not found:
        raise UserError(f"--loop.batch-norm-group {images}: this network has no batch norm; leave the setting out.")
