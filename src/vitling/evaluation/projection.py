"""Features as points in the plane: principal components and t-SNE."""

from __future__ import annotations

import numpy as np

TSNE_LEAST = 20  # images; fewer make no clusters
COMPONENTS = 50  # that t-SNE sees
PERPLEXITY = 30.0
SAME_POINT = 1e-6  # smaller distances between unit vectors are rounding


def project(features: np.ndarray) -> np.ndarray:
    """Project centred unit vectors to their principal components, the largest first, [N, at most COMPONENTS]."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    centred = unit - unit.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    components = vectors[:, ::-1][:, : max(2, min(COMPONENTS, centred.shape[1]))]
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])])
    return centred @ (components * signs)  # the sign of a component is arbitrary: fix it


def compute_tsne(components: np.ndarray) -> np.ndarray:
    """Place principal components in the plane, [N, 2]; points that are all equal stay as they are.

    scikit-learn divides by the standard deviation of the first component, and crashes if it is 0.
    """
    from sklearn.manifold import TSNE

    if not np.ptp(components, axis=0).max() > SAME_POINT:
        return components[:, :2]
    perplexity = min(PERPLEXITY, (len(components) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(components)
