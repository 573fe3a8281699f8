"""Random views, batched on the device, a stateless draw per image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import exports

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
    from vitling.views.config import ViewsConfig as ViewsConfig
    from vitling.views.drawing import Drawing as Drawing
    from vitling.views.drawing import Normaliser as Normaliser
    from vitling.views.drawing import Place as Place
    from vitling.views.drawing import Views as Views
    from vitling.views.drawing import eval_view as eval_view
    from vitling.views.draws import Draws as Draws

_HOMES = {
    "Blur": "config",
    "Drawing": "drawing",
    "Draws": "draws",
    "Flip": "config",
    "Grey": "config",
    "Group": "config",
    "Jitter": "config",
    "Mix": "config",
    "Normaliser": "drawing",
    "Place": "drawing",
    "Plan": "config",
    "Policy": "config",
    "RandAugment": "config",
    "Rotate": "config",
    "Solarise": "config",
    "Views": "drawing",
    "ViewsConfig": "config",
    "eval_view": "drawing",
}
__getattr__ = exports(__name__, _HOMES)
