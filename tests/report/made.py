"""Made reports, without a run behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitling.report.data import ClassScore, Curve, Errors, Origin, ReportData, RunReport, Score, Setting, Stage

HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028\"'"


def make_run(name: str = "runs/first", **changes: Any) -> RunReport:
    """Make a run with two stages, two loss terms and three classes, one of them with a hostile name."""
    score = Score("last epoch", "test", "top-1 accuracy", 0.9, 40, (0.77, 0.96), (("log loss", "0.3100"),))
    settings = (
        Setting("epochs", "20", "plan", "few images"),
        Setting("seed", "0", "default", ""),
        Setting("size", "8", "explicit", "passed by you"),
    )
    epochs = tuple(range(1, 21))
    curves = [Curve("First stage", n, epochs, tuple(9 / e for e in epochs)) for n in ("loss", "global", "local", "lr")]
    curves += [Curve("Second stage", n, epochs, tuple(1 / e for e in epochs)) for n in ("loss", "classification")]
    curves += [Curve("Second stage", "val/top1", epochs[::2], tuple(1 - 1 / e for e in epochs[::2]))]
    names = ("cat", HOSTILE, "dog")
    classes = tuple(ClassScore(one, 10 + i, 0.5 + 0.1 * i, 0.8) for i, one in enumerate(names))
    run = RunReport(
        name=name,
        headline=score,
        scores=(score,),
        facts=(("Data", "100 training images"), ("Machine", "2 CPU cores")),
        warnings=("Something to know.",),
        stages=(Stage("First stage", settings), Stage("Second stage", settings)),
        curves=tuple(curves),
        origin=Origin("vitling train x", "abc123", (("Seed", "0"),), (("torch", "2.11"),), '{"seed": 0}'),
        class_names=names,
        errors=Errors("test", ((8, 1, 1), (0, 11, 0), (2, 0, 10)), classes),
    )
    return replace(run, **changes)


def make_report(*runs: RunReport) -> ReportData:
    runs = runs or (make_run(),)
    return ReportData(runs[0].name, "2026-01-01 12:00", "0.1.0", runs)
