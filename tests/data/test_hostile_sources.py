"""Data sets from elsewhere: a source or a UserError, whatever the files hold."""

from __future__ import annotations

import io
import os
import tarfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_folder
from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes, json_texts
from vitling.data.config import DataConfig
from vitling.data.sources import read_source
from vitling.loading import find_matches


def make_tar(label: str = '{"label": "cat"}') -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a.jpg", b"x" * 20), ("a.json", label.encode("utf-8", "replace"))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@QUICK
@given(raw=damaged_bytes(make_tar()))
def test_damaged_tars_are_read_or_refused(raw, tmp_path):
    (tmp_path / "a.tar").write_bytes(raw)
    accepts_or_refuses(read_source, str(tmp_path / "a.tar"), DataConfig())


@QUICK
@given(label=json_texts)
def test_labels_of_any_shape_are_read_or_refused(label, tmp_path):
    (tmp_path / "a.tar").write_bytes(make_tar(label))
    found = accepts_or_refuses(read_source, str(tmp_path / "a.tar"), DataConfig())
    assert found is None or "".join(found.class_order or ()).encode() is not None


@QUICK
@given(text=st.text(max_size=80).map(lambda text: f"path,label,split\n{text}"))
def test_tables_of_any_text_are_read_or_refused(text, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8", "replace"))
    accepts_or_refuses(read_source, str(tmp_path / "a.csv"), DataConfig())


@QUICK
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(["u1", "f4", "c8", "U3", "S2", "M8[s]", "i8", "?"]),
)
def test_labels_of_any_type_are_read_or_refused(shape, dtype, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4, 4), np.uint8), y=np.zeros(shape, dtype))
    accepts_or_refuses(read_source, str(tmp_path / "a.npz"), DataConfig())


def test_folders_that_link_to_each_other_end(tmp_path):
    root = make_folder(tmp_path / "images", classes=8, each=1)
    names = sorted(path.name for path in root.iterdir())
    for here in names:
        for there in names:
            (root / here / f"to-{there}").symlink_to(root / there)
    found = read_source(str(root), DataConfig())
    assert 8 <= len(found.splits["train"]) < 2000
    assert len(find_matches(f"{root}/**/*.png")) == 8


def test_patterns_match_below_hidden_folders_that_they_name(tmp_path, monkeypatch):
    root = make_folder(tmp_path / ".cache" / "images", classes=2, each=1)
    (root / ".trash").mkdir()
    (root / ".trash" / "old.png").touch()
    monkeypatch.chdir(tmp_path / ".cache" / "images" / "class-0")
    assert len(find_matches(f"{root}/**/*.png")) == 2
    assert len(find_matches("../**/*.png")) == 2


def test_a_class_folder_may_be_a_link(tmp_path):
    root = make_folder(tmp_path / "images", classes=2, each=3)
    (tmp_path / "linked").mkdir()
    for name in ("class-0", "class-1"):
        (tmp_path / "linked" / name).symlink_to(root / name)
    assert len(read_source(str(tmp_path / "linked"), DataConfig()).splits["train"]) == 6


def test_names_that_are_not_utf8_can_be_written(tmp_path):
    root = make_folder(tmp_path / "images", classes=2, each=1)
    os.rename(root / "class-0", os.fsencode(root) + b"/caf\xe9")
    found = read_source(str(root), DataConfig()).splits["train"]
    assert ("caf\\xe9",) in found.labels
    assert "".join(found.keys).encode()
