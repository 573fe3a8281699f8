"""docs/results.md is generated from results/ alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.pages.results import render_results
from vitling.papers.lines import make_lines

ROOT = Path(__file__).parents[2]
HERE = {"gpu": "A100", "cpus": 8, "commit": "abc", "packages": {"torch": "2.11", "timm": "1.0"}}


def test_document_matches_the_results():
    assert (ROOT / "docs" / "results.md").read_text() == render_results(ROOT / "results"), "run `make results`"


def row(run, seed, value, **more):
    return {"run": run, "seed": seed, "value": value, "minutes": 2.0, "fingerprint": "f", "environment": HERE, **more}


def study(rows):
    runs = [
        {"run": "base", "paper": 30.0, "fingerprint": "f", "settings": {}},
        {"run": "aux", "paper": 34.5, "against": "base", "note": "a note", "fingerprint": "f", "settings": {}},
    ]
    about = {"study": "t", "title": "a table", "source": "x.txt", "unit": "top-1", "command": "vitling reproduce t"}
    return {**about, "runs_in_all": 3, "runs": runs, "rows": rows}


def test_lines_of_a_study():
    curve = {"top1": {"epoch": [10, 20, 30], "value": [20.0, 33.0, 36.0]}}
    base = [row("base", 0, 31.0), row("base", 1, 33.0)]
    first, second = make_lines(study([*base, row("aux", 0, 36.0, curves=curve), row("aux", 1, 36.0)]))
    assert (first.ours, first.paper, first.gain) == ("32.00 ± 1.41 (2 seeds)", "30.00", "")
    assert (second.gain, second.paper_gain) == ("+4.00 ± 1.41", "+4.50")
    assert second.note == "a note; reaches the baseline's final accuracy at epoch 20"


def test_one_seed_and_failures_are_labelled():
    failed = {"run": "aux", "seed": 0, "failed": "not finite", "minutes": 1.0, "fingerprint": "g", "environment": HERE}
    first, second = make_lines(study([row("base", 0, 31.0), failed]))
    assert first.ours == "31.00 (1 seed)"
    assert (second.ours, second.gain) == ("", "")
    assert second.note == "a note; failed: not finite; made with settings that differ from the study's current ones"


def test_the_localisation_loss_stands_beside_that_of_a_constant():
    def note(*losses: float) -> str:
        rows = [row("aux", i, 36.0, terms={"drloc": loss}, drloc_constant=0.1924) for i, loss in enumerate(losses)]
        return make_lines(study(rows))[0].note

    assert note(0.05, 0.1) == "a note; localisation loss 0.050, 0.100 (0.192 for a constant)"
    assert note(0.05, 0.18).endswith("(0.192 for a constant): the task was not learnt")


def test_shared_stages_are_noted():
    stages = [{"stage": "pretrain", "seconds": 540.0, "shared": True}]
    stages.append({"stage": "finetune", "seconds": 60.0, "shared": False})
    (line,) = make_lines(study([row("base", 0, 31.0, seconds=600.0, stages=stages)]))
    assert line.note == "10.0 minutes of training, 9.0 of them shared with other runs (pretrain)"
    own = [stage | {"shared": False} for stage in stages]
    assert make_lines(study([row("base", 0, 31.0, seconds=600.0, stages=own)]))[0].note == ""


def test_other_training_machines_are_noted(tmp_path):
    here = {"cpus": 2, "commit": "new"}
    stage = {"stage": "pretrain", "shared": False, "seconds": 1.0, "commit": "old", "gpu": "a GPU"}
    rows = [
        {
            "run": "a",
            "seed": 0,
            "value": 1.0,
            "minutes": 1.0,
            "environment": here,
            "fingerprint": "x",
            "stages": [stage],
        },
        {
            "run": "a",
            "seed": 1,
            "value": 1.0,
            "minutes": 1.0,
            "environment": here | {"gpu": "a GPU"},
            "fingerprint": "x",
        },
    ]
    about = {"study": "s", "title": "t", "source": "nowhere", "unit": "top-1, %", "command": "c", "runs_in_all": 1}
    found = {**about, "runs": [{"run": "a", "fingerprint": "x"}], "rows": rows}
    (tmp_path / "s.json").write_text(json.dumps(found))
    assert "On 2 CPU cores, a GPU; ; commit new. Trained on a GPU, commit old." in render_results(tmp_path)


def test_counts_have_no_std():
    counted = study([row("base", 0, 2039), row("base", 1, 2039)])
    counted["runs"][0]["paper"] = 2040
    (line,) = make_lines(counted)
    assert (line.ours, line.paper) == ("2,039", "2,040")


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def test_every_kind_of_file(tmp_path):
    rows = [{"workload": "idmm", "batch": 256, "ratio": 0.98765, "whole_loop": 4682.1, "rounds": [1, 2]}]
    write(tmp_path, "t.json", study([row("base", 0, 31.0)]))
    write(tmp_path, "u.json", study([row("base", 0, 31.0), row("base", 1, 32.0) | {"at_once": 3, "minutes": 0.0}]))
    write(
        tmp_path,
        "throughput-x.json",
        {"environment": HERE, "rows": [*rows, {"workload": "dino", "cost": {"l1": 0.02}}]},
    )
    write(tmp_path, "odd.json", {"command": "make odd", "result": {"other": 1}, "rows": 3})
    write(tmp_path, "list.json", [1, 2])
    text = render_results(tmp_path)
    assert "| run | ours | paper |\n| --- | --- | --- |\n| base | 31.00 (1 seed) | 30.00 |" in text
    assert "1 of 3 runs, 2.0 minutes in all. On A100; timm 1.0, torch 2.11; commit abc." in text
    assert "2.0 minutes in all, with up to 3 runs at once on one machine. On A100" in text
    assert "| workload | batch | ratio | whole loop | cost, l1 |" in text
    assert "| idmm | 256 | 0.988 | 4,682 |  |" in text
    assert "| dino |  |  |  | 0.02 |" in text
    assert "`make odd`, [results/odd.json](../results/odd.json)" in text
    assert "## list" in text
    assert render_results(tmp_path) == text


def test_files_to_be_run_again_are_listed_with_the_cause(tmp_path):
    dirty = {"environment": HERE | {"commit": "abc-dirty"}, "rows": [{"commit": "def-dirty"}, {"commit": "012"}]}
    typed = {"command": "vitling train x --out RUN", "environment": HERE, "data_hashes_from": "computed later by `x`"}
    stale = study([row("base", 0, 31.0) | {"fingerprint": "old"}])
    for name, content in (("dirty", dirty), ("typed", typed), ("stale", stale), ("sound", {"environment": HERE})):
        write(tmp_path, f"{name}.json", content)
    text = render_results(tmp_path)
    assert "| [dirty.json](../results/dirty.json) | made with uncommitted changes (abc-dirty, def-dirty) |" in text
    assert "assembled from run directories before `benchmarks/collect.py` existed |" in text
    assert "| [stale.json](../results/stale.json) | settings have changed: base |" in text
    assert "sound.json](../results/sound.json) |" not in text


def test_data_of_each_section_is_named(tmp_path):
    split = {"data": "flowers102", "split": "train", "content_hash": "ef3f", "images": 2040, "formats": {"WEBP": 2040}}
    split |= {"shorter_side": [384, 384], "longer_side": [384, 819], "distributed": False}
    write(tmp_path, "data-files.json", {"splits": [split]})
    write(tmp_path, "t.json", study([row("base", 0, 31.0, data_hashes={"train": "ef3f", "test": "0000"})]))
    text = render_results(tmp_path)
    assert "| flowers102 | train | 2,040 | WEBP, shorter side 384 px | no | `ef3f` |" in text
    assert "Data: flowers102 train `ef3f`, not the original files: WEBP, shorter side 384 px; `0000` (files" in text


def test_the_page_is_written_without_torch():
    code = "import sys, benchmarks.pages.results; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
