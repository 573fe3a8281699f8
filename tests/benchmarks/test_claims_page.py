"""docs/claims.md and the README's table come from docs/claims.toml and results/ alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages.claims import MARKS, Figures, find_gaps, render_claims, render_headline, replace_headline
from vitling.files import write_json
from vitling.loading import read_json

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


def write_study(folder: Path, name: str, values: dict[str, float], papers: dict[str, float | int | None]) -> None:
    rows = [{"run": run, "seed": seed, "value": value + seed} for run, value in values.items() for seed in (0, 1)]
    runs = [{"run": run, "paper": paper} for run, paper in papers.items()]
    write_json(folder / f"{name}.json", {"study": name, "rows": rows, "runs": runs})


def test_gaps_are_of_means_and_of_measured_figures_alone(tmp_path):
    values = {"near": 50.4, "far": 50.6, "count": 10.0, "ours": 10.0}
    papers = {"near": 50.0, "far": 50.0, "count": 20, "ours": None, "not-run": 30.0}
    write_study(tmp_path, "t1", values, papers)
    write_study(tmp_path, "t1-causes", values, papers)
    write_json(tmp_path / "speed.json", {"rows": [{"name": "a"}], "runs": 3})
    assert find_gaps(tmp_path) == {"t1/far": (51.1, 50.0)}


@pytest.mark.parametrize("listed", [[], ["t1/far", "t1/near"], ["t1/far", "t1/far"]])
def test_every_gap_has_its_causes(tmp_path, listed):
    write_study(tmp_path, "t1", {"near": 50.0, "far": 60.0}, {"near": 50.0, "far": 50.0})
    source = tmp_path / "claims.toml"
    source.write_text(f'papers = []\n[[gaps]]\nruns = {listed}\ncauses = "none"\n')
    with pytest.raises(ValueError, match="gaps"):
        render_claims(tmp_path, source)
    source.write_text('papers = []\n[[gaps]]\nruns = ["t1/far"]\ncauses = "a cause: {t1/far - t1/near}"\n')
    row = "| t1: far | 60.50 | 50.00 | +10.50 | a cause: +10.00 ± 0.00 (2 seeds) |"
    assert render_claims(tmp_path, source).endswith(f"{row}\n")


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
