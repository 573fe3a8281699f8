"""Data sets from elsewhere: a source or a UserError, whatever the files hold."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_folder
from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes, json_texts, values
from vitling import loading
from vitling.data.annotations.files import open_files
from vitling.data.config import DataConfig
from vitling.data.scan import scan
from vitling.data.sources import parquet, read_source
from vitling.data.sources.source import Source, sort_class_names
from vitling.data.splits import read_splits
from vitling.errors import InvalidFile, UserError
from vitling.loading import check_expansion, find_matches


def make_tar(label: str = '{"label": "cat"}', folder: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in ((f"{folder}a.jpg", b"x" * 20), (f"{folder}a.json", label.encode("utf-8", "replace"))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


IMAGES = pa.array([{"bytes": b"x" * 20, "path": "a.png"}] * 3)
COLUMNS = st.sampled_from(
    [
        IMAGES,
        pa.array([b"x", None, b"y"]),
        pa.array([b"x"] * 3, pa.large_binary()),
        pa.array([b"xy"] * 3, pa.binary(2)),
        pa.array([{"bytes": 1}] * 3),
        pa.array([{"bytes": None}] * 3),
        pa.array([None] * 3, pa.struct([("bytes", pa.binary())])),
        pa.array([0, 1, -1]),
        pa.array([2**63] * 3, pa.uint64()),
        pa.array([0.5, float("nan"), None]),
        pa.array([True, False, None]),
        pa.array(["cat", "", None]),
        pa.array([[0, 1], [], None]),
        pa.array([[[0]], [["x"][:0]], [None]]),
        pa.array([{"a": 1}] * 3),
        pa.array([None] * 3),
        pa.array([0, 1, 2], pa.timestamp("s")),
        pa.array(["cat", "dog", "cat"]).dictionary_encode(),
        pa.array([10**20] * 3, pa.decimal128(30)),
    ]
)
COLUMN_SETS = st.dictionaries(st.sampled_from(["image", "img", "label", "group", ""]), COLUMNS)
FEATURES = st.one_of(
    json_texts, values.map(lambda names: json.dumps({"info": {"features": {"label": {"names": names}}}}))
)


def make_parquet(columns: dict[str, pa.Array], features: str = "{}") -> bytes:
    table, buffer = pa.table(columns), io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"huggingface": features.encode("utf-8", "replace")}), buffer)
    return buffer.getvalue()


def make_intact_parquet() -> bytes:
    return make_parquet({"image": IMAGES, "label": pa.array([0, 1, 0])})


def read_whole_parquet(path: Path) -> Source:
    """Read the source and each of its images, as a scan does: a bad image raises an Exception and is listed."""
    source = read_source(str(path), DataConfig(group_column="group"))
    for split in source.splits.values():
        for row in split.rows:
            try:
                content = split.reader(row)
            except Exception:
                continue
            assert isinstance(content, bytes)
    return source


@QUICK
@given(raw=damaged_bytes(make_intact_parquet()))
def test_damaged_parquet_is_read_or_refused(raw, tmp_path):
    (tmp_path / "a.parquet").write_bytes(raw)
    accepts_or_refuses(read_whole_parquet, tmp_path / "a.parquet")


def test_a_damaged_parquet_file_is_refused_in_one_line(tmp_path):
    raw = make_intact_parquet()
    footer = int.from_bytes(raw[-8:-4], "little")
    (tmp_path / "a.parquet").write_bytes(raw[: -8 - footer] + bytes(footer) + raw[-8:])
    with pytest.raises(UserError, match="cannot be read as Parquet") as refusal:
        read_source(str(tmp_path / "a.parquet"), DataConfig())
    assert "\n" not in str(refusal.value)


@QUICK
@given(columns=COLUMN_SETS, features=FEATURES)
def test_parquet_columns_of_any_type_are_read_or_refused(columns, features, tmp_path):
    (tmp_path / "a.parquet").write_bytes(make_parquet(columns, features))
    source = accepts_or_refuses(read_whole_parquet, tmp_path / "a.parquet")
    assert source is None or all(isinstance(name, str) for name in source.class_order or ())


@pytest.mark.parametrize("label", [["a"] * 2, pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 3), np.int64))])
def test_odd_label_columns_are_read_or_refused(label, tmp_path):
    columns = {"image": [b"", b""], "label": label, "other": ["a", "b"]}
    names = ["image", "label", "label" if isinstance(label, list) else "other"]
    table = pa.table([pa.array(c) if isinstance(c, list) else c for c in columns.values()], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    accepts_or_refuses(read_splits, str(tmp_path / "a.parquet"), DataConfig())


def test_torchvisions_own_failures_are_named(tmp_path):
    (tmp_path / "gtsrb/GTSRB/Training").mkdir(parents=True)
    with pytest.raises(UserError, match="GTSRB"):
        read_source(f"torchvision:GTSRB?root={tmp_path}", DataConfig())


@pytest.mark.parametrize("arguments", ["size=x", "size=-5", "size=5&num_classes=0", "size=999999999999999999"])
def test_torchvision_arguments_that_it_does_not_check_are_named(arguments):
    with pytest.raises(UserError, match="torchvision's FakeData"):
        read_source(f"torchvision:FakeData?{arguments}", DataConfig())


def test_braces_with_a_recursive_search_are_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be combined"):
        read_source(f"{tmp_path}/**/{{0..99999}}.tar", DataConfig())


@pytest.mark.parametrize("label", ["NaN", '{"label": Infinity}', '{"label": [NaN, "b"]}'])
def test_labels_of_a_tar_that_are_not_finite_are_named(tmp_path, label):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (("0.png", b"x"), ("0.json", label.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(UserError, match="not finite"):
        read_source(str(tmp_path / "a.tar"), DataConfig())


def test_torchvision_creates_no_folder(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        read_source(f"torchvision:Caltech101?root={tmp_path / 'new'}&x={'9' * 5000}", DataConfig())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("spec", ["~no-such-user/images", f"embedded:digits?labels={'9' * 5000}"])
def test_odd_names_of_data_are_refused(spec):
    with pytest.raises(UserError, match=r"no such user|use labels"):
        read_source(spec, DataConfig())


def test_times_that_python_cannot_express_are_refused(tmp_path):
    times = pa.array([2**62] * 2, pa.duration("s"))
    pq.write_table(pa.table({"image": [b"", b""], "label": times}), tmp_path / "a.parquet")
    accepts_or_refuses(read_whole_parquet, tmp_path / "a.parquet")


@QUICK
@given(raw=damaged_bytes(make_tar()))
def test_damaged_tars_are_read_or_refused(raw, tmp_path):
    (tmp_path / "a.tar").write_bytes(raw)
    accepts_or_refuses(read_source, str(tmp_path / "a.tar"), DataConfig())


@pytest.mark.parametrize("read", [lambda spec: read_source(spec, DataConfig()), open_files])
def test_names_of_very_many_folders_are_refused(read, tmp_path):
    (tmp_path / "a.tar").write_bytes(make_tar(folder="a/" * 5_000))
    with pytest.raises(UserError, match=r"a\.tar: the name a/a/.*\.\.\. has over 4,096 characters"):
        read(str(tmp_path / "a.tar"))


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


def test_class_names_of_very_many_digits_are_text(tmp_path):
    long = "9" * 5000
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4, 4), np.uint8), y=np.array(["10", "2", long]))
    assert read_source(str(tmp_path / "a.npz"), DataConfig()).class_order == ("10", "2", long)
    assert sort_class_names({"10", "2", "9" * 18}) == ("2", "10", "9" * 18)


@pytest.mark.parametrize("name", ["a.tar", "a.parquet"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}.*Not a regular file"):
        read_source(str(tmp_path), DataConfig())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_labels_from_a_pipe_or_device_are_refused(make, tmp_path):
    root = make_folder(tmp_path / "images", classes=2, each=1)
    make(tmp_path / "labels.csv")
    with pytest.raises(UserError, match=r"labels\.csv cannot be read: Not a regular file"):
        read_source(str(root), DataConfig(), str(tmp_path / "labels.csv"))


def test_rows_without_content_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_ROWS", 1000)
    (tmp_path / "a.parquet").write_bytes(make_parquet({"image": pa.nulls(10**6, pa.binary())}))
    with pytest.raises(UserError, match=r"a\.parquet: 1,000,000 rows in .* bytes cannot be images"):
        read_source(str(tmp_path / "a.parquet"), DataConfig())


@pytest.mark.parametrize("column", ["image", "label"])
def test_parquet_values_that_are_repeated_often_are_refused(column, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "MAX_UNPACKED", 10**6)
    columns = {"image": pa.array([b"x"] * 3000), "label": pa.array(["a"] * 3000)}
    value = pa.array([b"y" * 10_000] * 3000) if column == "image" else pa.array(["y" * 10_000] * 3000)
    (tmp_path / "a.parquet").write_bytes(make_parquet({**columns, column: value}))
    read = parquet.ParquetReader(tmp_path / "a.parquet", "image") if column == "image" else None
    for row in range(2):
        with pytest.raises(UserError, match=r"a\.parquet: unpacks to"):
            read(row) if read else read_source(str(tmp_path / "a.parquet"), DataConfig())


@pytest.mark.parametrize("packed", [False, True])
def test_an_image_file_that_is_too_large_is_bad_and_the_others_are_read(packed, tmp_path, monkeypatch):
    root = make_folder(tmp_path / "images", classes=2, each=2)
    (root / "class-0" / "big.png").write_bytes(b"")
    os.truncate(root / "class-0" / "big.png", 10**6)
    if packed:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(root, ".")
    monkeypatch.setattr(loading, "MAX_FILE", 10**5)
    split = read_splits(str(tmp_path / "a.tar" if packed else root), DataConfig()).train
    assert list(scan(split).reasons.values()) == ["cannot be read: Too large: 0.0 GB, over 0.0001 GB"]


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


@pytest.mark.parametrize(
    "braces",
    ["{0..99999999}", "{0..9}" * 9, "{a,b}" * 60, "{1..0}{0..99999999}"],
    ids=["many", "product", "words", "none"],
)
def test_braces_that_stand_for_too_many_files_are_refused(tmp_path, braces):
    with pytest.raises(UserError, match="more than 100,000 files"):
        read_source(f"{tmp_path}/d-{braces}.tar", DataConfig())


@pytest.mark.parametrize("last", ["9" * 5000, "9".zfill(21)])
def test_braces_with_very_long_numbers_are_refused(tmp_path, last):
    with pytest.raises(UserError, match="a number in braces has over 18 digits"):
        read_source(f"{tmp_path}/d-{{{'0'.zfill(21)}..{last}}}.tar", DataConfig())


def test_braces_inside_braces_are_expanded_once(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_source(f"{tmp_path}/{'{' * 40}a,b{',c}' * 40}.tar", DataConfig())


@pytest.mark.parametrize("name", ["LSUNClass", "VisionDataset"])
def test_torchvision_datasets_that_cannot_be_used_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="torchvision"):
        read_source(f"torchvision:{name}?root={tmp_path}", DataConfig())


def test_no_data_starts_a_download_by_itself(tmp_path):
    with pytest.raises(UserError, match="leave out download"):
        read_source(f"torchvision:MNIST?root={tmp_path}&download=true", DataConfig())
    assert not list(tmp_path.iterdir())


def read_first(path: Path) -> None:
    split = read_source(str(path), DataConfig()).splits["train"]
    split.reader(split.rows[0])


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_large_value_that_rows_share_is_not_read_for_many_at_once(column, tmp_path, monkeypatch):
    """Read 64 rows that refer to one value of 10 MB, which is packed to almost nothing, with a limit of 50 MB."""
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([b"0" * 10**7]))
    columns = {"image": pa.array([b"x"] * 64), "label": pa.array([0, 1] * 32)} | {column: large}
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**31 - 1, "store_schema": False}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", **options)
    for module, name in ((loading, "MAX_UNPACKED"), (parquet, "MAX_UNPACKED")):
        monkeypatch.setattr(module, name, 5 * 10**7)
    seen = []
    monkeypatch.setattr(parquet, "check_expansion", lambda path, size: (seen.append(size), check_expansion(path, size)))
    with pytest.raises(InvalidFile, match="unpacks to"):
        read_first(tmp_path / "a.parquet")
    assert max(seen) <= 11 * 10**7


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_of_a_megabyte_is_refused(kind, tmp_path):
    header = tarfile.TarInfo("p")
    header.type, header.size = kind, 10**6
    (tmp_path / "a.tar").write_bytes(header.tobuf() + b"1" * 10**6 + bytes(2048))
    with pytest.raises(UserError, match="a header of 1,000,000 bytes"):
        read_source(str(tmp_path / "a.tar"), DataConfig())
