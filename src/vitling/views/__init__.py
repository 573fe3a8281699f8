"""Random views, batched on the device, a stateless draw per image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.views.batch import BatchKey as BatchKey
    from vitling.views.batch import ViewBatch as ViewBatch
    from vitling.views.config import ViewChanges as ViewChanges
    from vitling.views.config import ViewsConfig as ViewsConfig
    from vitling.views.draws import Draws as Draws
    from vitling.views.plan import Blur as Blur
    from vitling.views.plan import Flip as Flip
    from vitling.views.plan import Grey as Grey
    from vitling.views.plan import Group as Group
    from vitling.views.plan import Jitter as Jitter
    from vitling.views.plan import Mix as Mix
    from vitling.views.plan import Plan as Plan
    from vitling.views.plan import Policy as Policy
    from vitling.views.plan import RandAugment as RandAugment
    from vitling.views.plan import Rescale as Rescale
    from vitling.views.plan import Rotate as Rotate
    from vitling.views.plan import Solarise as Solarise
    from vitling.views.renderer import Normaliser as Normaliser
    from vitling.views.renderer import Renderer as Renderer
    from vitling.views.renderer import Views as Views
    from vitling.views.renderer import eval_view as eval_view

_MODULES = {
    "Blur": "plan",
    "ViewBatch": "batch",
    "Draws": "draws",
    "Renderer": "renderer",
    "Flip": "plan",
    "Grey": "plan",
    "Group": "plan",
    "Jitter": "plan",
    "Mix": "plan",
    "Normaliser": "renderer",
    "BatchKey": "batch",
    "Plan": "plan",
    "Policy": "plan",
    "RandAugment": "plan",
    "Rescale": "plan",
    "Rotate": "plan",
    "Solarise": "plan",
    "Views": "renderer",
    "ViewChanges": "config",
    "ViewsConfig": "config",
    "eval_view": "renderer",
}
__getattr__ = make_getattr(__name__, _MODULES)
