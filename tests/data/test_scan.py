from __future__ import annotations

import numpy as np
import pytest
from pictures import put_classes

from vitling import data
from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset
from vitling.data.decode import decode, squash
from vitling.data.scan import ImageFacts, scan


@pytest.fixture
def dataset(tmp_path):
    root = put_classes(tmp_path, {"a": 20, "b": 20})
    (root / "a" / "003.png").write_bytes(b"")
    (root / "b" / "001.png").write_text("hello")
    opened = data.open(root, val="none").train
    (root / "b" / "002.png").unlink()
    return opened


def test_facts_and_pixels(dataset):
    out = np.zeros((40, 3, 24, 24), np.uint8)
    progress = []
    facts = scan(dataset, 24, out, DataConfig(), workers=2, on_progress=progress.append)
    assert facts.reasons == {
        3: "empty file",
        21: "not an image (starts with 'hello')",
        22: "cannot be read: No such file or directory",
    }
    assert facts.ok.sum() == 37
    assert (facts.width[0], facts.height[0], facts.modes[0], facts.formats[0]) == (48, 32, "RGB", "PNG")
    assert np.array_equal(out[5], squash(decode(dataset.read(5)), 24, 3))
    assert not out[3].any()
    assert progress[-1] == 40
    assert progress == sorted(progress)


def test_facts_of_selected_images(dataset):
    whole = scan(dataset)
    taken = whole.take([21, 0, 39])
    assert taken.reasons == {0: whole.reasons[21]}
    assert np.array_equal(taken.thumbs, whole.thumbs[[21, 0, 39]])
    assert np.array_equal(taken.digests, whole.digests[[21, 0, 39]])


def test_facts_are_stored_without_pickle(dataset, tmp_path):
    facts = scan(dataset)
    np.savez(tmp_path / "facts.npz", **facts.to_arrays())
    with np.load(tmp_path / "facts.npz", allow_pickle=False) as arrays:
        again = ImageFacts.from_arrays(arrays)
    assert again.reasons == facts.reasons
    assert again.formats == facts.formats
    for name in ("ok", "width", "height", "digests", "thumbs"):
        assert np.array_equal(getattr(again, name), getattr(facts, name))
    assert len(ImageFacts.from_arrays(ImageFacts.empty(0).to_arrays())) == 0


def test_array_digests_depend_on_the_shape():
    flat = np.arange(12, dtype=np.uint8)
    rows = [flat.reshape(3, 4, 1), flat.reshape(4, 3, 1), flat.reshape(3, 4, 1)]
    facts = scan(Dataset("arrays", list("abc"), rows.__getitem__, np.arange(3)))
    assert facts.ok.all()
    assert np.array_equal(facts.digests[0], facts.digests[2])
    assert not np.array_equal(facts.digests[0], facts.digests[1])


def test_reader_errors_become_reasons():
    def fail(row: int) -> bytes:
        raise RuntimeError("the disk is on fire")

    facts = scan(Dataset("x", ["a"], fail, np.arange(1)))
    assert facts.reasons == {0: "cannot be read: the disk is on fire"}


def test_out_must_have_the_right_shape(dataset):
    with pytest.raises(ValueError, match="out has shape"):
        scan(dataset, 24, np.zeros((40, 1, 24, 24), np.uint8))
