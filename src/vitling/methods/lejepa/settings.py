"""LeJEPA (Balestriero and LeCun, arXiv 2511.08544): settings, views and recipe. No torch.

From the paper: the loss with lambda 0.05, 1,024 directions and 17 knots; two global crops (30 % to 100 % of the image)
and local ones (5 % to 30 %) at 3/7 of their size (96 of 224 px); an MLP of three layers with batch norm down to a few
dimensions; AdamW with a learning rate of 5e-4 and a weight decay of 0.05, linear warm-up and a cosine; no teacher, no
stop-gradient, no predictor.

Chosen here: 112 px and 48 px as for the other methods; six local crops; 64 dimensions; DINO's colour changes for every
crop; batches of 256, 800 epochs and a final learning rate of 0 as in IDMM; a warm-up over a thirtieth of the run as in
DINO. None of this was tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitling.errors import UserError
from vitling.methods.dino.settings import local_size
from vitling.methods.method import Method, MethodPreset, Recipe, check_preset
from vitling.ranges import AT_LEAST_1, CROPS, FRACTION, MORE_CROPS
from vitling.training.config import OptimConfig
from vitling.views.plan import Blur, Flip, Grey, Group, Jitter, Plan, Policy, Solarise, Step

GLOBAL_SCALE, LOCAL_SCALE = (0.3, 1.0), (0.05, 0.3)  # fractions of the image's area


@dataclass(frozen=True)
class LeJEPAConfig:
    """LeJEPA: bring all views of an image together while the embeddings of all images follow a standard normal."""

    sigreg_weight: Annotated[float, FRACTION] = 0.05
    """Weight (lambda) of SIGReg, the distance to a standard normal; the distance between views has the rest."""
    directions: Annotated[int, AT_LEAST_1] = 1024
    """Random directions per step in which the embeddings are compared with a standard normal."""
    global_crops: Annotated[int, CROPS] = 2
    """Global crops per image; every view is compared with their mean."""
    local_crops: Annotated[int, MORE_CROPS] = 6
    """Local crops per image; 0 turns them off."""
    local_size: Annotated[int | None, AT_LEAST_1] = None
    """Pixels of a local crop. By default 3/7 of a global one (96 of 224, 48 of 112), in whole patches of 16 or 4."""
    hidden: Annotated[int, AT_LEAST_1] = 2048
    """Width of the projector's hidden layers."""
    dim: Annotated[int, AT_LEAST_1] = 64
    """Width of the embeddings."""

    def check(self) -> None:
        """Raise UserError if there is only one crop."""
        if self.global_crops + self.local_crops < 2:
            raise UserError("LeJEPA compares the crops of an image with each other; it needs at least two.")


def lejepa_plan(config: LeJEPAConfig, size: int = 112) -> Plan:
    """Plan the crops: global ones and, unless turned off, local ones."""
    steps: tuple[Step, ...] = (Flip(), Jitter(0.4, 0.4, 0.2, 0.1, prob=0.8), Grey(0.2), Blur(0.5), Solarise(0.2))
    groups = [Group(size, config.global_crops, Policy(scale=GLOBAL_SCALE, steps=steps))]
    if config.local_crops:
        local = Policy(scale=LOCAL_SCALE, steps=steps)
        groups.append(Group(config.local_size or local_size(size), config.local_crops, local))
    return Plan(tuple(groups))


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: MethodPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[LeJEPAConfig]:
    """Return the paper's settings; see the module's docstring for what it leaves open."""
    check_preset("LeJEPA", preset)
    optim = OptimConfig(lr=5e-4, min_lr=0.0, warmup_epochs=epochs / 30, weight_decay=0.05, clip=0.0)
    return Recipe(backbone, epochs, 256, size, optim, LeJEPAConfig())


METHOD = Method(
    "lejepa",
    "brings the views of an image together while all embeddings follow a standard normal",
    recipe,
    lejepa_plan,
    LeJEPAConfig,
    compares_images=True,
)
