"""docs/reliability.md has the counts of results/reliability.json."""

from __future__ import annotations

from pathlib import Path

from tests.fault_campaign import describe_counts, write_row
from tests.fault_scenarios import list_scenarios
from tests.killed_workers import list_worker_scenarios
from tests.made_runs import read

ROOT = Path(__file__).parents[1]


def test_the_page_has_the_recorded_counts():
    results = read(ROOT / "results" / "reliability.json")
    page = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
    assert describe_counts(results) in page


def test_the_recorded_campaigns_found_nothing_and_can_be_repeated():
    results = read(ROOT / "results" / "reliability.json")
    for part, module in ((results, "fault_campaign"), (results["hostile"], "hostile_campaign")):
        assert part["command"].startswith(f"python -m tests.{module} results/reliability.json ")
        assert not part["environment"]["commit"].endswith("-dirty")
    assert not [row["scenario"] for row in results["rows"] if row["commit"].endswith("-dirty")]
    assert sum(row["failures"] for row in results["rows"]) == results["hostile"]["tracebacks"] == 0


def test_parts_of_a_campaign_join_in_one_file(tmp_path):
    row, out = {"moments": 3, "tried": {"SIGKILL": 3}, "failures": 0}, tmp_path / "a.json"
    write_row(out, row | {"scenario": "pretrain"}, "--kills 3", {"commit": "abc"})
    write_row(out, row | {"scenario": "train"}, "--kills 3", {"commit": "def"})
    found = read(out)
    assert [(one["scenario"], one["commit"]) for one in found["rows"]] == [("train", "def"), ("pretrain", "abc")]
    assert found["command"] == "python -m tests.fault_campaign results/a.json --kills 3 --only train pretrain"
    for name in (*list_scenarios(), *list_worker_scenarios()):
        write_row(out, row | {"scenario": name}, "--kills 3", {"commit": "abc"})
    assert read(out)["command"] == "python -m tests.fault_campaign results/a.json --kills 3"
    write_row(out, row | {"scenario": "train"}, "--kills 4", {"commit": "abc"})
    assert len(read(out)["rows"]) == 1
