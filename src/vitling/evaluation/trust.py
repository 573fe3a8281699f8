"""How far a model's predictions can be trusted: held-out scores for prediction sets, and features of known images.

Saved beside the weights, in trust.safetensors. Either part may be missing, and models of older versions have neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from vitling.errors import InvalidFile, UserError
from vitling.evaluation.conformal import compute_scores, find_threshold
from vitling.evaluation.familiarity import MAP_STATISTICS, Familiarity, choose_threshold
from vitling.files import atomic_write
from vitling.loading import read_safetensors

FILE = "trust.safetensors"
_ADVICE = ". Delete it to use the model without it"
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
    distances: Tensor | None  # [n], to the training images; None: those of another network


def measure_trust(calibration: Calibration, familiarity: Familiarity, temperature: float) -> Trust:
    """Compute the scores (for one class per image) and the threshold of unfamiliar images from the calibration.

    Without distances, the model cannot tell which images are unfamiliar.
    """
    scores = None
    if calibration.labels.ndim == 1:
        scores = compute_scores(calibration.logits / temperature, calibration.labels)
    if calibration.distances is None:
        return Trust(scores)
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


def load_trust(folder: Path, width: int) -> Trust:
    """Read the trust data of a model folder, whose network has features of this width."""
    path = folder / FILE
    if not path.exists():
        return Trust()
    try:
        found = read_safetensors(path)
    except InvalidFile as problem:
        raise InvalidFile(path, f"{problem.problem}{_ADVICE}") from None
    scores, parts = found.get("scores"), [found[name] for name in _PARTS if name in found]
    wrong = any(value.dtype != torch.float32 for value in found.values()) or (scores is not None and scores.ndim != 1)
    if wrong or (parts and not _fit_together(parts, width)):
        raise InvalidFile(path, f"its parts are inconsistent, or belong to another network{_ADVICE}")
    if not parts:
        return Trust(scores)
    mean, directions, variances, threshold = parts
    return Trust(scores, Familiarity(mean, directions, variances, float(threshold)))


def _fit_together(parts: Sequence[Tensor], width: int) -> bool:
    dim, count = MAP_STATISTICS * width, parts[-2].numel() - 1 if len(parts) == len(_PARTS) else -1
    return [tuple(part.shape) for part in parts] == [(dim,), (count, dim), (count + 1,), ()]
