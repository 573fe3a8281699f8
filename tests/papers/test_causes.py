"""Runs that look for the causes of a difference change what their name says, and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from vitling.papers.studies import find_study


@cache
def read_settings(study: str) -> dict[str, dict[str, Any]]:
    return {run.name: run.task.settings for run in find_study(study).runs}


def differences(study: str, run: str, other_study: str, other: str) -> dict[str, Any]:
    """Settings of a run that another has not."""
    settings, before = read_settings(study)[run], read_settings(other_study)[other]
    names = settings.keys() | before.keys()
    return {name: settings.get(name) for name in names if settings.get(name) != before.get(name)}


@pytest.mark.parametrize("net", ["cvt-13", "swin-t", "t2t-vit-14"])
@pytest.mark.parametrize("loss", ["", "-drloc"])
def test_drloc_as_on_eight_gpus(net, loss):
    run = f"{net}-flowers102"
    parts, group = {"views.mix_parts": 8}, {"loop.batch_norm_group": 128} if net == "cvt-13" else {}
    assert differences("drloc-t3-causes", f"{run}-parts8{loss}", "drloc-t3", run + loss) == parts
    assert differences("drloc-t3-causes", f"{run}-gpus{loss}", "drloc-t3-released", run + loss) == parts | group
    if group:
        assert differences("drloc-t3-causes", f"{run}-group128{loss}", "drloc-t3", run + loss) == group
    if net == "t2t-vit-14":
        changed = differences("drloc-t3-causes", f"{run}-no-drop-path{loss}", "drloc-t3", run + loss)
        assert changed == {"objective.drop_path": 0.0}


CHANGES: dict[tuple[str, str, str, str], dict[str, Any]] = {
    ("idmm-t8-causes", "plain-two-crops", "idmm-t8", "plain"): {"pretrain.idmm.crops": 2},
    ("idmm-t8-causes", "112px-two-crops", "idmm-t8", "112px"): {"pretrain.idmm.crops": 2},
    ("idmm-t2-causes", "simclr-adamw-t0.5", "idmm-t2-causes", "simclr-adamw"): {"pretrain.simclr.temperature": 0.5},
    ("idmm-t2-causes", "supcon-adamw-t0.5", "idmm-t2-causes", "supcon-adamw"): {"pretrain.supcon.temperature": 0.5},
    ("idmm-t2-causes", "dino-256", "idmm-t2", "dino"): {"pretrain.dino.prototypes": 256},
    ("idmm-200-causes", "random-200-batch128", "idmm-200", "random-200"): {"finetune.batch": 128},
    ("idmm-200-causes", "random-800-batch128", "idmm-t3", "random-800"): {"finetune.batch": 128},
}


@pytest.mark.parametrize("runs", CHANGES, ids="-".join)
def test_idmm_and_its_baselines(runs):
    study, run, other_study, other = runs
    found = differences(study, f"deit-tiny-flowers102-{run}", other_study, f"deit-tiny-flowers102-{other}")
    assert found == CHANGES[runs]


def test_esvit_with_later_regions_and_longer_runs():
    def change(run: str, other: str) -> dict[str, Any]:
        return differences("esvit-small", f"swin-t-{run}-knn", "esvit-small", f"swin-t-{other}-knn")

    for later, both in (("later", "both"), ("later-place", "place")):
        (changed,) = change(later, both).items()
        assert changed[0].endswith("esvit.region_from")
        assert changed[1] == 67
    for loss in ("views", "both", "place"):
        (changed,) = change(f"{loss}-400", loss).items()
        assert changed[0].endswith("epochs")
        assert changed[1] == 400
