"""The charts' specifications: what they show, without a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.made import HOSTILE, make_dense_run, make_run
from vitling.report.confusion import MATRIX_MOST, list_confused_pairs, make_confusion_chart
from vitling.report.data import Bin, ClassScore, Errors, Reliability
from vitling.report.specs import make_class_chart, make_curve_charts, make_reliability_chart, make_score_charts


def lines(chart) -> set[str]:
    return {row["line"] for row in chart.spec["data"]["values"]}


def test_one_run_shows_the_terms_of_its_loss_by_stage():
    charts = {chart.title: chart for chart in make_curve_charts([make_run()])}
    assert list(charts) == [
        "First stage: training loss",
        "First stage: learning rate",
        "Second stage: training loss",
        "Second stage: validation accuracy",
    ]
    assert lines(charts["First stage: training loss"]) == {"loss", "global", "local"}
    assert lines(charts["Second stage: training loss"]) == {"loss"}  # its only term is the loss itself
    assert "color" not in charts["Second stage: training loss"].spec["encoding"]


def test_several_runs_share_each_chart():
    charts = {
        chart.title: chart for chart in make_curve_charts([make_run("a"), make_run("b", curves=make_run().curves[4:])])
    }
    assert lines(charts["Second stage: training loss"]) == {"a", "b"}
    assert lines(charts["First stage: training loss"]) == {"a"}
    assert charts["Second stage: validation accuracy"].columns[0].title == "run"


def test_a_run_of_one_stage_is_compared_with_the_second_stage_of_another():
    single = make_run("b", curves=(replace(make_run().curves[4], stage=""),))
    charts = {chart.title: chart for chart in make_curve_charts([make_run("a"), single])}
    assert lines(charts["Second stage: training loss"]) == {"a", "b"}
    assert [chart.title for chart in make_curve_charts([single])] == ["Training loss"]


def test_charts_have_different_ids():
    ids = [chart.id for chart in make_curve_charts([make_run()])]
    assert len(ids) == len(set(ids))


def test_scores_of_one_run_need_no_chart():
    assert not make_score_charts([make_run()])
    assert not make_score_charts([make_run("a"), make_run("b", headline=None)])
    (chart,) = make_score_charts([make_run("a"), make_run("b")])
    assert [(row["run"], row["low"], row["high"]) for row in chart.spec["data"]["values"]] == [
        ("a", 0.77, 0.96),
        ("b", 0.77, 0.96),
    ]


def test_each_metric_has_its_own_axis():
    runs = [make_dense_run(f"{metric}{i}", metric) for i in range(2) for metric in ("box AP", "mIoU")]
    charts = make_score_charts([*runs, make_run("classifier")])
    assert [chart.title for chart in charts] == [f"The runs side by side: {metric}" for metric in ("box AP", "mIoU")]
    for chart, metric in zip(charts, ("box AP", "mIoU")):
        assert [row["run"] for row in chart.spec["data"]["values"]] == [f"{metric}0", f"{metric}1"]
        assert len(chart.spec["layer"]) == 1  # no intervals
        assert "interval" not in chart.description
    (mixed,) = make_score_charts([make_run("a"), make_run("b", headline=replace(make_run().headline, interval=None))])
    assert mixed.spec["layer"][0]["transform"] == [{"filter": "isValid(datum.low)"}]


def test_a_run_has_one_colour_in_all_charts():
    charts = make_curve_charts([make_run("a", curves=make_run().curves[:1]), make_run("b")])
    alone = next(chart for chart in charts if chart.title == "Second stage: validation accuracy")
    colour = alone.spec["encoding"]["color"]
    assert colour["scale"]["domain"] == ["a", "b"]
    assert colour["legend"]["values"] == ["b"]
    assert alone.columns[0].title == "run"


def test_confusion_matrix_counts_and_shares():
    run = make_run()
    chart = make_confusion_chart(run.errors, run.class_names, 0)
    cells = {(row["true"], row["predicted"]): row for row in chart.spec["data"]["values"]}
    assert cells["cat", HOSTILE]["n"] == 1
    assert cells["dog", "cat"]["share"] == pytest.approx(2 / 12)
    assert len(cells) == 9


def test_names_of_classes_are_in_no_expression():
    """Vega evaluates the strings under these keys."""
    run = make_run()
    chart = make_confusion_chart(run.errors, run.class_names, 0)

    def expressions(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in ("filter", "test", "labelExpr", "calculate", "expr"):
                    yield str(inner)
                yield from expressions(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from expressions(inner)

    assert not any("script" in text for text in expressions(chart.spec))


def test_many_classes_have_the_matrix_of_the_most_confused():
    n = MATRIX_MOST + 10  # class i is confused with the next one i + 1 times
    confusion = [[5 if i == j else int(j == i + 1) * (i + 1) for j in range(n)] for i in range(n)]
    confusion[20][0] = 2  # a class that is not shown
    errors = Errors("val", tuple(map(tuple, confusion)), tuple(ClassScore(str(i), 5, 0.5, 0.5) for i in range(n)))
    chart = make_confusion_chart(errors, [str(i) for i in range(n)], 0)
    assert chart.title == f"Confusion matrix of the {MATRIX_MOST} most confused of {n} classes"
    cells = {(row["t"], row["p"]): row for row in chart.spec["data"]["values"]}
    assert {t for t, _ in cells} == {p for _, p in cells} == set(range(10, n))
    assert cells[12, 13]["n"] == 13
    assert cells[12, 13]["share"] == 13 / 18
    assert "150 of 877 images are on the diagonal" in chart.description
    assert "2 were predicted as other classes" in chart.description
    assert list_confused_pairs(errors, 2) == [(n - 2, n - 1, n - 1), (n - 3, n - 2, n - 2)]
    perfect = Errors("val", tuple(tuple(5 * (i == j) for j in range(n)) for i in range(n)), errors.classes)
    assert make_confusion_chart(perfect, [str(i) for i in range(n)], 0) is None


def test_hardest_classes_come_first_and_those_without_images_are_left_out():
    classes = (ClassScore("a", 3, 0.9, 0.5), ClassScore("b", 0, None, None), ClassScore("c", 3, 0.1, None))
    chart = make_class_chart(Errors("val", (), classes), 0)
    assert [row["class"] for row in chart.spec["data"]["values"]] == ["c", "a"]
    assert make_class_chart(Errors("val", (), classes[1:2]), 0) is None


def test_reliability_has_a_line_before_and_after_calibration():
    both = [Reliability(name, 0.1, (Bin(0.7, 0.9, 10), Bin(0.9, 0.95, 30))) for name in ("as trained", "calibrated")]
    chart = make_reliability_chart(both, 0)
    assert lines(chart) == {"as trained", "calibrated"}
    assert make_reliability_chart([], 0) is None
