"""Kills, signals and disk errors at the file operations of five commands; none may lose or double anything.

A few moments of each command, spread over all of them. `python -m tests.fault_campaign` tries all.
"""

from __future__ import annotations

import os

import pytest

from tests.fault_campaign import run_scenario
from tests.fault_scenarios import list_scenarios

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("VITLING_TEST_KILLS", "5"))  # states that SIGKILL leaves, tried of each command
TESTED = ("train", "train in two stages", "pretrain", "suite", "export")  # the campaign has more, and kills workers
FAULTS = int(os.environ.get("VITLING_TEST_FAULTS", "1"))  # moments of each other fault


@pytest.mark.parametrize("name", TESTED)
def test_an_interrupted_command_ends_as_if_nothing_had_happened(tmp_path, name):
    """Weights are bit-identical, no row of metrics.jsonl is lost or doubled, and no temporary file is left."""
    counts, failures = run_scenario(list_scenarios()[name], tmp_path / "work", KILLS, FAULTS)
    assert not failures, "\n".join(failures)
    assert counts["moments"] >= 10
    assert min(counts["tried"].values()) >= 1
