"""The page as text: what it contains, and that nothing in it can run or load anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.made import HOSTILE, make_report, make_run, make_suspects
from vitling.report.page import HERE, VENDOR, embed_json, render_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_rendered_without_torch():
    code = "import sys, vitling.report.page; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src").returncode == 0


class Outline(HTMLParser):
    """Tags, ids, scripts and text of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.open = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.open = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        (self.scripts if self.open == "script" else self.texts).append(data)

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def page() -> Outline:
    return Outline(render_page(make_report()))


def test_choices_of_the_plan_are_listed_if_they_have_a_reason():
    page = render_page(make_report())
    listed = re.search(r'<ul class="plan">(.*?)</ul>', page, re.DOTALL)[1]
    assert "--epochs 20" in listed
    assert "--optim.weight-decay" not in listed
    assert "optim.weight-decay" in page  # among all settings


def test_json_in_a_script_cannot_end_it():
    value = {HOSTILE: [HOSTILE, "<!--", float("nan"), 1.5]}
    text = embed_json(value)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {HOSTILE: [HOSTILE, "<!--", None, 1.5]}


def test_names_are_text(page):
    assert "img" not in [tag for tag, _ in page.tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert any(HOSTILE in text for text in page.texts)


def test_policy_allows_these_scripts_and_no_request(page):
    (policy,) = (
        tags["content"] for tag, tags in page.tags if "Content-Security-Policy" in (tags.get("http-equiv") or "")
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    assert policy.endswith("base-uri 'none'; form-action 'none'")
    scripts = [text for text in page.scripts if not text.startswith("{")]
    assert len(scripts) == policy.count("sha256-")
    for text in scripts:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_nothing_is_loaded(page):
    assert all(value.startswith(("#", "data:")) for name in ("src", "href") for value in page.values(name))


def test_ids_are_unique_and_links_lead_somewhere(page):
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.values("href")} <= set(ids)


def test_sections_appear_where_the_run_has_the_data():
    bare = make_run(headline=None, scores=(), curves=(), errors=None, stages=())
    sections = [tags["id"] for tag, tags in Outline(render_page(make_report(bare))).tags if tag == "section"]
    assert sections == ["answer", "again"]
    sections = [tags["id"] for tag, tags in Outline(render_page(make_report())).tags if tag == "section"]
    assert sections == ["answer", "curves", "errors", "settings", "again"]


def test_vendored_builds_have_their_licences_and_are_small():
    for name in VENDOR:
        assert (HERE / "vendor" / name).stat().st_size < 1 << 20
        assert "Redistribution" in (HERE / "vendor" / f"LICENSE-{name.removesuffix('.min.js')}").read_text()


def test_wheel_contains_the_parts_of_the_page(tmp_path, monkeypatch):
    from hatchling.builders.wheel import WheelBuilder

    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        inside = set(wheel.namelist())
    parts = {p for folder in ("assets", "templates", "vendor") for p in (HERE / folder).iterdir()}
    assert {f"vitling/report/{path.relative_to(HERE)}" for path in parts} <= inside


def test_several_runs_have_a_choice():
    text = render_page(make_report(make_run("runs/a"), make_run("runs/b")))
    assert re.findall(r'<option value="(\d)">(.*?)</option>', text) == [("0", "runs/a"), ("1", "runs/b")]


def test_metrics_are_matched_by_name():
    """A larger stage may lack a metric of the first score, or have others."""
    first = make_run().scores[0]
    scores = (
        replace(first, others=(("top-5", "99.00"), ("log loss", "0.3100"))),
        replace(first, weights="larger", value=None, others=(("log loss", "0.2000"), ("calibration error", "0.0500"))),
    )
    page = render_page(make_report(make_run(scores=scores, headline=scores[1])))
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", row)]
        for row in re.findall("(?s)<tr>.*?</tr>", page)
    ]
    assert ["top-5", "99.00", ""] in rows
    assert ["log loss", "0.3100", "0.2000"] in rows
    assert ["calibration error", "", "0.0500"] in rows
    assert "<strong>undefined</strong>" in page


def test_labels_without_suspects_need_no_table():
    checked = replace(make_suspects(), shown=(), total=0)
    page = render_page(make_report(make_run(suspects=checked)))
    assert "No label of 40 is suspicious" in page
    assert "Save corrections.csv" not in page
    assert "Save corrections.csv" in render_page(make_report(make_run(suspects=make_suspects())))


def test_a_choice_for_both_stages_is_listed_once():
    assert render_page(make_report()).count("<code>--epochs 20</code>") == 1
