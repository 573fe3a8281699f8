"""Networks by name: timm's through one adapter, and some that timm lacks. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone as Backbone
    from vitling.backbones.backbone import create as create
    from vitling.backbones.features import Features as Features
    from vitling.backbones.names import list_backbones as list_backbones
    from vitling.backbones.transfer import load_weights as load_weights

_MODULES = {
    "Backbone": "backbone",
    "Features": "features",
    "create": "backbone",
    "load_weights": "transfer",
    "list_backbones": "names",
}
__getattr__ = make_getattr(__name__, _MODULES)
