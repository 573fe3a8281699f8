"""SimCLR, SupCon and LeJEPA in one of several processes: python -m ... IMAGES OUT, with torchrun's RANK and WORLD_SIZE.

For each method it leaves a run in OUT/METHOD, which is stopped after its second epoch and resumed, and in the same
folder RANK.pt: the losses and gradients of batches that cannot be divided evenly, or at all.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tiny import tiny_backbone
from tests.training.helpers import QUIET, fit_resumed, run_process
from vitling.data.batches import count_images_per_process, slice_batch
from vitling.data.store import Store
from vitling.methods.lejepa.loss import LeJEPA
from vitling.methods.lejepa.settings import LeJEPAConfig
from vitling.methods.simclr.loss import SimCLR
from vitling.methods.supcon.loss import SupCon
from vitling.objectives import Batch, Objective
from vitling.training import CheckpointConfig, FitConfig, OptimConfig, Processes
from vitling.views.policies import simclr

KINDS = ("simclr", "supcon", "lejepa")
BATCHES = (5, 2, 1)  # images


def objective(kind: str, labels: Tensor) -> Objective:
    torch.manual_seed(0)
    backbone, plan = tiny_backbone(), simclr(16)
    if kind == "lejepa":
        return LeJEPA(backbone, plan, LeJEPAConfig(local_crops=0, directions=16, hidden=24, dim=4))
    return SimCLR(backbone, plan) if kind == "simclr" else SupCon(backbone, plan, labels)


def gradients(kind: str, images: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """Compute this process's contribution to the mean loss over processes, and the gradient of a shared matrix."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(2, images, 6, generator=random)
    matrix = torch.randn(6, 4, generator=random).requires_grad_()
    ((local, weight),) = slice_batch(images, rank, world, 1)
    held = count_images_per_process(images, world, 1)[0] if world > 1 else ()
    model = objective(kind, torch.tensor([0, 1, 0, -1, 1]))
    batch = Batch(torch.from_numpy(local), None, images_per_process=held)
    z = inputs[:, local] @ matrix
    if isinstance(model, LeJEPA):
        loss = weight * model.sigreg(z, batch)
    else:
        loss = weight * model.losses(F.normalize(z.flatten(0, 1), dim=1), batch).mean()
    loss.backward()
    return {"loss": loss.detach(), "gradient": matrix.grad}


def train(kind: str, store: Store, out: Path, processes: Processes) -> None:
    """33 images in batches of 8: the last batch has one image, less than there are processes. LeJEPA's batch norm
    needs two, and lets rounding grow too fast for a larger learning rate."""
    lr, batch = (1e-3, 9) if kind == "lejepa" else (0.05, 8)
    optim = OptimConfig(name="sgd", lr=lr, clip=1.0, ema=0.9)
    settings = FitConfig(4, batch, 0, optim, QUIET, CheckpointConfig(0.0))
    fit_resumed(lambda: objective(kind, store.labels), store, settings, out, processes)


def save_and_train(kind: str, store: Store, out: Path, processes: Processes) -> None:
    out.mkdir(exist_ok=True)
    found = {count: gradients(kind, count, processes.rank, processes.world) for count in BATCHES}
    torch.save(found, out / f"{processes.rank}.pt")
    train(kind, store, out, processes)


if __name__ == "__main__":
    run_process(KINDS, save_and_train)
