"""The content hash of a split: images and labels count; names, places and order do not."""

from __future__ import annotations

import hashlib
import io
import tarfile

import numpy as np
import pytest
from rich.console import Console

from tests.data.pictures import put, put_classes
from vitling import data
from vitling.data.content import hash_content, hash_records, make_records, read_digests
from vitling.data.inspection import inspect
from vitling.data.inspection_tables import print_inspection
from vitling.data.store import build_store


@pytest.fixture
def photos(tmp_path):
    return put_classes(tmp_path / "photos", {"cat": 3, "dog": 4})


def open_train(path):
    return data.open(str(path), val="none").train


def compute_literally(root):
    """Hash the files of class folders by the definition."""
    records = []
    for path in root.glob("*/*.png"):
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
        record = hashlib.blake2b(digest, digest_size=16)
        record.update(b"\0" + path.parent.name.encode())
        records.append(record.digest())
    return hashlib.blake2b(b"vitling split 1" + b"".join(sorted(records)), digest_size=8).hexdigest()


def test_folders_are_hashed_by_the_definition(photos):
    assert hash_content(open_train(photos)) == compute_literally(photos)


def test_names_places_and_containers_do_not_count(photos, tmp_path):
    before = hash_content(open_train(photos))
    photos.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "cat" / "000.png").rename(tmp_path / "elsewhere" / "cat" / "zzz.png")
    assert hash_content(open_train(tmp_path / "elsewhere")) == before
    with tarfile.open(tmp_path / "some-train.tar", "w") as archive:
        archive.add(tmp_path / "elsewhere", "train")
    assert hash_content(open_train(tmp_path / "some-train.tar")) == before


def test_bytes_labels_and_copies_count(photos):
    hashes = [hash_content(open_train(photos))]
    (photos / "cat" / "000.png").rename(photos / "dog" / "moved.png")
    hashes.append(hash_content(open_train(photos)))
    (photos / "dog" / "copy.png").write_bytes((photos / "dog" / "moved.png").read_bytes())
    hashes.append(hash_content(open_train(photos)))
    put(photos / "cat" / "001.png", 99)
    hashes.append(hash_content(open_train(photos)))
    assert len(set(hashes)) == 4


def test_inspection_store_and_files_agree(photos):
    (photos / "cat" / "bad.png").write_bytes(b"hello")
    train, found = open_train(photos), inspect(photos).splits["train"].content_hash
    stores = [build_store(train, 8, allow_bad=True) for _ in range(2)]  # the second one is read from the cache
    assert {hash_content(train), *(store.content_hash for store in stores)} == {found}


def test_the_table_shows_the_hash(photos):
    found, console = inspect(photos), Console(width=100, file=io.StringIO())
    print_inspection(found, console)
    assert found.splits["train"].content_hash in console.file.getvalue()
    assert found.to_json()["splits"]["train"]["content_hash"] == hash_content(open_train(photos))


def test_parts_combine_to_the_hash_of_the_whole(photos):
    whole = open_train(photos)
    parts = [whole.take(ids) for ids in ([5, 0, 3], [1, 2, 4, 6])]
    records = [make_records(part, read_digests(part)) for part in parts]
    assert hash_records(*records) == hash_content(whole) != hash_records(records[0])


def test_arrays_and_several_labels(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    order = [2, 0, 3, 1]
    for name, ids in (("a", [0, 1, 2, 3]), ("b", order)):
        np.savez(tmp_path / f"{name}.npz", x=x[ids], y=np.array([0, 1, 0, 1])[ids])
    first, second = (hash_content(open_train(tmp_path / f"{name}.npz")) for name in "ab")
    assert first == second
    np.savez(tmp_path / "c.npz", x=x, y=np.array([[0, 1], [1, 1], [1, 0], [0, 1]], bool))
    assert hash_content(open_train(tmp_path / "c.npz")) != first
