"""`vitling.train` and `vitling.load` in Python: results with attributes, and how they are shown."""

from __future__ import annotations

from vitling.runs.api import Result
from vitling.runs.report_files import _make_score


def make_result(**figures: object) -> Result:
    return Result({"backbone": "vit", "images": 30, "last": {"val": {"n": 10, **figures}}}, "runs/first")


def test_an_undefined_figure_is_called_undefined():
    result = make_result(mean_average_precision=None)
    assert "mAP undefined on 10 val images" in repr(result)
    assert result.accuracy is result.interval is None
    assert _make_score("last epoch", "val", result["last"]["val"]).value is None
