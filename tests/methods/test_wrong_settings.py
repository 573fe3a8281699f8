"""Settings of methods that are out of range, or that contradict each other."""

from __future__ import annotations

import math

import pytest

from vitling.errors import UserError
from vitling.methods.byol.settings import BYOLConfig
from vitling.methods.densecl.settings import DenseCLConfig
from vitling.methods.dino.settings import DINOConfig
from vitling.methods.esvit.settings import EsViTConfig
from vitling.methods.lejepa.settings import LeJEPAConfig
from vitling.methods.moco_v2.settings import MoCoV2Config
from vitling.methods.moco_v3.settings import MoCoV3Config
from vitling.ranges import check_ranges


def check(config) -> None:
    check_ranges(config)
    config.check()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MoCoV2Config(queue=0), "--queue 0: must be at least 1"),
        (MoCoV2Config(temperature=0.0), r"--temperature 0\.0: must be above 0"),
        (MoCoV2Config(momentum=1.1), "at least 0 and at most 1"),
        (MoCoV3Config(dim=0), "--dim 0"),
        (MoCoV3Config(temperature=math.inf), "above 0"),
        (MoCoV3Config(momentum=-0.1), "at least 0 and at most 1"),
        (DenseCLConfig(dense_weight=1.5), r"--dense-weight 1\.5: must be at least 0 and at most 1"),
        (BYOLConfig(dim=0), "--dim "),
        (BYOLConfig(hidden=-1), "--hidden "),
        (BYOLConfig(momentum=2.0), "--momentum "),
        (BYOLConfig(regions="some"), "--regions "),
        (BYOLConfig(region_weight=0.0), "--region-weight "),
        (DINOConfig(prototypes=0), "--prototypes .*: must be"),
        (DINOConfig(local_crops=-1), "--local-crops .*: must be"),
        (DINOConfig(local_size=0), "--local-size .*: must be"),
        (DINOConfig(global_crops=0), "--global-crops .*: must be"),
        (DINOConfig(temperature=0.0), "--temperature .*: must be"),
        (DINOConfig(teacher_start=-1.0), "--teacher-start .*: must be"),
        (DINOConfig(centre=1.5), "--centre .*: must be"),
        (DINOConfig(freeze_epochs=-1.0), "--freeze-epochs .*: must be"),
        (DINOConfig(global_crops=1, local_crops=0), "at least two"),
        (EsViTConfig(match="nearest"), "--match nearest: choose from"),
        (EsViTConfig(region_loss="l1"), "--region-loss l1: choose from"),
        (EsViTConfig(view_weight=-1.0), r"--view-weight -1\.0"),
        (EsViTConfig(region_weight=math.inf), "--region-weight inf"),
        (EsViTConfig(view_weight=0.0, region_weight=0.0), "above 0"),
        (EsViTConfig(region_stride=0), "--region-stride 0: must be at least 1"),
        (EsViTConfig(region_from=-1), "--region-from -1"),
        (EsViTConfig(region_from=3, region_weight=0.0), "needs both losses"),
        (EsViTConfig(region_from=3, view_weight=0.0), "needs both losses"),
        (EsViTConfig(prototypes=0), "--prototypes 0"),
        (LeJEPAConfig(sigreg_weight=1.5), r"--sigreg-weight 1\.5: must be at least 0 and at most 1"),
        (LeJEPAConfig(directions=0), "--directions 0: must be at least 1"),
        (LeJEPAConfig(dim=0), "--dim 0: must be at least 1"),
        (LeJEPAConfig(local_crops=-1), "--local-crops -1: must be at least 0"),
        (LeJEPAConfig(global_crops=1, local_crops=0), "at least two"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        check(config)
