"""The confusion matrix of the report, and the pairs of classes that are confused most."""

from __future__ import annotations

from collections.abc import Sequence

from vitling.report.data import Errors
from vitling.report.specs import Chart, Spec, make_columns, make_spec, make_tooltip

MATRIX_MOST = 30  # classes of a confusion matrix; with more, its cells would be too small
PAIRS = 12  # most confused pairs


def make_confusion_chart(errors: Errors, class_names: Sequence[str], run: int) -> Chart | None:
    """Chart the confusion matrix, of many classes only the most confused ones; None if there is nothing to show."""
    shown = _choose_classes(errors)
    if len(shown) < 2:
        return None
    totals = [max(1, sum(row)) for row in errors.confusion]
    values: list[Spec] = [
        {"true": class_names[t], "predicted": class_names[p], "t": t, "p": p, "n": n, "share": n / totals[t]}
        for t in shown
        for p in shown
        for n in [errors.confusion[t][p]]
    ]
    names = [class_names[c] for c in shown]
    n = len(names)
    font = 11 if n <= 20 else 9
    labels = {
        "labelLimit": 120,
        "labelOverlap": False,
        "labelFontSize": 12 if n <= 20 else font,
        "ticks": False,
        "domain": False,
    }
    place: Spec = {"type": "nominal", "scale": {"domain": names}}
    angle = -90 if n > 20 else -45 if sum(map(len, names)) > 40 else 0
    x = place | {"field": "predicted", "title": "predicted", "axis": labels | {"labelAngle": angle}}
    y = place | {"field": "true", "title": "true", "axis": labels}
    tooltip = make_tooltip(
        ("true", "true"), ("predicted", "predicted"), ("n", "images"), ("share", "of the true class", ".0%")
    )
    shared = {"x": x, "y": y, "tooltip": tooltip}
    shade = {"field": "share", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1]}}
    cells = {"mark": {"type": "rect", "cursor": "pointer"}, "encoding": shared | {"color": shade}}
    ink = {"condition": {"test": "datum.share > 0.5", "value": "white"}}
    counts = {
        "transform": [{"filter": "datum.n > 0"}],
        "mark": {"type": "text", "fontSize": font, "cursor": "pointer"},
        "encoding": shared | {"text": {"field": "n", "type": "quantitative"}, "color": ink},
    }
    spec = make_spec(values, min(560, max(240, 34 * n)), layer=[cells, counts])
    right, whole = sum(errors.confusion[c][c] for c in shown), sum(sum(errors.confusion[c]) for c in shown)
    elsewhere = whole - sum(row["n"] for row in values)
    told = f"{right:,} of {whole:,} images are on the diagonal, classified correctly."
    told += f" {elsewhere:,} were predicted as other classes, which are not shown." if elsewhere else ""
    classes = ("true", "true class"), ("predicted", "predicted class")
    columns = make_columns(*classes, ("n", "images", ","), ("share", "of the true class", ".1%"))
    of = f" of the {n} most confused of {len(class_names)} classes" if n < len(class_names) else ""
    described = f"Counts by true and predicted class{of}. {told}"
    return Chart(f"confusion-{run}", f"Confusion matrix{of}", described, spec, columns)


def _choose_classes(errors: Errors) -> list[int]:
    """Return all classes if a matrix can show them, else the classes of the most confused pairs, as many as fit."""
    classes = len(errors.confusion)
    if classes <= MATRIX_MOST:
        return list(range(classes))
    mistakes = [sum(row) + sum(column) for row, column in zip(errors.confusion, zip(*errors.confusion))]
    mistakes = [both - 2 * errors.confusion[c][c] for c, both in enumerate(mistakes)]
    pairs = list_confused_pairs(errors, classes**2)
    shown: set[int] = set()
    for t, p, _ in sorted(pairs, key=lambda pair: (-pair[2], -mistakes[pair[0]] - mistakes[pair[1]])):
        if len(shown | {t, p}) <= MATRIX_MOST:
            shown |= {t, p}
    return sorted(shown)


def list_confused_pairs(errors: Errors, limit: int = PAIRS) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, images) of the most frequent mistakes."""
    pairs = [(t, p, n) for t, row in enumerate(errors.confusion) for p, n in enumerate(row) if n and t != p]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:limit]
