"""Data behind prediction sets and familiarity: scores of held-out images, features of known images.

Saved beside the weights, in trust.safetensors. Either part may be missing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from vitling.errors import InvalidFile, UserError
from vitling.evaluation.conformal import compute_scores, find_threshold
from vitling.evaluation.familiarity import (
    DISTANCES,
    MAP_STATISTICS,
    Familiarity,
    Gaussian,
    calibrate_familiarity,
    make_signals,
)
from vitling.files import write_file
from vitling.loading import read_safetensors

FILE = "trust.safetensors"
_ADVICE = ". Delete it to use the model without it"
_PARTS = tuple(f.name for f in fields(Gaussian))
_FAMILIARITY = ("maps", "pixels")  # distributions


@dataclass(frozen=True)
class Trust:
    """Data for prediction sets and for marking unfamiliar images."""

    scores: Tensor | None = None  # -log p of each held-out image's class [n]; None for several labels per image
    familiarity: Familiarity | None = None

    def find_threshold(self, coverage: float) -> float:
        """Return the highest score in a prediction set; raise UserError if the model has no scores."""
        if self.scores is None:
            raise UserError(
                "--coverage: the model has no scores of held-out images. Train it with --val 0.1 or --calibrate on."
            )
        return find_threshold(self.scores, coverage)


@dataclass(frozen=True)
class Calibration:
    """Outputs of a network for images that it was not trained on."""

    logits: Tensor  # [n, C]
    labels: Tensor  # [n], or bool [n, C]
    distances: Tensor | None  # [n, 2], to the training images; None: those of another network


def measure_trust(calibration: Calibration, familiarity: Familiarity, temperature: float) -> Trust:
    """Compute from the calibration the scores (for one class per image), and how strange images may be.

    Without distances, the model cannot tell which images are unfamiliar.
    """
    logits = calibration.logits / temperature if calibration.labels.ndim == 1 else None
    scores = None if logits is None else compute_scores(logits, calibration.labels)
    if calibration.distances is None:
        return Trust(scores)
    return Trust(scores, calibrate_familiarity(familiarity, make_signals(calibration.distances, logits)))


def save_trust(folder: Path, trust: Trust) -> None:
    """Write the file, or delete that of an earlier model if there is nothing to write."""
    tensors: dict[str, Tensor] = {}
    if trust.scores is not None:
        tensors["scores"] = trust.scores.float().sort().values
    if trust.familiarity is not None:
        held_out, threshold = trust.familiarity.held_out, torch.tensor(trust.familiarity.threshold)
        tensors |= {"held_out": held_out.contiguous(), "threshold": threshold}
        for name in _FAMILIARITY:
            parts = asdict(getattr(trust.familiarity, name))
            tensors |= {f"{name}.{part}": value.contiguous() for part, value in parts.items()}
    if not tensors:
        (folder / FILE).unlink(missing_ok=True)
        return
    write_file(folder / FILE, save(tensors))


def load_trust(folder: Path, width: int, pixel_features: int) -> Trust:
    """Read the trust data of a model folder, whose network has maps of this width, and whose images have this many
    features of their pixels."""
    path = folder / FILE
    if not path.exists():
        return Trust()
    try:
        found = read_safetensors(path)
    except InvalidFile as problem:
        raise InvalidFile(path, f"{problem.problem}{_ADVICE}") from None
    wrong = any(value.dtype != torch.float32 or not value.isfinite().all() for value in found.values())
    scores = found.pop("scores", None)
    if wrong or (scores is not None and scores.ndim != 1):
        raise InvalidFile(path, f"its parts are inconsistent or not finite{_ADVICE}")
    if not any(name.startswith(_FAMILIARITY) for name in found):  # none, or that of an older version
        return Trust(scores)
    maps, pixels = (
        _get_gaussian(found, name, dim)
        for name, dim in zip(_FAMILIARITY, (MAP_STATISTICS * width, pixel_features), strict=True)
    )
    held_out, threshold = found.get("held_out", torch.zeros(0)), found.get("threshold", torch.zeros(0, 0))
    known_signals = held_out.ndim == 2 and len(held_out) in (DISTANCES, DISTANCES + 1) and held_out.shape[1] > 0
    if maps is None or pixels is None or not known_signals or threshold.ndim:
        raise InvalidFile(path, f"its parts are inconsistent, or belong to another network{_ADVICE}")
    return Trust(scores, Familiarity(maps, pixels, held_out, float(threshold)))


def _get_gaussian(found: dict[str, Tensor], name: str, dim: int) -> Gaussian | None:
    """Return a distribution of `dim` features, or None if its parts are missing or do not fit together."""
    parts = [found[key] for part in _PARTS if (key := f"{name}.{part}") in found]
    count = parts[-1].numel() - 1 if len(parts) == len(_PARTS) else -1
    fits = [tuple(part.shape) for part in parts] == [(dim,), (dim,), (count, dim), (count + 1,)]
    return Gaussian(*parts) if fits else None
