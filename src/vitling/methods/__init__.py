"""Pre-training methods by name. Imports no torch.

To add a method, give it a folder with settings.py (settings, recipe, `METHOD`) and loss.py, and list it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vitling.methods.byol.settings import METHOD as BYOL
from vitling.methods.densecl.settings import METHOD as DENSECL
from vitling.methods.dino.settings import METHOD as DINO
from vitling.methods.esvit.settings import METHOD as ESVIT
from vitling.methods.idmm.settings import METHOD as IDMM
from vitling.methods.lejepa.settings import METHOD as LEJEPA
from vitling.methods.method import MethodPreset
from vitling.methods.moco_v2.settings import METHOD as MOCO_V2
from vitling.methods.moco_v3.settings import METHOD as MOCO_V3
from vitling.methods.simclr.settings import METHOD as SIMCLR
from vitling.methods.supcon.settings import METHOD as SUPCON
from vitling.methods.supervised.settings import METHOD as SUPERVISED

_ALL = (IDMM, SUPERVISED, SIMCLR, SUPCON, MOCO_V2, MOCO_V3, BYOL, DINO, ESVIT, DENSECL, LEJEPA)
METHODS = {method.name: method for method in _ALL}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]


def default_preset(method: str, optimiser: str | None) -> MethodPreset:
    """Return the method's default preset, or the paper's if the user chose SGD, which `adamw` does not have."""
    preset = METHODS[method].default_preset
    return "paper" if preset == "adamw" and optimiser == "sgd" else preset
