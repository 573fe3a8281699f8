"""DRLoc (Liu et al., NeurIPS 2021): settings and weights of an auxiliary loss. No torch."""

from __future__ import annotations

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
