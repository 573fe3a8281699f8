"""Arrays of HDF5 files, read in another process."""

from __future__ import annotations

import pickle
import signal

import numpy as np
import pytest

from vitling.errors import InvalidFile
from vitling.papers.datasets.hdf5 import MOST_CRASHES, H5Reader

h5py = pytest.importorskip("h5py")


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
        file["text"] = np.array([b"a", b"b"])
    return tmp_path / "a.h5"


def test_rows_and_whole_arrays(path):
    reader = H5Reader(path, "x")
    assert reader(2).tolist() == [[12, 13, 14], [15, 16, 17]]
    assert reader.read_all().shape == (4, 2, 3)
    assert pickle.loads(pickle.dumps(reader))(0).dtype == np.uint8


def test_an_interrupt_of_the_terminal_is_left_to_the_parent(path):
    reader = H5Reader(path, "x")
    assert reader(0).sum() == 15
    reader.child[1].send_signal(signal.SIGINT)
    assert reader(1).sum() == 51


def test_a_crash_concerns_one_image(path):
    reader = H5Reader(path, "x")
    assert reader(0).sum() == 15
    reader.child[1].kill()
    reader.child[1].wait()
    with pytest.raises(InvalidFile, match="its reader crashed"):
        reader(1)
    assert reader(1).sum() == 51


def test_rows_that_cannot_be_read_keep_the_child(path):
    reader = H5Reader(path, "x")
    for _ in range(2):
        with pytest.raises(InvalidFile, match="out of range"):
            reader(9)
    first = reader.child[1].pid
    assert reader(1).sum() == 51
    assert reader.child[1].pid == first


def test_a_file_that_crashes_often_is_given_up(path):
    reader = H5Reader(path, "x")
    for _ in range(MOST_CRASHES):
        assert reader(0).sum() == 15
        reader.child[1].kill()
        reader.child[1].wait()
        with pytest.raises(InvalidFile, match="its reader crashed"):
            reader(1)
    with pytest.raises(InvalidFile, match="its reader crashed"):
        reader(0)
    assert reader.child is None


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [("y", 0, "expected an array 'y'"), ("x", 9, "out of range"), ("text", 0, "contains no numbers")],
)
def test_what_cannot_be_read_is_named(path, name, row, reason):
    with pytest.raises(InvalidFile, match=reason):
        H5Reader(path, name)(row)


def test_files_that_are_not_hdf5_are_refused(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"nothing")
    with pytest.raises(InvalidFile, match="cannot be read as an HDF5 file"):
        H5Reader(tmp_path / "a.h5", "x")(0)


def test_a_row_far_larger_than_an_image_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:  # 1.4 kB: no chunk is ever written
        file.create_dataset("x", (4, 25000, 25000, 3), "u1", chunks=(1, 1000, 1000, 3), compression="gzip")
    with pytest.raises(InvalidFile, match="an image of 1,875 MB"):
        H5Reader(tmp_path / "a.h5", "x")(0)
