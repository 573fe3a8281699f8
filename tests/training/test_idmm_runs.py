"""IDMM in two processes equals IDMM in one for every classifier, with a checkpoint and a resume."""

from __future__ import annotations

import pytest

from tests.conftest import make_folder
from tests.tiny import relative_distance
from tests.training.helpers import ALONE, check_equal_runs, latest, lines, open_store, run_two_processes
from tests.training.idmm_run import KINDS, objective, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return a folder with the images, and with the results of two processes."""
    folder = tmp_path_factory.mktemp("idmm")
    make_folder(folder / "images", classes=3, each=11)
    run_two_processes("tests.training.idmm_run", folder / "images", folder / "two")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_resumed_processes_equal_one_uninterrupted(two, tmp_path, kind):
    store = open_store(two / "images")
    train(kind, store, tmp_path / "run", ALONE)
    start = objective(kind, 33).state_dict()
    check_equal_runs(tmp_path / "run", two / "two" / kind, start)
    one, other = (latest(folder) for folder in (tmp_path / "run", two / "two" / kind))
    assert one["best"]["epoch"] == other["best"]["epoch"] == 1
    assert relative_distance(one["best"]["weights"], other["best"]["weights"], start) < 1e-3
    for a, b in zip(lines(tmp_path / "run"), lines(two / "two" / kind), strict=True):
        assert abs(a["grad_norm"] - b["grad_norm"]) < 1e-3 * a["grad_norm"]
