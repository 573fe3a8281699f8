"""Random views, batched on the device, a stateless draw per image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.views.config import Blur as Blur
    from vitling.views.config import Flip as Flip
    from vitling.views.config import Grey as Grey
    from vitling.views.config import Group as Group
    from vitling.views.config import Jitter as Jitter
    from vitling.views.config import Mix as Mix
    from vitling.views.config import Plan as Plan
    from vitling.views.config import Policy as Policy
    from vitling.views.config import RandAugment as RandAugment
    from vitling.views.config import Rotate as Rotate
    from vitling.views.config import Solarise as Solarise
    from vitling.views.config import ViewChanges as ViewChanges
    from vitling.views.config import ViewsConfig as ViewsConfig
    from vitling.views.drawing import Drawing as Drawing
    from vitling.views.drawing import Place as Place
    from vitling.views.draws import Draws as Draws
    from vitling.views.easel import Easel as Easel
    from vitling.views.easel import Normaliser as Normaliser
    from vitling.views.easel import Views as Views
    from vitling.views.easel import eval_view as eval_view

_HOMES = {
    "Blur": "config",
    "Drawing": "drawing",
    "Draws": "draws",
    "Easel": "easel",
    "Flip": "config",
    "Grey": "config",
    "Group": "config",
    "Jitter": "config",
    "Mix": "config",
    "Normaliser": "easel",
    "Place": "drawing",
    "Plan": "config",
    "Policy": "config",
    "RandAugment": "config",
    "Rotate": "config",
    "Solarise": "config",
    "Views": "easel",
    "ViewChanges": "config",
    "ViewsConfig": "config",
    "eval_view": "easel",
}
__getattr__ = make_getattr(__name__, _HOMES)
