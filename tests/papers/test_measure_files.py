"""The files behind results/ are described by their hash, number, formats and sides."""

from __future__ import annotations

import pytest

from benchmarks.pages import measure_files
from benchmarks.pages.data_files import describe_data, read_known
from tests.made_runs import read
from tests.runs.drawn_scenes import make_mask_folder
from vitling.data import open as open_data
from vitling.data.content import hash_content
from vitling.files import write_json

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_files_are_described(data, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    measure_files.main(str(results), data, "made")
    train = hash_content(open_data(f"train={data}/made/train", val="none").train)
    known = read_known(results)
    assert known[train]["images"] == 12
    assert known[train]["formats"] == {"PNG": 12}
    write_json(results / "bench.json", {"rows": [], "data_hashes": {"train": train, "test": "other"}})
    line = describe_data(read(results / "bench.json"), known)
    assert f"made train `{train}`, not the original files: PNG, shorter side 16 px" in line
    assert "`other` (files not described)" in line


def test_annotated_data_and_earlier_calls(tmp_path):
    make_mask_folder(tmp_path / "data" / "camvid", {"train": 3, "test": 2})
    results = tmp_path / "results"
    results.mkdir()
    measure_files.main(str(results), str(tmp_path / "data"), "camvid-masks", "camvid")
    described = {(split["data"], split["split"]): split["images"] for split in read_known(results).values()}
    assert described["camvid-masks", "test"] == 2
    assert [images for (_, split), images in described.items() if split == "train"] == [3]  # under one of its names
    (tmp_path / "empty").mkdir()
    measure_files.main(str(results), str(tmp_path / "empty"), "camvid")
    assert len(read_known(results)) == len(described)
