"""Random views, batched on the device, a stateless draw per image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.views.batch import BatchKey as BatchKey
    from vitling.views.batch import ViewBatch as ViewBatch
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
    from vitling.views.draws import Draws as Draws
    from vitling.views.renderer import Normaliser as Normaliser
    from vitling.views.renderer import Renderer as Renderer
    from vitling.views.renderer import Views as Views
    from vitling.views.renderer import eval_view as eval_view

_MODULES = {
    "Blur": "config",
    "ViewBatch": "batch",
    "Draws": "draws",
    "Renderer": "renderer",
    "Flip": "config",
    "Grey": "config",
    "Group": "config",
    "Jitter": "config",
    "Mix": "config",
    "Normaliser": "renderer",
    "BatchKey": "batch",
    "Plan": "config",
    "Policy": "config",
    "RandAugment": "config",
    "Rotate": "config",
    "Solarise": "config",
    "Views": "renderer",
    "ViewChanges": "config",
    "ViewsConfig": "config",
    "eval_view": "renderer",
}
__getattr__ = make_getattr(__name__, _MODULES)
