"""DRLoc (Liu et al., NeurIPS 2021): settings and weights of an auxiliary loss. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from vitling.ranges import AT_LEAST_1, NOT_NEGATIVE, Range

Variant = Literal["l1", "signed", "ce", "reg", "all", "exhaustive"]
Target = Literal["offset/k", "offset/(k-1)", "offset"]
Pooling = Literal["adaptive", "released"]
Schedule = Literal["constant", "released"]
Norm = Literal["published", "before", "after"]
Init = Literal["torch", "trunc_normal"]


@dataclass(frozen=True)
class DRLocConfig:
    """Dense relative localisation: predict from two tokens how far apart they are. With --aux drloc."""

    variant: Variant = "l1"
    """l1: distances; signed: with direction; ce, reg: as classes; all: in every block; exhaustive: from every token."""
    weight: Annotated[float | None, NOT_NEGATIVE] = None
    """Weight of the term in the loss. By default the paper's for the backbone: 0.5 for Swin, 0.1 or 0.01 for others."""
    schedule: Schedule = "constant"
    """constant (paper), or rising over 20 epochs and then falling to 0 at the end of a longer run (released code)."""
    pairs: Annotated[int, AT_LEAST_1] = 64
    """Token pairs drawn per image; exhaustive has one per token."""
    hidden: Annotated[int, AT_LEAST_1] = 512
    """Width of the MLP's two hidden layers."""
    grid: Annotated[int, Range(2)] = 7
    """Average a grid with a longer side than this down to it; all uses every grid as it is."""
    pooling: Pooling = "adaptive"
    """adaptive: equal parts, 2 x 2 from 14 to 7 (paper); released: 3 x 3 with stride 2 (released code)."""
    target: Target = "offset/k"
    """Prediction target, except for ce and reg: offsets divided by the grid's side k (paper), or undivided (code)."""
    norm: Norm = "published"
    """Take the grid before or after the network's last norm; published: as in the released code for this backbone."""
    init: Init = "torch"
    """Initial weights of the MLP: torch's own, or normal with standard deviation 0.02 and biases of 0, as in the
    released code for Swin and T2T-ViT."""


_WEIGHTS = (  # the first matching prefix counts
    ("swin", 0.5),  # DRLoc, Sec. 4
    ("t2t", 0.1),  # Sec. 4
    ("cvt", 0.1),  # Sec. 4
    ("vit_base", 0.01),  # supplement Sec. 3
    ("deit_base", 0.01),  # the same network
    # Not published. A plain ViT of the size of T2T's trunk has T2T's weight.
    ("vit", 0.1),
    ("deit", 0.1),
    # The paper trained ResNet-50 too but gives no weight. It and PVTv2 learn positions from convolutions and zero
    # padding, as CvT does, and the smaller published weight does less harm where the task is easy.
    ("resnet", 0.1),
    ("pvt", 0.1),
)


def drloc_weight(backbone: str) -> float:
    """Return the paper's weight (lambda) for a backbone or one chosen here; 0.1, the most frequent, for others."""
    return next((weight for prefix, weight in _WEIGHTS if backbone.startswith(prefix)), 0.1)


def constant_loss(config: DRLocConfig, side: int) -> float | None:
    """Return the loss of the best prediction that ignores the image, on a grid of side x side; None where it depends on
    more than the grid. A run whose loss stays there has not learnt the task."""
    offsets = sorted(a - b for a in range(side) for b in range(side))
    match config.variant:
        case "reg" | "all":
            return None
        case "ce":  # entropy of the offsets, on both axes
            shares = [offsets.count(offset) / len(offsets) for offset in set(offsets)]
            return -2 * sum(share * math.log(share) for share in shares)
    targets = offsets if config.variant == "signed" else sorted(abs(offset) for offset in offsets)
    median = targets[len(targets) // 2]
    unit = {"offset": 1, "offset/k": side, "offset/(k-1)": max(side - 1, 1)}[config.target]
    return sum(abs(target - median) for target in targets) / len(targets) / unit
