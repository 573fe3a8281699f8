"""docs/recipe.md comes from results/recipe-search.jsonl alone."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pages.recipe import FILE, compare, render

ROOT = Path(__file__).parents[2]


def make_row(candidate: str, seed: int, top1: float, loss: float = 1.0, base: str = "--epochs 1") -> dict:
    row = {"data": "d", "plan": 1, "base": base, "candidate": candidate, "seed": seed, "top1": top1, "log_loss": loss}
    about = {"flags": "" if candidate == "base" else "--x", "backbone": "net", "commit": "c", "gpu": "g"}
    return row | about | {"length": base, "images_held_out": 1408}


def test_page_matches_the_results():
    assert (ROOT / "docs" / "recipe.md").read_text() == render(ROOT / "results"), "run `make results`"


def test_candidates_are_compared_on_the_seeds_they_share():
    rows = [make_row("base", 0, 50.0), make_row("base", 1, 60.0, 0.5)]
    rows += [make_row("ema", 1, 62.0, 0.4), make_row("ema", 2, 99.0), make_row("ema", 1, 0.0, base="--epochs 2")]
    ema, base = compare(rows)["d", 1, "--epochs 1"]
    assert base.cells == ("base", "", "55.00 ± 7.07", "", "0.750 ± 0.354", "", "2")
    assert ema.cells == ("ema", "`--x`", "80.50 ± 26.16", "+2.00", "0.700 ± 0.424", "+0.100", "2")


def test_a_name_with_other_flags_is_another_candidate():
    rows = [make_row("base", 0, 50.0), make_row("ema", 0, 60.0), make_row("ema", 0, 40.0) | {"flags": "--z"}]
    assert [one.flags for one in compare(rows)["d", 1, "--epochs 1"]] == ["--x", "", "--z"]


def test_a_candidate_of_another_length_shows_it():
    rows = [make_row("base", 0, 50.0), make_row("half", 0, 60.0) | {"length": "--epochs 9 --size 8", "flags": ""}]
    assert [one.flags for one in compare(rows)["d", 1, "--epochs 1"]] == ["--epochs 9", ""]


def test_runs_that_never_finished_are_named(tmp_path):
    def fail(candidate: str, error: str, base: str = "--epochs 1") -> dict:
        return {"data": "d", "plan": 1, "base": base, "candidate": candidate, "seed": 0, "error": error}

    rows = [
        fail("base", "power cut."),
        make_row("base", 0, 50.0),
        fail("muon", "No memory. Wait."),
        fail("x", "y", "z"),
    ]
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = render(tmp_path)
    assert "## d, net\n\nBase: AdamW; `--epochs 1`. 1,408 images held out." in page
    assert "Not finished: `muon`, seed 0 (No memory).\n\n1 run on g; commit c.\n" in page
    assert "power cut" not in page
    assert page.endswith("## d\n\nBase: AdamW; `z`.\n\nNot finished: `x`, seed 0 (y).\n")
