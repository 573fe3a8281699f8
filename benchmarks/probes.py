"""How long probes of frozen features take: exact k-NN, and the logistic probe beside scikit-learn's, whole search each.

    python benchmarks/probes.py --out results/probes-h200.json

Features are drawn: classes that overlap, on axes of falling length, as long in all as those of a network after its
norm. Both sides of the logistic probe get the same features, choose C on the same validation images and are judged on
the same others, in one run. scikit-learn gets as many threads as it is quickest with, up to all cores: with all of them
its two pools, of products and of losses, may be in each other's way. Rows are written as they come.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from record import write_rows
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from vitling.data.host import count_cores
from vitling.evaluation.knn import knn_scores
from vitling.evaluation.logistic import Backend, probe
from vitling.evaluation.metrics import top1

KS = (10, 20, 100, 200)
FALL = -0.75  # power of an axis's number that its length is
SEPARATION = 0.2  # of classes, in deviations within a class, on every axis
SHORT = 10  # iterations of a fit that tells how many threads are quick


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


def threads_of_sklearn(features: Tensor, labels: Tensor) -> dict[int, float]:
    """Seconds of a short fit with 1, 2, 4, ... threads and with as many as there are cores."""
    x, y = features.double().cpu().numpy(), labels.cpu().numpy()
    most = count_cores()
    seconds: dict[int, float] = {}
    for count in sorted({most, *(2**i for i in range(most.bit_length()))}):
        with threadpool_limits(count), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is to end early
            _, seconds[count] = timed(lambda: LogisticRegression(max_iter=SHORT).fit(x, y), torch.device("cpu"))
    return seconds


def measure_logistic(
    images: int, judged: int, dim: int, classes: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """`images` are parted into four fifths to train on and a fifth to choose on; the refit has them all."""
    features, labels = drawn(images, dim, classes, device)
    asked, truth = drawn(judged, dim, classes, device, part=1)
    first = images * 4 // 5
    train, held = (features[:first], labels[:first]), (features[first:], labels[first:])
    small = (features[: 2 * classes], labels[: 2 * classes])

    def side(backend: Backend, where: torch.device, **more: Any) -> dict[str, Any]:
        probe(small, small, classes, top1, backend)  # the first call loads kernels, or scikit-learn
        parts = [(x.to(where), y.to(where)) for x, y in (train, held)]
        found, seconds = timed(lambda: probe(parts[0], parts[1], classes, top1, backend), where)
        return {
            "probe": f"logistic, {backend}",
            "images": images,
            "dim": dim,
            "classes": classes,
            "device": str(where),
            "seconds": seconds,
            "C": found.C,
            "validation": found.score,
            "top1": top1(found.fit.logits(asked.to(where)), truth.to(where)),
            "iterations_of_the_search": sum(found.iterations.values()),
            "iterations_of_the_last": found.fit.iterations,
            "not_converged": len(found.not_converged),
            **more,
        }

    ours = side("torch", device)
    yield ours
    tried = threads_of_sklearn(*train)
    quickest = min(tried, key=lambda count: tried[count])
    with threadpool_limits(quickest):
        noted = {str(count): round(seconds, 3) for count, seconds in tried.items()}
        theirs = side("sklearn", torch.device("cpu"), threads=quickest, seconds_of_a_short_fit_by_threads=noted)
    yield theirs | {"times_as_long": theirs["seconds"] / ours["seconds"]}


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
    sizes = ("bank", "queries", "images", "judged", "classes", "dim")
    settings = " ".join(f"--{name} {getattr(options, name)}" for name in sizes)
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, flush=True)
        command = f"python benchmarks/probes.py {settings}"
        write_rows(options.out, "Seconds of probes of frozen features", command, rows)

    add(measure_knn(options.bank, options.queries, options.dim, options.classes, device))
    for row in measure_logistic(options.images, options.judged, options.dim, options.classes, device):
        add(row)
    print(f"scikit-learn's logistic probe takes {rows[-1]['times_as_long']:.1f} times as long as torch's.")


if __name__ == "__main__":
    main()
