"""Heat maps drawn from results, complete or not."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.pages.results import main, render_results
from vitling.papers.ledger import Ledger
from vitling.papers.pictures import heatmap, tsne
from vitling.papers.pictures.draw import draw
from vitling.papers.studies import find_study

WHERE = {"gpu": None, "cpus": 2, "commit": "abc", "packages": {}}


def row(run: str, seed: int = 0, **given) -> dict:
    return {"run": run, "seed": seed, "minutes": 1.0, "fingerprint": "f", "environment": WHERE, **given}


def results(tmp_path, *rows: dict) -> dict:
    """Make results of Table 5."""
    ledger = Ledger(tmp_path / "idmm-t5.json", find_study("idmm-t5"), None)
    for one in rows:
        ledger.record(one)
    return ledger.make_content()


def cell(method: str, to: str = "flowers102") -> str:
    return f"pvtv2-b0-{method}-to-{to}"


@pytest.fixture
def some(tmp_path) -> dict:
    return results(
        tmp_path,
        row(cell("random"), value=75.0),
        row(cell("idmm-flowers102"), value=92.0),
        row(cell("idmm-flowers102"), 1, value=93.0),
        row(cell("simclr-cars"), value=90.5),
        row(cell("supcon-cars"), failed="not finite"),
    )


def texts(figure: Figure) -> list[str]:
    (axes,) = figure.axes
    return [text.get_text() for text in axes.texts]


def test_cells_show_our_value_and_the_papers(some):
    figure = heatmap.make_figure(some)
    shown = texts(figure)
    assert len(figure.axes[0].patches) == 154
    assert shown[shown.index("92.5") + 1] == "paper 92.4"  # the mean of two seeds
    assert shown[shown.index("failed") + 1] == "paper 91.1"
    assert shown.count("not yet") == 150
    assert sum(text.startswith("paper") for text in shown) == 154
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["random start", "flowers102, IDMM"]
    assert len(labels) == 22
    title, foot = (text.get_text() for text in figure.texts)
    assert title.startswith("idmm-t5: pre-trained on one dataset")
    assert foot.startswith("3 of 154 cells measured, means over up to 2 seeds")


def test_texts_do_not_overlap(some):
    """Texts stay in their cells, and titles away from labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for study in (some, some | {"cells": some["cells"][:1], "title": "a long title " * 12}):
        figure = heatmap.make_figure(study)
        renderer = FigureCanvasAgg(figure).get_renderer()
        (axes,) = figure.axes
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        boxes = [text.get_window_extent(renderer) for text in (*axes.texts, *labels, *figure.texts)]
        for i, one in enumerate(boxes):
            assert figure.bbox.containsx(one.x0)
            assert figure.bbox.containsx(one.x1)
            assert figure.bbox.containsy(one.y0)
            assert figure.bbox.containsy(one.y1)
            assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_colours_are_per_column_and_baselines_lightest(some):
    ours = heatmap._average_runs(some)
    shades = heatmap._compute_shades(some, ours)
    assert shades == {cell("random"): 0.0, cell("idmm-flowers102"): 1.0, cell("simclr-cars"): 0.0}
    one = some | {"rows": some["rows"][:1]}
    assert heatmap._compute_shades(one, heatmap._average_runs(one)) == {cell("random"): 0.0}


def test_picture_is_small_and_reproducible(some, tmp_path):
    assert draw(some, tmp_path / "a.png")
    assert draw(some, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size < 100_000
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert Image.open(tmp_path / "a.png").width > 600
    assert not draw(some | {"rows": []}, tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


def test_results_are_redrawn_and_linked(some, tmp_path):
    main(str(tmp_path), str(tmp_path / "results.md"))
    assert (tmp_path / "idmm-t5.png").exists()
    text = (tmp_path / "results.md").read_text()
    assert "![idmm-t5](../results/idmm-t5.png)" in text
    assert text == render_results(tmp_path)
    (tmp_path / "idmm-t5.png").unlink()
    assert "![" not in render_results(tmp_path)


def test_tsne_shows_every_run(tmp_path):
    study = find_study("idmm-f2")
    ledger = Ledger(tmp_path / "idmm-f2.json", study, None)
    random = np.random.default_rng(0)
    for i, run in enumerate(study.runs):
        ledger.record(row(run.name, value=50.0 + i, after=90.0 + i / 2))
        places = {when: random.normal(size=(1500, 2)) for when in ("before", "after")}
        (tmp_path / f"{run.name}-seed0").mkdir()
        np.savez(tmp_path / f"{run.name}-seed0" / "tsne.npz", labels=random.integers(0, 10, 1500), **places)
    figure = tsne.make_figure(ledger.make_content(), tmp_path)
    assert len(figure.axes) == 2 * len(study.runs) == 16
    assert figure.axes[1].get_title() == "SimCLR"
    assert figure.axes[9].get_xlabel() == "5-NN 90.5 %"
    assert draw(ledger.make_content(), tmp_path / "idmm-f2.png", tmp_path)
    assert (tmp_path / "idmm-f2.png").stat().st_size < 100_000
    assert not draw(ledger.make_content(), tmp_path / "idmm-f2.png")  # by `make results`: the runs are elsewhere
    (tmp_path / f"{study.runs[3].name}-seed0" / "tsne.npz").unlink()
    assert tsne.make_figure(ledger.make_content(), tmp_path) is None
