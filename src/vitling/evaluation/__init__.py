"""Trained models: saving, loading, predicting, metrics and probes. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.evaluation.bundle import load as load
    from vitling.evaluation.bundle import load_bundle as load_bundle
    from vitling.evaluation.bundle import save_bundle as save_bundle
    from vitling.evaluation.calibration import fit_temperature as fit_temperature
    from vitling.evaluation.inputs import find_images as find_images
    from vitling.evaluation.meta import BundleMeta as BundleMeta
    from vitling.evaluation.watching import watch_pretraining as watch_pretraining

_MODULES = {
    "BundleMeta": "meta",
    "find_images": "inputs",
    "fit_temperature": "calibration",
    "load": "bundle",
    "load_bundle": "bundle",
    "save_bundle": "bundle",
    "watch_pretraining": "watching",
}
__getattr__ = make_getattr(__name__, _MODULES)
