"""Trained models on disk and at work, and how good they are. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import exports

if TYPE_CHECKING:
    from vitling.evaluation.bundle import load as load
    from vitling.evaluation.bundle import load_bundle as load_bundle
    from vitling.evaluation.bundle import save_bundle as save_bundle
    from vitling.evaluation.calibration import fit_temperature as fit_temperature
    from vitling.evaluation.classify import Validation as Validation
    from vitling.evaluation.inputs import find_images as find_images
    from vitling.evaluation.meta import BundleMeta as BundleMeta
    from vitling.evaluation.metrics import summarise as summarise
    from vitling.evaluation.model import Model as Model
    from vitling.evaluation.model import Prediction as Prediction

_HOMES = {
    "BundleMeta": "meta",
    "Model": "model",
    "Prediction": "model",
    "Validation": "classify",
    "find_images": "inputs",
    "fit_temperature": "calibration",
    "load": "bundle",
    "load_bundle": "bundle",
    "save_bundle": "bundle",
    "summarise": "metrics",
}
__getattr__ = exports(__name__, _HOMES)
