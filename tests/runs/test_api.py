"""`vitling.train`, `segment`, `detect` and `load` in Python: results with attributes, and how they are shown."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

import vitling
from tests.conftest import make_folder
from tests.runs.drawn_scenes import make_mask_folder
from vitling.data.sources import schemes
from vitling.errors import UserError
from vitling.notebook import LiveView, open_handle
from vitling.runs.api import Result
from vitling.runs.report_files import _make_score


@pytest.mark.parametrize("call", [vitling.train, vitling.detect, vitling.segment, vitling.load])
def test_every_function_knows_the_papers_datasets(call, tmp_path, monkeypatch):
    monkeypatch.setattr(schemes, "READERS", {})
    with pytest.raises(UserError):
        call(str(tmp_path / "missing"), str(tmp_path / "run"))
    assert "flowers102" in schemes.READERS


def make_result(**figures: object) -> Result:
    return Result({"backbone": "vit", "images": 30, "last": {"val": {"n": 10, **figures}}}, "runs/first")


def test_an_undefined_figure_is_called_undefined():
    result = make_result(mean_average_precision=None)
    assert "mAP undefined on 10 val images" in repr(result)
    assert result.accuracy is result.interval is None
    assert _make_score("last epoch", "val", result["last"]["val"]).value is None


def test_the_score_is_the_main_metric_of_a_task():
    for name, text in (("top1", "accuracy 25.0%"), ("mean_iou", "mIoU 25.00%"), ("box_ap", "box AP 25.00%")):
        result = make_result(mask_ap=0.5, pixel_accuracy=0.6, **{name: 0.25})
        assert result.score == 0.25
        assert result.figures.metric == name
        assert f"{text} on 10 val images" in repr(result)
        assert result.accuracy == (0.25 if name == "top1" else None)
    assert Result({"last": {}}, "runs/first").score is None


def test_notebooks_show_figures_curves_and_the_report(tmp_path):
    result = make_result(top1=0.8)
    result.run = tmp_path / "<b>"
    result.run.mkdir()
    lines = [{"kind": "epoch", "step": e, "epoch": e, "loss": 1 / e, "val/top1": e / 5} for e in (1, 2, 3)]
    (result.run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert result.report is None
    (result.run / "report.html").write_text("")
    assert result.report == result.run / "report.html"
    html = result._repr_html_()
    assert "accuracy 80.0% on 10 val images" in html
    assert html.count("<polyline") == 2
    assert "%3Cb%3E/report.html" in html
    assert "<b>/report" not in html


class FakeNotebook:
    """Stands for IPython with a kernel: it keeps what is displayed."""

    def __init__(self, monkeypatch, **shell):
        self.shown: list[str] = []
        display = SimpleNamespace(display=self.display)
        shell = SimpleNamespace(**shell)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, content, display_id):
        assert display_id is True
        return self

    def update(self, content):
        self.shown.append(content._repr_html_())


def train(folder, out, **settings):
    tiny = {"size": 8, "backbone": "vit_micro_patch4_32", "epochs": 3, "method": "supervised", "val": 0.3}
    fast = {"loop.trackers": "none", "loop.device": "cpu", "loop.log_every": 1, "report": False}
    return vitling.train(make_folder(folder), out=out, **tiny, **fast, **settings)


def test_training_is_shown_live_in_a_notebook(tmp_path, monkeypatch, capsys):
    notebook = FakeNotebook(monkeypatch, kernel=object())
    result = train(tmp_path / "images", tmp_path / "run")
    assert notebook.shown
    assert "epoch 3/3" in notebook.shown[-1]
    assert "loss: " in notebook.shown[-1]
    assert "val/top1: " in notebook.shown[-1]
    assert "epoch 3/3" not in capsys.readouterr().err
    assert result.model._repr_html_().count("<polyline") == 2


def test_segmentation_returns_a_result_and_is_shown_live(tmp_path, monkeypatch):
    notebook = FakeNotebook(monkeypatch, kernel=object())
    folder = make_mask_folder(tmp_path / "masks", {"train": 4, "val": 2})
    tiny = {"size": 32, "store_size": 32, "backbone": "vit_nano_patch4_32", "width": 16, "batch": 4, "epochs": 2}
    fast = {"loop.trackers": ("none",), "loop.device": "cpu", "report": False, "eval_every": 1}
    result = vitling.segment(folder, out=tmp_path / "run", **tiny, **fast)
    assert result.score == result["last"]["val"]["mean_iou"]
    assert result.run == tmp_path / "run"
    assert result.report is None
    assert "val/mean_iou: " in notebook.shown[-1]
    model = vitling.load(tmp_path / "run")
    assert type(result.model) is type(model)
    assert model.class_names == result.model.class_names
    html = model._repr_html_()
    assert "upernet of " in html
    assert "mIoU " in html
    assert html.count("<polyline") == 2


def test_updates_are_at_most_one_in_a_second(monkeypatch):
    now, shown = 0.0, []
    monkeypatch.setattr("vitling.notebook.time.monotonic", lambda: now)
    view = LiveView(SimpleNamespace(update=shown.append), 100)
    for step in range(1, 101):
        now += 0.1
        view.show(step, "left", last=step == 100)
    assert len(shown) == 11


@pytest.mark.parametrize("shell", [{}, None])
def test_a_terminal_is_no_notebook(monkeypatch, shell):
    """IPython in a terminal has no kernel; plain Python has no IPython."""
    if shell is None:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        FakeNotebook(monkeypatch, **shell)
    assert open_handle() is None
