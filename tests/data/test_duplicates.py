from __future__ import annotations

import io
import json

import numpy as np
import pytest
from pictures import encoded, picture, put, put_classes
from PIL import Image

from vitling import data
from vitling.console import Console
from vitling.data.dataset import Dataset
from vitling.data.duplicates import find_duplicates, find_leaks
from vitling.data.inspection import describe_leakage
from vitling.data.inspection_tables import print_inspection
from vitling.data.scan import ImageFacts, scan


def facts_of(raws: list[bytes]) -> ImageFacts:
    return scan(Dataset("made", [str(i) for i in range(len(raws))], raws.__getitem__, np.arange(len(raws))), workers=1)


def photo(seed: int, quality: int = 95, width: int = 320) -> bytes:
    return encoded(picture(seed, width, width * 3 // 4), "JPEG", quality=quality)


def test_exact_and_near_clusters():
    raws = [photo(k) for k in range(30)]
    raws += [raws[4], raws[4], photo(7, quality=40), photo(7, width=200), photo(9, quality=60)]
    twins = find_duplicates(facts_of(raws))
    assert twins.exact == [[4, 30, 31]]
    assert twins.near == [[7, 32, 33], [9, 34]]


def test_blank_and_low_contrast_images_do_not_match():
    flat = [encoded(Image.new("RGB", (40, 40), (v, v, v))) for v in (100, 101, 102, 200, 255)]
    rng = np.random.default_rng(0)
    faint = [encoded(Image.fromarray(rng.integers(118, 123, (16, 16), dtype=np.uint8))) for _ in range(20)]
    assert find_duplicates(facts_of(flat + faint)) == find_duplicates(facts_of([]))


def test_many_near_duplicates_form_one_cluster():
    n = 20_000
    rng = np.random.default_rng(0)
    facts = ImageFacts.empty(n)
    facts.ok[:] = True
    facts.digests = rng.integers(0, 256, (n, 16), dtype=np.uint8)
    facts.thumbs[:] = rng.integers(0, 256, (16, 16))
    assert [len(cluster) for cluster in find_duplicates(facts).near] == [n]


def test_undecodable_images_are_not_duplicates():
    assert find_duplicates(facts_of([b"", b"", b"no", b"no"])) == find_duplicates(facts_of([]))


def test_leaks_across_splits():
    train = facts_of([photo(k) for k in range(10)])
    test = facts_of([photo(20), photo(3), photo(21), photo(5, quality=50)])
    leaks = find_leaks({"train": train, "test": test})
    assert [(leak.split, leak.id, leak.train_id, leak.kind) for leak in leaks] == [
        ("test", 1, 3, "exact"),
        ("test", 3, 5, "near"),
    ]
    sentence = describe_leakage({"train": train, "test": test})
    assert "1 test image is an exact copy of train images; 1 test image is a near duplicate" in sentence
    assert describe_leakage({"train": train, "val": facts_of([photo(30)])}) is None


@pytest.fixture
def messy(tmp_path):
    put_classes(tmp_path / "train", {"cat": 12, "dog": 3})
    put_classes(tmp_path / "test", {"cat": 2, "dog": 2}, 100)
    raw = (tmp_path / "train" / "cat" / "002.png").read_bytes()
    (tmp_path / "train" / "cat" / "copy.png").write_bytes(raw)
    (tmp_path / "test" / "cat" / "leak.png").write_bytes(raw)
    (tmp_path / "train" / "dog" / "cut.png").write_bytes(raw[:100])
    (tmp_path / "train" / "dog" / "named.png").write_bytes(encoded(picture(200, 64, 64), "JPEG"))
    put(tmp_path / "unlabelled" / "x.png", 300)
    return tmp_path


def test_inspect_finds_all_problems(messy):
    progress = []
    found = data.inspect(messy, on_progress=lambda done, total: progress.append(done))
    train = found.splits["train"]
    assert (train.images, train.usable) == (18, 17)
    assert train.classes == {"cat": 13, "dog": 5}
    assert train.imbalance == pytest.approx(2.6)
    assert train.width == (48, 48, 64)
    assert train.formats == {"PNG": 16, "JPEG": 1}
    assert train.exact_duplicates == [["train/cat/002.png", "train/cat/copy.png"]]
    assert [(file.key, file.reason) for file in found.bad] == [("train/dog/cut.png", "truncated")]
    assert found.leakage == [
        {"split": "test", "key": "test/cat/leak.png", "train_key": "train/cat/002.png", "kind": "exact"}
    ]
    assert any("1 test image is an exact copy" in warning for warning in found.warnings)
    assert any("train/dog/named.png is JPEG" in note for note in found.notes)
    assert set(found.splits) == {"train", "test", "pool"}
    assert progress[-1] == 24


def test_inspection_renders_as_json_and_on_a_terminal(messy):
    found = data.inspect(messy)
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["splits"]["test"]["images"] == 5
    assert again["bad"][0]["reason"] == "truncated"
    console = Console(file=io.StringIO(), width=120)
    print_inspection(found, console)
    text = console.file.getvalue()
    for words in (
        "48 .. 48 .. 64",
        "cannot be used (1)",
        "train/dog/cut.png: truncated",
        "warning: 1 test image is an exact copy of train images",
    ):
        assert words in text


def test_inspect_many_classes_and_odd_names(tmp_path):
    put_classes(tmp_path, {f"[red]c{k:02}": 1 for k in range(40)})
    console = Console(file=io.StringIO(), width=120)
    found = data.inspect(tmp_path)
    print_inspection(found, console)
    assert "[red]c00" in console.file.getvalue()
    assert "(24 more)" in console.file.getvalue()


def test_inspect_when_nothing_can_be_decoded(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(b"")
    found = data.inspect(tmp_path)
    assert found.splits["train"].width is None
    print_inspection(found, Console(file=io.StringIO()))
