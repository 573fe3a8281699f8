"""Render the report: one HTML file with everything in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitling.report import specs
from vitling.report.confusion import list_confused_pairs, make_confusion_chart
from vitling.report.data import AttentionImage, ImageMap, MatchedViews, ReportData
from vitling.report.specs import Chart

HERE = Path(__file__).parent
VENDOR = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
SCRIPTS = ("charts.js", "images.js", "suspects.js", "patches.js", "attention.js", "matches.js", "page.js")


@dataclass(frozen=True)
class Section:
    """A section of the page; its template is templates/ID.html."""

    id: str
    title: str
    content: str = ""  # field of RunReport that some run must have; empty: the section is always present

    def is_present(self, data: ReportData) -> bool:
        return not self.content or any(getattr(run, self.content) for run in data.runs)


SECTIONS = (
    Section("answer", "Result"),
    Section("curves", "Training", "curves"),
    Section("map", "Map of the images", "images"),
    Section("errors", "Mistakes", "errors"),
    Section("suspects", "Suspicious labels", "suspects"),
    Section("dense", "Classes and worst images", "dense"),
    Section("attention", "Attention", "attention"),
    Section("matches", "Matching regions", "matches"),
    Section("views", "Training views", "views"),
    Section("settings", "Settings and reasons", "stages"),
    Section("again", "Reproduce this run"),
)


def render_page(data: ReportData) -> str:
    """Render the report as one self-contained HTML page."""
    charts = _make_charts(data)
    scores, curves = ([one for one in charts.values() if one.id.startswith(kind)] for kind in ("scores-", "curve-"))
    scripts = [Markup(_read("vendor", name)) for name in VENDOR] + [Markup(_read("assets", name)) for name in SCRIPTS]
    content = {"charts": {chart.id: asdict(chart) for chart in charts.values()}, "runs": _describe_images(data)}
    return _ENVIRONMENT.get_template("page.html").render(
        data=data,
        sections=[section for section in SECTIONS if section.is_present(data)],
        charts=charts,
        scores=scores,
        curves=curves,
        pairs=[list_confused_pairs(run.errors) if run.errors else [] for run in data.runs],
        style=Markup(_read("assets", "page.css")),
        scripts=scripts,
        policy=_make_policy(scripts),
        content=embed_json(content),
    )


def render_live_page(title: str) -> str:
    """Render the page of a run in progress, which fetches data.json from its server again and again."""
    scripts = [Markup(_read("vendor", name)) for name in VENDOR]
    scripts += [Markup(_read("assets", name)) for name in ("charts.js", "live.js")]
    return _ENVIRONMENT.get_template("live.html").render(
        title=title,
        style=Markup(_read("assets", "page.css")),
        scripts=scripts,
        policy=_make_policy(scripts, connect="'self'"),
        content=embed_json({"charts": {}, "runs": []}),
    )


def embed_json(value: Any) -> Markup:
    """Write JSON that is safe inside a script element: no name can end the element or start a comment.

    Numbers that are not finite, which JSON lacks, become null.
    """
    text = json.dumps(_replace_non_finite(value), separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _make_policy(scripts: list[Markup], connect: str = "'none'") -> str:
    """Allow these scripts only, and no request: even a name that slipped through as HTML could do nothing."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _make_charts(data: ReportData) -> dict[str, Chart]:
    charts: list[Chart | None] = [*specs.make_score_charts(data.runs), *specs.make_curve_charts(data.runs)]
    for i, run in enumerate(data.runs):
        if run.errors is not None:
            charts += [make_confusion_chart(run.errors, run.class_names, i), specs.make_class_chart(run.errors, i)]
            charts.append(specs.make_reliability_chart(run.errors.reliability, i))
    return {chart.id: chart for chart in charts if chart is not None}


def _describe_images(data: ReportData) -> list[dict[str, Any]]:
    """Collect what the page's scripts need of each run."""
    return [
        {
            "classes": run.class_names,
            "images": None if run.images is None else _describe_map(run.images),
            "suspects": None if run.suspects is None else vars(run.suspects.sprites),
            "attention": [_omit(one, "picture") for one in run.attention],
            "matches": [_omit(one, "pictures") for one in run.matches],
        }
        for run in data.runs
    ]


def _omit(one: AttentionImage | MatchedViews, name: str) -> dict[str, Any]:
    """Leave out pictures, which the page has as elements."""
    return {key: value for key, value in vars(one).items() if key != name}


def _describe_map(images: ImageMap) -> dict[str, Any]:
    columns = {name: value for name, value in vars(images).items() if name not in ("training", "sprites")}
    for name in ("pca", "tsne"):
        columns[name] = [[round(x, 3), round(y, 3)] for x, y in columns[name]]
    columns["confidence"] = [round(one, 4) for one in images.confidence]
    return columns | {
        "mistakes": images.mistakes,
        "training": vars(images.training),
        "sprites": vars(images.sprites),
        "spec": specs.make_map_spec(images),
    }


def _read(folder: str, name: str) -> str:
    text = (HERE / folder / name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.split("\n") if not line.startswith("//# sourceMappingURL"))


def _format_percent(fraction: float | None, digits: int = 1) -> str:
    return "undefined" if fraction is None else f"{100 * fraction:.{digits}f}\u00a0%"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["percent"] = _format_percent
_ENVIRONMENT.filters["dict"] = dict
_ENVIRONMENT.filters["count"] = lambda number: f"{number:,}"
