"""Measure DRLoc on untrained networks: do tokens reveal their positions, and how large are its gradients?

    python benchmarks/drloc_untrained.py flowers102-train.tar --out results/drloc-untrained.json

Positions: the backbone stays frozen at its initialisation. DRLoc's MLP is trained on the tokens of half of the images,
with each channel divided by its standard deviation, and its loss is measured on the other half. A small loss means that
tokens carry their positions, and that the task can be solved without the image content.

Pull: the norm of DRLoc's gradient in the backbone, at the published weight, divided by that of the classification loss;
the mean over a few batches and MLPs.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from record import format_command, hash_data, write_rows
from torch import Tensor, nn

from vitling import data
from vitling.backbones import Backbone, create
from vitling.data.store import build_store
from vitling.evaluation.features import eval_mode, iterate_views
from vitling.methods.drloc.loss import DRLoc
from vitling.methods.drloc.settings import DRLocConfig, Target, constant_loss, drloc_weight

WHAT = "DRLoc on untrained networks: loss if only its MLP is trained, and gradient norm relative to classification"
TARGETS: tuple[Target, ...] = ("offset/k", "offset")
BATCH, BATCHES = 64, 3


@torch.inference_mode()
def extract_grids(backbone: Backbone, views: list[Tensor]) -> Tensor:
    """Compute the grids that DRLoc reads, [N, D, h, w], with unit standard deviation per channel."""
    with eval_mode(backbone):
        grids = torch.cat([backbone.forward(view).select_grid("published") for view in views])
    return grids / grids.std((0, 2, 3), keepdim=True).clamp_min(1e-6)


def train_mlp(grids: Tensor, steps: int, batch: int = BATCH, seed: int = 0) -> float:
    """Train DRLoc's MLP on half of the grids and return its loss on the other half."""
    torch.manual_seed(seed)
    train, held_out = grids.clone().chunk(2)
    drloc = DRLoc(grids.shape[1])
    optimiser = torch.optim.AdamW(drloc.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        drloc(train[torch.randint(len(train), (batch,))]).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return torch.stack([drloc(held_out) for _ in range(10)]).mean().item()


def measure_pull(
    backbone: Backbone, views: list[Tensor], labels: Tensor, target: Target, smoothing: float = 0.1
) -> float:
    """Return the mean gradient norm of DRLoc relative to classification; `labels` are those of all views, in order."""
    backbone.train()
    classes, ratios = int(labels.max()) + 1, []
    for seed, (view, own) in enumerate(zip(views, labels.split(len(views[0])))):
        torch.manual_seed(seed)
        head, drloc = nn.Linear(backbone.dim, classes), DRLoc(backbone.dim, target=target)
        nn.init.trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        features = backbone.forward(view)
        main = F.cross_entropy(head(features.pooled), own, label_smoothing=smoothing)
        term = drloc_weight(backbone.name) * drloc(features.select_grid("published"))
        ratios.append(gradient_norm(term, backbone) / gradient_norm(main, backbone))
    return statistics.mean(ratios)


def gradient_norm(loss: Tensor, backbone: Backbone) -> float:
    gradients = torch.autograd.grad(loss, list(backbone.parameters()), retain_graph=True, allow_unused=True)
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).norm().item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="a folder of images, a tar, ...")
    parser.add_argument("--backbones", nargs="+", default=["t2t_vit_14", "swin_tiny_patch4_window7_224", "cvt_13"])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args(argv)
    images = data.open(options.data).train
    store = build_store(images.subset(min(options.images, len(images))), options.size * 8 // 7, use_cache=False)
    order = torch.randperm(len(store), generator=torch.Generator().manual_seed(0)).numpy()
    views = list(iterate_views(store, options.size, 7 / 8, order, BATCH))
    if store.labels is None:
        parser.error(f"{options.data} has no labels")
    labels = store.labels[torch.from_numpy(order)]
    rows, constant = [], constant_loss(DRLocConfig(), 7)
    for name in options.backbones:
        backbone = create(name, options.size, seed=0)
        grids = extract_grids(backbone, views)
        loss = train_mlp(grids, options.steps)
        row: dict[str, Any] = {"backbone": name, "images": len(grids), "loss": loss, "best_constant": constant}
        row["weight"] = drloc_weight(name)
        for target in TARGETS:
            row[f"pull, target {target}"] = measure_pull(backbone, views[:BATCHES], labels[: BATCHES * BATCH], target)
        rows.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
        hashes, command = hash_data(options.data), format_command("drloc_untrained", options)
        write_rows(options.out, WHAT, command, rows, data_hashes=hashes)


if __name__ == "__main__":
    main()
