"""Vega-Lite specifications of the report's charts. The page adds colours that suit its light or dark theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitling.report.data import Curve, Errors, ImageMap, Reliability, RunCurves, RunReport, Score

Spec = dict[str, Any]
HARDEST = 12  # classes in the chart
_NAMES = {
    "lr": "learning rate",
    "val/top1": "validation accuracy",
    "val/mean_average_precision": "validation mAP",
    "val/log_loss": "validation log loss",
    "val/mean_iou": "validation mIoU",
    "val/box_ap": "validation AP of boxes",
    "val/mask_ap": "validation AP of masks",
    "knn/top1": "k-NN accuracy",
    "knn/mean_average_precision": "k-NN mAP",
}
SECOND = "Second stage"
_LOSS = "training loss"
_ORDER = (_LOSS, *(name for key, name in _NAMES.items() if key != "lr"), _NAMES["lr"])
_EPOCHS = {"format": "d", "tickMinStep": 1, "tickCount": 6, "grid": False, "labelFlush": False, "labelSeparation": 8}
_NOT_TERMS = ("lr", "grad_norm", "images_per_second", "data_wait")
_SHARE: Spec = {"type": "quantitative", "scale": {"domain": [0, 1]}, "axis": {"format": ".0%", "tickCount": 5}}
_FRACTIONS = ("top1", "mean_average_precision", "mean_iou", "box_ap", "mask_ap")


@dataclass(frozen=True)
class Column:
    """A column of a chart's table and CSV."""

    field: str
    title: str
    format: str = ""  # of d3; empty: text, or a number as it is


def make_columns(*fields: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(Column(*one) for one in fields)


def make_tooltip(*fields: tuple[str, ...]) -> list[Spec]:
    """List what a mark shows under the pointer; each has a field, a title and, if it is not text, a format of d3."""
    return [dict(zip(("field", "title", "format"), one)) for one in fields]


def make_spec(values: list[Spec], height: int, **content: Any) -> Spec:
    """Specify a chart of these rows, as wide as the page."""
    return {"data": {"values": values}, "width": "container", "height": height, **content}


@dataclass(frozen=True)
class Chart:
    """A chart with its data, which the page also offers as a table, CSV, PNG and SVG."""

    id: str
    title: str
    description: str  # for screen readers
    spec: Spec
    columns: tuple[Column, ...]
    is_detail: bool = False  # shown on request


def make_curve_charts(runs: Sequence[RunReport | RunCurves]) -> list[Chart]:
    """Chart the loss, the learning rate, k-NN and validation; several runs share each chart."""
    charts = []
    by_stage: dict[str, list[tuple[str, Curve]]] = {}
    names = tuple(run.name for run in runs)
    has_second = any(curve.stage == SECOND for run in runs for curve in run.curves)
    for run in runs:
        for curve in run.curves:  # a run of one stage is compared with the second stage of others
            by_stage.setdefault(curve.stage or (SECOND if has_second else ""), []).append((run.name, curve))
    for stage, curves in by_stage.items():
        groups: dict[str, list[tuple[str, Curve]]] = {}
        for name, curve in curves:
            if group := _group_of(curve.name, single=len(runs) == 1):
                groups.setdefault(group, []).append((name, curve))
        ranked = sorted(groups, key=lambda group: _ORDER.index(group) if group in _ORDER else len(_ORDER))
        charts += [_make_curve_chart(stage, group, groups[group], names) for group in ranked]
    return charts


def _group_of(name: str, single: bool) -> str | None:
    """Name the chart of a metric; the terms of the loss share its chart if there is one run."""
    if name in _NAMES:
        return _NAMES[name]
    if "/" in name:
        return name.replace("/", " ").replace("_", " ")
    if name == "loss":
        return _LOSS
    return _LOSS if single and name not in _NOT_TERMS else None


def _make_curve_chart(stage: str, group: str, curves: list[tuple[str, Curve]], runs: tuple[str, ...]) -> Chart:
    several = len(runs) > 1
    terms = {curve.name for _, curve in curves}
    if len(terms) == 2 and "loss" in terms:  # the loss and its only term are the same
        curves = [(run, curve) for run, curve in curves if curve.name == "loss"]
    values: list[Spec] = [
        {"epoch": epoch, "value": value, "line": run if several else curve.name}
        for run, curve in curves
        for epoch, value in zip(curve.epochs, curve.values)
    ]
    lines = list(dict.fromkeys(row["line"] for row in values))
    are_named = several or len(lines) > 1
    is_fraction = curves[0][1].name.rpartition("/")[2] in _FRACTIONS
    form = ".1%" if is_fraction else "~g"
    title = f"{stage}: {group}" if stage else group[0].upper() + group[1:]
    encoding: Spec = {
        "x": {"field": "epoch", "type": "quantitative", "title": "epoch", "axis": _EPOCHS},
        "y": {
            "field": "value",
            "type": "quantitative",
            "title": None,
            "axis": {"format": form, "tickCount": 5},
            "scale": {"zero": False, "nice": True},
        },
        "tooltip": [
            *([{"field": "line", "title": "run" if several else "term"}] if are_named else []),
            {"field": "epoch", "type": "quantitative"},
            {"field": "value", "type": "quantitative", "title": group, "format": ".2%" if is_fraction else ".4~g"},
        ],
    }
    if are_named:
        legend = {"orient": "bottom", "title": None, "columns": 3, "labelLimit": 180, "symbolType": "stroke"}
        line: Spec = {"field": "line", "type": "nominal", "sort": None, "legend": legend | {"values": lines}}
        if several:  # a run has the same colour in every chart, whichever other runs are in it
            line["scale"] = {"domain": list(dict.fromkeys(runs))}
        encoding |= {"color": line, "strokeDash": line}
    mark = {"type": "line", "point": {"size": 14} if len(values) <= 60 * len(lines) else False, "clip": True}
    spec = make_spec(values, 190, mark=mark, encoding=encoding)
    ends = {row["line"]: row["value"] for row in values}
    last = "; ".join(f"{line} ends at {value:.4g}" for line, value in ends.items())
    named = [("line", "run" if several else "term")] if are_named else []
    columns = make_columns(*named, ("epoch", "epoch", "~g"), ("value", group, ".2%" if is_fraction else ".5~g"))
    slug = "-".join(f"curve {stage} {group}".lower().split())
    told = f"{title} over {values[-1]['epoch']:g} epochs. {last}."
    return Chart(slug, title, told, spec, columns, is_detail=group not in _ORDER)


def make_score_charts(runs: Sequence[RunReport]) -> list[Chart]:
    """Chart the headlines of several runs with their intervals: a chart for each metric that several runs have."""
    by_metric: dict[str, list[tuple[str, Score]]] = {}
    for run in runs:
        if (score := run.headline) is not None and score.value is not None:
            by_metric.setdefault(score.metric, []).append((run.name, score))
    return [_make_score_chart(metric, shown) for metric, shown in by_metric.items() if len(shown) > 1]


def _make_score_chart(metric: str, shown: list[tuple[str, Score]]) -> Chart:
    values = [
        {"run": name, "value": score.value, "split": score.split, "images": score.images}
        | ({"low": score.interval[0], "high": score.interval[1]} if score.interval else {})
        for name, score in shown
    ]
    has_intervals = any("low" in row for row in values)
    y = {"field": "run", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 160}}
    x = {"type": "quantitative", "title": metric, "scale": {"zero": False, "nice": True}, "axis": {"format": ".0%"}}
    tooltip = make_tooltip(("run",), ("value", metric, ".1%"), ("images",))
    intervals = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 90},
        "encoding": {"y": y, "x": x | {"field": "value"}, "tooltip": tooltip},
    }
    spec = make_spec(values, 30 * len(values), layer=[intervals, points] if has_intervals else [points])
    bounds = [("low", "95 % from", ".2%"), ("high", "to", ".2%")] if has_intervals else []
    scores = ("split", "evaluated on"), ("images", "images", ","), ("value", metric, ".2%")
    columns = make_columns(("run", "run"), *scores, *bounds)
    told = "; ".join(f"{row['run']}: {row['value']:.1%}" for row in values)
    described = f"{metric} of each run{' with its 95 % interval' if has_intervals else ''}. {told}."
    slug = "-".join(f"scores {metric}".lower().split())
    return Chart(slug, f"The runs side by side: {metric}", described, spec, columns)


def make_map_spec(images: ImageMap) -> Spec:
    """Specify the map. The page fills in the points, with the fields x, y, kind (colour and shape) and i (row)."""
    axis = {"field": "x", "type": "quantitative", "axis": None, "scale": {"zero": False, "nice": False, "padding": 12}}
    size = 60 if len(images.keys) < 500 else 30 if len(images.keys) < 3000 else 14
    return {
        "data": {"name": "points", "values": []},
        "width": "container",
        "height": 460,
        "params": [{"name": "zoom", "select": "interval", "bind": "scales"}],
        "mark": {"type": "point", "filled": True, "opacity": 0.8, "size": size, "cursor": "pointer"},
        "encoding": {
            "x": axis,
            "y": axis | {"field": "y"},
            "color": {"field": "kind", "type": "nominal", "sort": None, "legend": _MAP_LEGEND},
            "shape": {"field": "kind", "type": "nominal", "sort": None, "legend": _MAP_LEGEND},
        },
    }


_MAP_LEGEND = {"orient": "bottom", "title": None, "columns": 4, "labelLimit": 140, "symbolSize": 70}


def make_class_chart(errors: Errors, run: int) -> Chart | None:
    """Chart the recall of the hardest classes; its table has all of them."""
    known = [one for one in errors.classes if one.recall is not None]
    if not known:
        return None
    ranked = sorted(known, key=lambda one: (one.recall, one.name))
    values = [
        {"class": c.name, "i": i, "recall": c.recall, "precision": c.precision, "images": c.images}
        for i, c in enumerate(ranked)
    ]
    shown = min(HARDEST, len(ranked))
    name, images = ("class", "class"), ("images", "images", ",")
    ratios = ("recall", "recall", ".1%"), ("precision", "precision", ".1%")
    encoding = {
        "y": {"field": "class", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}},
        "x": _SHARE | {"field": "recall", "title": "recall"},
        "tooltip": make_tooltip(name, *ratios, ("images",)),
    }
    hardest, mark = [{"filter": f"datum.i < {shown}"}], {"type": "bar", "cornerRadiusEnd": 2}
    spec = make_spec(values, 22 * shown, transform=hardest, mark=mark, encoding=encoding)
    told = "; ".join(f"{c.name} {c.recall:.0%}" for c in ranked[:3])
    columns = make_columns(name, images, *ratios)
    title = "Hardest classes" if shown < len(ranked) else "Classes, the hardest first"
    return Chart(f"classes-{run}", title, f"Recall by class, lowest first: {told}.", spec, columns)


def make_reliability_chart(reliability: Sequence[Reliability], run: int) -> Chart | None:
    """Chart accuracy against confidence; on the diagonal, confidence equals accuracy."""
    values = [
        {"line": one.name, "confidence": b.confidence, "accuracy": b.accuracy, "images": b.images}
        for one in reliability
        for b in one.bins
    ]
    if not values:
        return None
    legend = {"orient": "bottom", "title": None, "symbolType": "circle"}
    line = {"field": "line", "type": "nominal", "sort": None, "legend": legend}
    at = {"field": "at", "type": "quantitative"}
    diagonal = {
        "data": {"values": [{"at": 0}, {"at": 1}]},
        "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "color": "gray", "point": False},
        "encoding": {"x": at, "y": at},
    }
    name, accuracy = ("line", "probabilities"), ("accuracy", "accuracy", ".1%")
    lines = {
        "mark": {"type": "line", "point": {"size": 50}},
        "encoding": {
            "x": _SHARE | {"field": "confidence", "title": "confidence"},
            "y": _SHARE | {"field": "accuracy", "title": "accuracy"},
            "color": line,
            "strokeDash": line,
            "tooltip": make_tooltip(name, ("confidence", "confidence", ".1%"), accuracy, ("images",)),
        },
    }
    told = "; ".join(f"{one.name}: calibration error {one.error:.3f}" for one in reliability)
    columns = make_columns(name, ("confidence", "mean confidence", ".1%"), accuracy, ("images", "images", ","))
    spec = make_spec(values, 300, layer=[diagonal, lines])
    return Chart(f"reliability-{run}", "Reliability", f"Accuracy by confidence. {told}.", spec, columns)
