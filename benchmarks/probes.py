"""How long probes of frozen features take: exact k-NN, and the logistic probe beside scikit-learn's, whole search each.

    python benchmarks/probes.py --out results/probes-h200.json

Features are drawn: classes that overlap, on axes of falling length, as long in all as those of a network after its
norm. Both sides of the logistic probe get the same features, choose C on the same validation images and are judged on
the same others, in one run, scikit-learn on all cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from record import write_rows
from torch import Tensor

from vitling.evaluation.knn import knn_scores
from vitling.evaluation.logistic import Backend, probe
from vitling.evaluation.metrics import top1

KS = (10, 20, 100, 200)
FALL = -0.75  # power of an axis's number that its length is
SEPARATION = 0.2  # of classes, in deviations within a class, on every axis


def drawn(images: int, dim: int, classes: int, device: torch.device, part: int = 0) -> tuple[Tensor, Tensor]:
    """Features [N, D] of classes in turn, and labels; the centres are those of every other `part` too."""
    axes = torch.arange(1, dim + 1) ** FALL
    axes *= (dim / axes.square().sum()).sqrt()
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(images) % classes
    noise = torch.randn(images, dim, generator=torch.Generator().manual_seed(1 + part))
    return (axes * (SEPARATION * centres[labels] + noise)).to(device), labels.to(device)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    _wait(device)
    began = time.perf_counter()
    result = work()
    _wait(device)
    return result, time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_knn(bank: int, queries: int, dim: int, classes: int, device: torch.device) -> dict[str, Any]:
    features, labels = drawn(bank, dim, classes, device)
    asked, truth = drawn(queries, dim, classes, device, part=1)
    ks = [k for k in KS if k <= bank]

    def work() -> dict[int, float]:
        return knn_scores(features, labels, asked, truth, ks, classes)

    work()  # the first call of a process loads kernels
    scores, seconds = timed(work, device)
    return {"probe": "k-NN", "bank": bank, "queries": queries, "dim": dim, "ks": str(ks), "seconds": seconds} | {
        "top1": {f"k {k}": score for k, score in scores.items()}
    }


def measure_logistic(images: int, judged: int, dim: int, classes: int, device: torch.device) -> list[dict[str, Any]]:
    """`images` are parted into four fifths to train on and a fifth to choose on; the refit has them all."""
    features, labels = drawn(images, dim, classes, device)
    asked, truth = drawn(judged, dim, classes, device, part=1)
    first = images * 4 // 5
    train, held = (features[:first], labels[:first]), (features[first:], labels[first:])
    small = (features[: 2 * classes], labels[: 2 * classes])
    for backend in ("torch", "sklearn"):  # the first call loads kernels, or scikit-learn
        probe(small, small, classes, top1, backend)
    rows: list[dict[str, Any]] = []
    sides: tuple[tuple[Backend, torch.device], ...] = (("torch", device), ("sklearn", torch.device("cpu")))
    for backend, where in sides:
        parts = [(x.to(where), y.to(where)) for x, y in (train, held)]
        found, seconds = timed(lambda b=backend, p=parts: probe(p[0], p[1], classes, top1, b), where)
        accuracy = top1(found.fit.logits(asked.to(where)), truth.to(where))
        rows.append(
            {
                "probe": f"logistic, {backend}",
                "images": images,
                "dim": dim,
                "classes": classes,
                "device": str(where),
                "seconds": seconds,
                "C": found.C,
                "validation": found.score,
                "top1": accuracy,
                "iterations_of_the_search": sum(found.iterations.values()),
                "iterations_of_the_last": found.fit.iterations,
                "not_converged": len(found.not_converged),
            }
        )
        print(rows[-1], flush=True)
    ours, theirs = rows
    ours["times_as_quick"] = theirs["seconds"] / ours["seconds"]
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=int, default=50_000, help="images that vote in k-NN")
    parser.add_argument("--queries", type=int, default=10_000, help="images that k-NN is asked about")
    parser.add_argument("--images", type=int, default=10_000, help="images of the logistic probe")
    parser.add_argument("--judged", type=int, default=50_000, help="images that it is judged on")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    rows = [measure_knn(options.bank, options.queries, options.dim, options.classes, device)]
    print(rows[0], flush=True)
    rows += measure_logistic(options.images, options.judged, options.dim, options.classes, device)
    print(f"The logistic probe by torch takes 1/{rows[1]['times_as_quick']:.1f} of scikit-learn's time.")
    sizes = ("bank", "queries", "images", "judged", "classes", "dim")
    settings = " ".join(f"--{name} {getattr(options, name)}" for name in sizes)
    write_rows(options.out, "Seconds of probes of frozen features", f"python benchmarks/probes.py {settings}", rows)


if __name__ == "__main__":
    main()
