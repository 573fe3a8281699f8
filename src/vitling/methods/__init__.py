"""The methods of pre-training by name. No torch.

To add a method, give it a folder with its settings, recipe, loss and `METHOD`, and add it to the list here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vitling.methods import byol, densecl, dino, esvit, idmm, lejepa, moco_v2, moco_v3, simclr, supcon, supervised
from vitling.methods.method import Method, MethodPreset

_FOLDERS = (idmm, supervised, simclr, supcon, moco_v2, moco_v3, byol, dino, esvit, densecl, lejepa)

METHODS: dict[str, Method] = {folder.METHOD.name: folder.METHOD for folder in _FOLDERS}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]


def default_preset(method: str, optimiser: str | None) -> MethodPreset:
    """Return the method's default preset, or the paper's if the user chose SGD, which `adamw` does not have."""
    preset = METHODS[method].default_preset
    return "paper" if preset == "adamw" and optimiser == "sgd" else preset
