"""Results that lack content hashes get them later, and say so."""

from __future__ import annotations

import pytest

from tests.made_runs import read
from tests.runs.drawn_scenes import make_mask_folder
from vitling.data import open as open_data
from vitling.data.content import hash_content
from vitling.files import write_json
from vitling.papers import data_files
from vitling.papers.ledger import Ledger, fingerprint
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.report.data_files import describe_data, read_known

pytestmark = pytest.mark.usefixtures("elsewhere")


class Nothing:
    settings = {"given": "nothing"}  # noqa: RUF012

    def __call__(self, context: RunContext):
        raise NotImplementedError


def test_hashes_are_added_once_and_marked(data, tmp_path, monkeypatch):
    study = Study("s", "a title", "nowhere", (StudyRun("a", Nothing(), "made"), StudyRun("b", Nothing(), "made")))
    monkeypatch.setattr(data_files, "find_study", lambda name: study)
    results = tmp_path / "results"
    row = {"seed": 0, "value": 1.0, "minutes": 0.0, "fingerprint": fingerprint(study.runs[0]), "environment": {}}
    for name, more in (("a", {}), ("b", {"data_hashes": {"train": "own"}})):
        Ledger(results / "s.json", study, None).record({"run": name, **row, **more})
    write_json(results / "bench.json", {"command": "python benchmarks/x.py DATA", "rows": []})
    for _ in range(2):
        data_files.main(str(results), data, "bench=made")
    hashes = {
        split: hash_content(open_data(f"train={data}/made/{split}", val="none").train) for split in ("train", "test")
    }
    first, second = read(results / "s.json")["rows"]
    assert first["data_hashes"] == hashes
    assert first["data_hashes_from"] == "computed later by `python -m vitling.papers.data_files results DIR`"
    assert second["data_hashes"] == {"train": "own"}
    assert "data_hashes_from" not in second
    bench = read(results / "bench.json")
    assert bench["data_hashes"] == hashes
    assert bench["data_hashes_from"].endswith("results DIR bench=made`")

    known = read_known(results)
    assert known[hashes["train"]]["images"] == 12
    assert known[hashes["train"]]["formats"] == {"PNG": 12}
    line = describe_data(read(results / "s.json"), known)
    assert f"made train `{hashes['train']}`, not the original files: PNG, shorter side 16 px" in line
    assert "`own` (files not described)" in line


def test_files_of_annotated_data_and_of_earlier_calls_are_described(tmp_path, monkeypatch):
    make_mask_folder(tmp_path / "data" / "camvid", {"train": 3, "test": 2})
    runs = (StudyRun("a", Nothing(), "camvid-masks", pretrain_data="camvid"),)
    study = Study("s", "a title", "nowhere", runs)
    monkeypatch.setattr(data_files, "find_study", lambda name: study)
    results = tmp_path / "results"
    row = {"seed": 0, "value": 1.0, "minutes": 0.0, "fingerprint": fingerprint(study.runs[0]), "environment": {}}
    Ledger(results / "s.json", study, None).record({"run": "a", **row})
    data_files.main(str(results), str(tmp_path / "data"))
    described = {(split["data"], split["split"]): split["images"] for split in read_known(results).values()}
    assert described["camvid-masks", "test"] == 2
    assert [images for (_, split), images in described.items() if split == "train"] == [3]  # under one of its names
    (tmp_path / "empty").mkdir()
    data_files.main(str(results), str(tmp_path / "empty"))
    assert len(read_known(results)) == len(described)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("vitling train train=flowers102-train.tar,test=flowers102-test.tar --out RUN", "flowers102"),
        ("vitling finetune train=flowers102-train.tar --val 0.25 --out RUN", "flowers102/train"),
        ("vitling demo --seed SEED", data_files.DIGITS),
        ("python benchmarks/throughput.py", ""),
    ],
)
def test_commands_name_their_data(command, name):
    assert data_files._find_name(command) == name
