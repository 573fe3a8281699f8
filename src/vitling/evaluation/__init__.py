"""Trained models: saving, loading, predicting, metrics and probes. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.evaluation.bundle import load as load
    from vitling.evaluation.bundle import load_bundle as load_bundle
    from vitling.evaluation.bundle import save_bundle as save_bundle
    from vitling.evaluation.calibration import fit_temperature as fit_temperature
    from vitling.evaluation.classify import ValidationWatcher as ValidationWatcher
    from vitling.evaluation.collapse import CollapseWatcher as CollapseWatcher
    from vitling.evaluation.features import compute_pooled_features as compute_pooled_features
    from vitling.evaluation.inputs import find_images as find_images
    from vitling.evaluation.knn import knn_scores as knn_scores
    from vitling.evaluation.knn import knn_votes as knn_votes
    from vitling.evaluation.meta import BundleMeta as BundleMeta
    from vitling.evaluation.metrics import summarise as summarise
    from vitling.evaluation.model import Model as Model
    from vitling.evaluation.model import Prediction as Prediction
    from vitling.evaluation.spread import effective_rank as effective_rank
    from vitling.evaluation.spread import measure_spread as measure_spread
    from vitling.evaluation.watching import KnnWatcher as KnnWatcher
    from vitling.evaluation.watching import SpreadWatcher as SpreadWatcher
    from vitling.evaluation.watching import split_for_knn as split_for_knn
    from vitling.evaluation.watching import watch_pretraining as watch_pretraining

_MODULES = {
    "BundleMeta": "meta",
    "CollapseWatcher": "collapse",
    "KnnWatcher": "watching",
    "Model": "model",
    "Prediction": "model",
    "SpreadWatcher": "watching",
    "ValidationWatcher": "classify",
    "compute_pooled_features": "features",
    "effective_rank": "spread",
    "find_images": "inputs",
    "fit_temperature": "calibration",
    "knn_scores": "knn",
    "knn_votes": "knn",
    "load": "bundle",
    "load_bundle": "bundle",
    "measure_spread": "spread",
    "save_bundle": "bundle",
    "split_for_knn": "watching",
    "summarise": "metrics",
    "watch_pretraining": "watching",
}
__getattr__ = make_getattr(__name__, _MODULES)
