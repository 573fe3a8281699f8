"""What is minimised. One file an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.objectives.byol import BYOL as BYOL
    from vitling.objectives.config import BYOLConfig as BYOLConfig
    from vitling.objectives.config import DenseCLConfig as DenseCLConfig
    from vitling.objectives.config import DINOConfig as DINOConfig
    from vitling.objectives.config import DRLocConfig as DRLocConfig
    from vitling.objectives.config import EsViTConfig as EsViTConfig
    from vitling.objectives.config import IDMMConfig as IDMMConfig
    from vitling.objectives.config import MoCoV2Config as MoCoV2Config
    from vitling.objectives.config import MoCoV3Config as MoCoV3Config
    from vitling.objectives.config import SimCLRConfig as SimCLRConfig
    from vitling.objectives.config import SupConConfig as SupConConfig
    from vitling.objectives.config import SupervisedConfig as SupervisedConfig
    from vitling.objectives.config import dino_plan as dino_plan
    from vitling.objectives.config import drloc_weight as drloc_weight
    from vitling.objectives.config import idmm_plan as idmm_plan
    from vitling.objectives.densecl import DenseCL as DenseCL
    from vitling.objectives.dino import DINO as DINO
    from vitling.objectives.drloc import DRLoc as DRLoc
    from vitling.objectives.drloc import DRLocTerm as DRLocTerm
    from vitling.objectives.drloc import drloc_term as drloc_term
    from vitling.objectives.esvit import EsViT as EsViT
    from vitling.objectives.idmm import IDMM as IDMM
    from vitling.objectives.moco_v2 import MoCoV2 as MoCoV2
    from vitling.objectives.moco_v3 import MoCoV3 as MoCoV3
    from vitling.objectives.moments import Moment as Moment
    from vitling.objectives.moments import Watcher as Watcher
    from vitling.objectives.objective import Batch as Batch
    from vitling.objectives.objective import Objective as Objective
    from vitling.objectives.progress import Progress as Progress
    from vitling.objectives.simclr import SimCLR as SimCLR
    from vitling.objectives.supcon import SupCon as SupCon
    from vitling.objectives.supervised import Supervised as Supervised

_HOMES = {
    "BYOL": "byol",
    "BYOLConfig": "config",
    "DINO": "dino",
    "DINOConfig": "config",
    "DenseCL": "densecl",
    "DenseCLConfig": "config",
    "EsViT": "esvit",
    "EsViTConfig": "config",
    "MoCoV2": "moco_v2",
    "MoCoV2Config": "config",
    "MoCoV3": "moco_v3",
    "MoCoV3Config": "config",
    "dino_plan": "config",
    "IDMM": "idmm",
    "Batch": "objective",
    "DRLoc": "drloc",
    "DRLocConfig": "config",
    "DRLocTerm": "drloc",
    "IDMMConfig": "config",
    "Moment": "moments",
    "Objective": "objective",
    "Progress": "progress",
    "Watcher": "moments",
    "SimCLR": "simclr",
    "SimCLRConfig": "config",
    "SupCon": "supcon",
    "SupConConfig": "config",
    "Supervised": "supervised",
    "SupervisedConfig": "config",
    "drloc_term": "drloc",
    "drloc_weight": "config",
    "idmm_plan": "config",
}
__getattr__ = make_getattr(__name__, _HOMES)
