"""The methods of pre-training by name. No torch.

To add a method, give it a folder with its settings, recipe, loss and `METHOD`, and name it here twice.
"""

from __future__ import annotations

from typing import Literal

from vitling.methods import byol, densecl, dino, esvit, idmm, moco_v2, moco_v3, simclr, supcon, supervised
from vitling.methods.method import Method, MethodPreset

MethodName = Literal["idmm", "supervised", "simclr", "supcon", "moco-v2", "moco-v3", "byol", "dino", "esvit", "densecl"]
_FOLDERS = (idmm, supervised, simclr, supcon, moco_v2, moco_v3, byol, dino, esvit, densecl)

METHODS: dict[str, Method] = {folder.METHOD.name: folder.METHOD for folder in _FOLDERS}


def default_preset(method: str, optimiser: str | None) -> MethodPreset:
    """Return the method's default preset, or the paper's if the user chose SGD, which `adamw` does not have."""
    preset = METHODS[method].default_preset
    return "paper" if preset == "adamw" and optimiser == "sgd" else preset
