"""How far a model's predictions can be trusted: held-out scores for prediction sets, and features of known images.

Saved beside the weights, in trust.safetensors. Either part may be missing, and models of older versions have neither.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.conformal import compute_scores, find_threshold
from vitling.evaluation.familiarity import Familiarity, choose_threshold
from vitling.files import atomic_write

FILE = "trust.safetensors"
_PARTS = tuple(f.name for f in fields(Familiarity))


@dataclass(frozen=True)
class Trust:
    """Data for prediction sets and for marking unfamiliar images."""

    scores: Tensor | None = None  # -log p of each held-out image's class [n]; None for several labels per image
    familiarity: Familiarity | None = None

    def find_threshold(self, coverage: float) -> float:
        """Return the highest score in a prediction set; raise UserError if the model has no scores."""
        if self.scores is None:
            raise UserError(
                "--coverage: the model has no scores of held-out images. Train it with --val 0.1 or --calibrate on; "
                "models of older versions have none."
            )
        return find_threshold(self.scores, coverage)


@dataclass(frozen=True)
class Calibration:
    """Outputs of a network for images that it was not trained on."""

    logits: Tensor  # [n, C]
    labels: Tensor  # [n], or bool [n, C]
    distances: Tensor  # [n], to the training images


def measure_trust(calibration: Calibration, familiarity: Familiarity, temperature: float) -> Trust:
    """Compute the scores (for one class per image) and the threshold of unfamiliar images from the calibration."""
    scores = None
    if calibration.labels.ndim == 1:
        scores = compute_scores(calibration.logits / temperature, calibration.labels)
    return Trust(scores, replace(familiarity, threshold=choose_threshold(calibration.distances)))


def save_trust(folder: Path, trust: Trust) -> None:
    """Write the file, or delete that of an earlier model if there is nothing to write."""
    tensors: dict[str, Tensor] = {}
    if trust.scores is not None:
        tensors["scores"] = trust.scores.float().sort().values
    if trust.familiarity is not None:
        tensors |= {name: torch.as_tensor(getattr(trust.familiarity, name)).contiguous() for name in _PARTS}
    if not tensors:
        (folder / FILE).unlink(missing_ok=True)
        return
    with atomic_write(folder / FILE) as file:
        file.write(save(tensors))


def load_trust(folder: Path) -> Trust:
    """Read the trust data of a model folder."""
    path = folder / FILE
    if not path.exists():
        return Trust()
    try:
        found = load_file(path)
        parts = [found[name] for name in _PARTS] if "mean" in found else []
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it to use the model without it.") from error
    scores = found.get("scores")
    if (scores is not None and scores.ndim != 1) or (parts and not _fit_together(*parts)):
        raise UserError(f"{path} is damaged: its parts are inconsistent. Delete it to use the model without it.")
    if not parts:
        return Trust(scores)
    mean, directions, variances, threshold = parts
    return Trust(scores, Familiarity(mean, directions, variances, float(threshold)))


def _fit_together(mean: Tensor, directions: Tensor, variances: Tensor, threshold: Tensor) -> bool:
    dim, count = mean.numel(), variances.numel() - 1
    sizes = [tuple(part.shape) for part in (mean, directions, variances, threshold)]
    return sizes == [(dim,), (count, dim), (count + 1,), ()]
