"""docs/claims.md and the README's table come from docs/claims.toml and results/ alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitling.files import write_json
from vitling.loading import read_json
from vitling.report.claims import MARKS, Figures, render_claims, render_headline, replace_headline

ROOT = Path(__file__).parents[2]
RESULTS, SOURCE = ROOT / "results", ROOT / "docs" / "claims.toml"


def test_page_matches_the_results():
    assert (ROOT / "docs" / "claims.md").read_text() == render_claims(RESULTS, SOURCE), "run `make results`"


def test_readme_matches_the_results():
    table, readme = render_headline(RESULTS, SOURCE), (ROOT / "README.md").read_text()
    assert replace_headline(readme, table) == readme, "run `make results`"
    rows = table.splitlines()[2:]
    assert len(rows) <= 8
    assert all("seed" in row for row in rows)
    assert all("±" in row for row in rows if "3 seeds" in row)


def test_figures(tmp_path):
    rows = [{"run": "a", "seed": seed, "value": value} for seed, value in enumerate((1.0, 2.0, 4.5))]
    rows += [{"run": "b", "seed": seed, "value": value} for seed, value in ((0, 0.5), (2, 2.0))]
    write_json(tmp_path / "s.json", {"rows": rows, "runs": [{"run": "a", "paper": 3.0}]})
    write_json(tmp_path / "m.json", {"rows": [{"cost": {"l1": 0.01234}}], "count": 27519354})
    figures = Figures(tmp_path)
    assert figures.fill("{s/a} and {s/b|1}") == "2.50 ± 1.80 (3 seeds) and 1.2 ± 1.1 (2 seeds)"
    assert figures.fill("{s/a - s/b}, paper {paper s/a|1}") == "+1.50 ± 1.41 (2 seeds), paper 3.0"
    assert figures.fill("{m:rows.0.cost.l1|%2} %, {m:count}") == "1.23 %, 27,519,354"
    assert list(figures.used) == ["s", "m"]
    with pytest.raises(KeyError, match="no value"):
        figures.fill("{s/c}")


def test_unknown_verdicts_are_refused(tmp_path):
    text = '[[papers]]\ntitle = "p"\n[[papers.claims]]\nclaim = "c"\nwhere = "w"\nevidence = "e"\nverdict = "maybe"\n'
    (tmp_path / "claims.toml").write_text(text)
    with pytest.raises(ValueError, match="maybe"):
        render_claims(tmp_path, tmp_path / "claims.toml")


def test_marks_are_needed():
    with pytest.raises(ValueError, match="lacks"):
        replace_headline(MARKS[0], "| a |")


def test_speed_claims_match_the_results():
    """Both comparisons stand wherever one does, with the figures of results/."""
    (loop, *_), (ours, released) = (
        read_json(RESULTS / f"{name}.json")["rows"] for name in ("throughput-h200", "idmm-pretraining-h200")
    )
    assert loop["workload"] == "idmm"
    figures = [loop["whole_loop"], loop["pil_fed"], ours["images_per_second"], released["images_per_second"]]
    words = [*(f"{value:,.0f}" for value in figures), f"{loop['over_pil']:.1f} times"]
    words.append(f"{released['epoch_over_vitling']:.0f} times")
    for path in (ROOT / "README.md", ROOT / "docs" / "measured.md", ROOT / "docs" / "idmm.md"):
        text = " ".join(path.read_text().split())
        assert [word for word in words if word not in text] == [], path.name
