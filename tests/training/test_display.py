"""Progress lines of a run without a terminal."""

from __future__ import annotations

from vitling.console import LINE_INTERVAL, Log
from vitling.training.display import Display


def test_a_long_epoch_prints_lines(capsys):
    with Display(Log(), 100, 0) as display:
        display.step(1)
        assert capsys.readouterr().err == ""
        display.last_output -= LINE_INTERVAL
        display.step(7)
        display.step(8)
        assert capsys.readouterr().err.startswith("step 7 of 100  left 0:0")
        display.metrics(9, "epoch 1/10", last=False)
        display.step(10)
        assert capsys.readouterr().err.startswith("epoch 1/10  left")
