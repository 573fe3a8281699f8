"""Time probes of frozen features: exact k-NN, and the search of the logistic probe in torch and in scikit-learn.

    python benchmarks/probes.py --out results/probes-h200.json

Features are random: overlapping classes, axes of decreasing length, and the norm of a network's features after its last
layer norm. Both logistic probes get the same features, choose C on the same validation images and are evaluated on the
same test images, in one run. scikit-learn gets the number of threads it is fastest with, since its two thread pools may
compete for all cores. Rows are written as they are measured.
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
from vitling.evaluation.logistic import Backend, fit_probe
from vitling.evaluation.metrics import top1
from vitling.training.pace import synchronise

KS = (10, 20, 100, 200)
DECAY = -0.75  # length of axis i is i ** DECAY
SEPARATION = 0.2  # std of class centres on every axis, relative to the std within a class
SHORT = 10  # iterations of the fits that choose the number of threads


def draw_features(images: int, dim: int, classes: int, device: torch.device, part: int = 0) -> tuple[Tensor, Tensor]:
    """Draw features [N, D] and labels; every `part` has the same class centres and other images."""
    axes = torch.arange(1, dim + 1) ** DECAY
    axes *= (dim / axes.square().sum()).sqrt()
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(images) % classes
    noise = torch.randn(images, dim, generator=torch.Generator().manual_seed(1 + part))
    return (axes * (SEPARATION * centres[labels] + noise)).to(device), labels.to(device)


def time_call(work: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    synchronise(device)
    began = time.perf_counter()
    result = work()
    synchronise(device)
    return result, time.perf_counter() - began


def measure_knn(bank: int, queries: int, dim: int, classes: int, device: torch.device) -> dict[str, Any]:
    features, labels = draw_features(bank, dim, classes, device)
    query, truth = draw_features(queries, dim, classes, device, part=1)
    ks = [k for k in KS if k <= bank]

    def work() -> dict[int, float]:
        return knn_scores(features, labels, query, truth, ks, classes)

    work()  # the first call loads kernels
    scores, seconds = time_call(work, device)
    return {"probe": "k-NN", "bank": bank, "queries": queries, "dim": dim, "ks": str(ks), "seconds": seconds} | {
        "top1": {f"k {k}": score for k, score in scores.items()}
    }


def time_sklearn_threads(features: Tensor, labels: Tensor) -> dict[int, float]:
    """Return the seconds of a short fit with 1, 2, 4, ... threads, up to the number of cores."""
    x, y = features.double().cpu().numpy(), labels.cpu().numpy()
    most = count_cores()
    seconds: dict[int, float] = {}
    for count in sorted({most, *(2**i for i in range(most.bit_length()))}):
        with threadpool_limits(count), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it stops early on purpose
            _, seconds[count] = time_call(lambda: LogisticRegression(max_iter=SHORT).fit(x, y), torch.device("cpu"))
    return seconds


def measure_logistic(
    images: int, judged: int, dim: int, classes: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Train on four fifths of `images`, choose C on the rest, and refit on all."""
    features, labels = draw_features(images, dim, classes, device)
    test, truth = draw_features(judged, dim, classes, device, part=1)
    n_train = images * 4 // 5
    train, held_out = (features[:n_train], labels[:n_train]), (features[n_train:], labels[n_train:])
    small = (features[: 2 * classes], labels[: 2 * classes])

    def measure(backend: Backend, where: torch.device, **more: Any) -> dict[str, Any]:
        fit_probe(small, small, classes, top1, backend)  # the first call loads kernels, or scikit-learn
        parts = [(x.to(where), y.to(where)) for x, y in (train, held_out)]
        found, seconds = time_call(lambda: fit_probe(parts[0], parts[1], classes, top1, backend), where)
        return {
            "probe": f"logistic, {backend}",
            "images": images,
            "dim": dim,
            "classes": classes,
            "device": str(where),
            "seconds": seconds,
            "C": found.C,
            "validation": found.score,
            "top1": top1(found.fit.logits(test.to(where)), truth.to(where)),
            "iterations_of_the_search": sum(found.iterations.values()),
            "iterations_of_the_last": found.fit.iterations,
            "not_converged": len(found.not_converged),
            **more,
        }

    ours = measure("torch", device)
    yield ours
    tried = time_sklearn_threads(*train)
    fastest = min(tried, key=lambda count: tried[count])
    with threadpool_limits(fastest):
        seconds = {str(count): round(fit, 3) for count, fit in tried.items()}
        theirs = measure("sklearn", torch.device("cpu"), threads=fastest, seconds_of_a_short_fit_by_threads=seconds)
    yield theirs | {"times_as_long": theirs["seconds"] / ours["seconds"]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=int, default=50_000, help="images in the bank of k-NN")
    parser.add_argument("--queries", type=int, default=10_000, help="images classified by k-NN")
    parser.add_argument(
        "--images", type=int, default=10_000, help="training and validation images of the logistic probe"
    )
    parser.add_argument("--judged", type=int, default=50_000, help="test images of the logistic probe")
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
