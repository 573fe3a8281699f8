"""`vitling train --baselines`: the simplest alternatives to a run, trained for at most the same time.

They see the same images and hold-out, and are evaluated on the same splits. The run's report shows them beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.backbones.backbone import make_entry
from vitling.console import Log, is_main_process
from vitling.errors import MachineFault, RunAborted, UserError
from vitling.runs.compare_methods import BASELINE, make_request
from vitling.runs.group import BASELINES
from vitling.runs.report import report_group, sum_seconds
from vitling.runs.train import train
from vitling.settings.config import TrainConfig

RANDOM = "random"  # the run's own network, without a first stage or other weights to start from
_OVERHEAD = 15.0  # seconds before and after training, which --minutes includes and a result's seconds do not


def check_baselines(names: Sequence[str], config: TrainConfig) -> None:
    """Raise UserError for unknown names, before anything is trained."""
    if names and config.seeds > 1:
        raise UserError("--baselines and --seeds cannot be combined. Train the seeds without --baselines.")
    if names and config.resume and not config.source:
        raise UserError("--baselines with --resume needs DATA and the flags of the first start too.")
    for name in names:
        if name != RANDOM:
            make_entry(name)  # raises UserError for an unknown name


def train_baselines(config: TrainConfig, result: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Train each baseline in RUN/baselines and write the run's report with all of them; return their results."""
    log, found = Log(silent=not is_main_process()), {}
    minutes = config.minutes or (sum_seconds(result) + _OVERHEAD) / 60
    for name in dict.fromkeys(names):
        if name == RANDOM and result.get("method") == BASELINE and not config.from_:
            log.info("The run itself starts at random; no baseline is needed for that.")
            continue
        log.info(f"Baseline {name}: labels only, at most {minutes:.3g} minutes.")
        try:
            found[name] = train(_make_request(config, name, result["backbone"], minutes))
        except MachineFault:
            raise
        except RunAborted as problem:
            log.warning(f"The baseline {name} stopped: {problem}")
    if config.report and is_main_process():
        report_group(config.out)
    return found


def _make_request(config: TrainConfig, name: str, backbone: str, minutes: float) -> TrainConfig:
    out = Path(config.out) / BASELINES / name
    if config.resume and (out / "config.json").exists():
        return TrainConfig(out=str(out), resume=True)
    own = {"backbone": backbone if name == RANDOM else name, "minutes": minutes, "from_": None, "final_size": None}
    return replace(make_request(config, BASELINE, out=str(out), **own), resume=False, report=False)
