"""Compare scores that rank wrong labels: k times the probability of the given label, minus that of the best other.

    python benchmarks/suspect_scores.py --out results/suspect-scores-cpu.json

On scikit-learn's digits, 5 % of the labels are flipped, to any class or to one of the two most similar ones. Logistic
regression and k-NN give out-of-fold probabilities, as in `vitling doctor`, from all pixels or from few principal
components, which makes the classifiers as weak as those of difficult images. All images are ranked. Rows: how many
flips are among the first of which 80 % are flips, mean over seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from label_doctor import recall_at_precision
from record import format_command, write_rows
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from vitling.data.holdout import assign_folds
from vitling.evaluation.confident import score_labels
from vitling.evaluation.out_of_fold import FOLDS, predict_out_of_fold

FRACTION = 0.05  # of the labels
WEIGHTS = (1, 2, 3, 4, 6, 10)  # k; 1 is the normalised margin


def flip(pixels: np.ndarray, labels: np.ndarray, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of which some are wrong, and which ones."""
    rng, classes = np.random.default_rng(seed), labels.max() + 1
    flipped = np.zeros(len(labels), bool)
    flipped[rng.permutation(len(labels))[: round(FRACTION * len(labels))]] = True
    true = labels[flipped]
    if kind == "any class":
        wrong = (true + rng.integers(1, classes, len(true))) % classes
    else:
        means = np.stack([pixels[labels == c].mean(axis=0) for c in range(classes)])
        distances = np.linalg.norm(means[:, None] - means[None], axis=2) + np.diag(np.full(classes, np.inf))
        wrong = distances.argsort(axis=1)[true, rng.integers(0, 2, len(true))]
    given = labels.copy()
    given[flipped] = wrong
    return given, flipped


def measure(components: int, kind: str, seeds: int) -> dict[str, Any]:
    pixels, labels = load_digits(return_X_y=True)
    features = torch.from_numpy(PCA(components, random_state=0).fit_transform(pixels)).float()
    found: dict[float, list[float]] = {weight: [] for weight in WEIGHTS}
    agreement = []
    for seed in range(seeds):
        given, flipped = flip(pixels, labels, kind, seed)
        folds = assign_folds(given, None, len(given), FOLDS, seed)
        p = predict_out_of_fold(features, torch.from_numpy(given), labels.max() + 1, folds)
        agreement.append(float((p.argmax(axis=1) == given).mean()))
        for weight, order in rank(p, given):
            found[weight].append(recall_at_precision(flipped[order].tolist(), int(flipped.sum()), 0.8))
    means = {f"k={weight}": round(statistics.mean(values), 3) for weight, values in found.items()}
    return {"flips": kind, "components": components, "agreement": round(statistics.mean(agreement), 3), **means}


def rank(p: np.ndarray, given: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    own, others = p[np.arange(len(p)), given], p.copy()
    others[np.arange(len(p)), given] = -1
    for weight in WEIGHTS:
        yield weight, np.argsort(score_labels(own, others.max(axis=1), weight), kind="stable")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", nargs="+", type=int, default=[3, 4, 5, 6, 8, 10, 64])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows = []
    for kind in ("any class", "a similar class"):
        for components in options.components:
            rows.append(measure(components, kind, options.seeds))
            print(rows[-1], flush=True)
    what = "flipped labels found at 80 % precision, by the weight of the given label's probability in the score"
    write_rows(options.out, what, format_command("suspect_scores", options), rows)


if __name__ == "__main__":
    main()
