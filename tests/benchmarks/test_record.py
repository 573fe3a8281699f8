"""Commands that benchmarks record repeat them."""

from __future__ import annotations

import importlib
import shlex
from argparse import Namespace
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_commands_keep_zeros_and_quote_values(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("record")
    options = Namespace(
        data="photos", folds=0, flags="--size 8", cold=True, test=False, seeds=[], only=None, out="x.json"
    )
    command = bench.format_command("doctor", options)
    assert command == "python benchmarks/doctor.py DATA --folds 0 --flags '--size 8' --cold"
    assert shlex.split(command)[-2] == "--size 8"
