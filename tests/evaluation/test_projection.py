"""Points in the plane."""

from __future__ import annotations

import numpy as np
import pytest

from vitling.evaluation.projection import compute_tsne, project


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_images_stay_at_one_point(value):
    """scikit-learn's t-SNE would crash the interpreter."""
    components = project(np.full((42, 8), value))
    assert compute_tsne(components).shape == (42, 2)
    assert np.ptp(compute_tsne(components), axis=0).max() < 1e-6


def test_two_clusters_stay_apart():
    features = np.random.default_rng(0).normal(size=(40, 8)) * 0.1
    features[:20, 0] += 1
    features[20:, 1] += 1
    placed = compute_tsne(project(features))
    gap = np.linalg.norm(placed[:20].mean(axis=0) - placed[20:].mean(axis=0))
    assert gap > 2 * max(placed[:20].std(), placed[20:].std())
