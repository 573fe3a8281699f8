from __future__ import annotations

import io
import json
import math
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, picture, put

from vitling import data
from vitling.data.config import DataConfig
from vitling.data.inspection import inspect
from vitling.data.sources import read_source
from vitling.data.splits import read_splits
from vitling.errors import UserError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def images(tmp_path):
    for k in range(6):
        put(tmp_path / "pics" / f"{k}.png", k)
    return tmp_path


def test_table_with_splits_groups_and_a_missing_file(images):
    rows = (
        "path,label,split,group\npics/0.png,b,,p1\npics/1.png,a,train,p1\n"
        "pics/2.png,b,valid,p2\npics/3.png,a,test,p3\npics/9.png,a,test,p3\n"
    )
    splits = data.open(write(images / "list.csv", rows))
    assert splits.train.keys == ["pics/0.png", "pics/1.png"]
    assert splits.train.class_names == ("a", "b")
    assert splits.train.labels.tolist() == [1, 0]
    assert splits.train.groups.tolist() == [0, 0]
    assert splits.val.read(0) == (images / "pics" / "2.png").read_bytes()
    assert [(f.key, f.reason, f.split) for f in splits.bad] == [("pics/9.png", "no such file", "test")]
    assert len(splits.open_test("t")) == 1


@pytest.mark.parametrize("separator", ["|", ";", ","])
def test_several_labels_in_a_cell(images, separator):
    rows = f'path,label\npics/0.png,"cat{separator}dog"\npics/1.png,dog\npics/2.png,"cow {separator} cat"\n'
    train = data.open(write(images / "list.csv", rows), val="none").train
    assert train.task == "multi"
    assert train.class_names == ("cat", "cow", "dog")
    assert train.labels.tolist() == [[True, False, True], [False, False, True], [True, True, False]]


def test_only_the_first_separator_splits_labels(images):
    rows = 'path,label\npics/0.png,"a, b|c"\npics/1.png,"a, b"\n'
    assert data.open(write(images / "l.csv", rows), val="none").train.class_names == ("a, b", "c")
    single = data.open(images / "l.csv", DataConfig(label_separator=""), val="none").train
    assert single.class_names == ("a, b", "a, b|c")


def test_rows_without_a_label_join_the_pool(images):
    rows = (
        "path\tlabel\tsplit\npics/0.png\ta\t\npics/1.png\tb\t\npics/2.png\t\t\n"
        "pics/3.png\t\tunlabelled\npics/4.png\t\ttest\npics/5.png\ta\ttest\n"
    )
    splits = data.open(write(images / "list.tsv", rows), val="none")
    assert sorted(splits.pool.keys) == ["pics/2.png", "pics/3.png"]
    assert splits.pool.labels is None
    assert len(splits.open_test("t")) == 1
    assert [(f.key, f.reason) for f in splits.bad] == [("pics/4.png", "no label")]
    assert any("unlabelled pool: 1 image without" in note for note in splits.notes)


def test_table_with_other_column_names(images):
    path = write(
        images / "list.csv", "\ufefffile;kind;fold\npics/0.png;a;train\npics/1.png;b;test\npics/2.png;b;train\n"
    )
    with pytest.raises(UserError, match=r'no column "path", only file, kind, fold. Pass --data.path-column'):
        data.open(path)
    with pytest.raises(UserError, match=r'no column "label".*--data.label-column'):
        data.open(path, DataConfig(path_column="file"))
    with pytest.raises(UserError, match='no column "part"'):
        data.open(path, DataConfig(path_column="file", label_column="kind", split_column="part"))
    splits = data.open(path, DataConfig(path_column="file", label_column="kind", split_column="fold"), val="none")
    assert (len(splits.train), len(splits.open_test("t"))) == (2, 1)
    unlabelled = data.open(path, DataConfig(path_column="file", label_column=""))
    assert unlabelled.train.task == "none"


def test_table_errors(images):
    with pytest.raises(UserError, match='line 3: unknown split "tset"'):
        data.open(write(images / "a.csv", "path,label,split\npics/0.png,a,train\npics/1.png,a,tset\n"))
    with pytest.raises(UserError, match="None of the 1 files"):
        data.open(write(images / "b.csv", "path,label\nx.png,a\n"))
    with pytest.raises(UserError, match="no rows"):
        data.open(write(images / "c.csv", "path,label\n"))
    (images / "d.csv").write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(UserError, match="not UTF-8"):
        data.open(images / "d.csv")


def huggingface(names):
    metadata = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}}
    return {"huggingface": json.dumps(metadata)}


def write_parquet(path, seeds, labels, names=None, struct=True):
    raws = [encoded(picture(seed)) for seed in seeds]
    images = [{"bytes": raw, "path": None} for raw in raws] if struct else raws
    table = pa.table({"image": images, "label": labels})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table.replace_schema_metadata(huggingface(names) if names else None), path, row_group_size=2)


def test_parquet_folder_in_hugging_face_layout(tmp_path):
    names = ["zebra", "ant"]
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1, 2], [0, 1, 0], names)
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [3, 4], [1, 1], names)
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", [5], [1], names)
    splits = data.open(tmp_path, val="none")
    assert splits.train.class_names == ("zebra", "ant")
    assert splits.train.labels.tolist() == [0, 1, 0, 1, 1]
    assert len(splits.open_test("t")) == 1
    again = pickle.loads(pickle.dumps(splits.train))
    assert [again.read(i) for i in range(5)] == [encoded(picture(seed)) for seed in range(5)]


def test_parquet_with_plain_bytes_and_string_or_integer_labels(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1], ["b", "a"], struct=False)
    assert data.open(tmp_path / "a.parquet", val="none").train.class_names == ("a", "b")
    write_parquet(tmp_path / "b.parquet", [0, 1, 2], [10, 9, -1])
    splits = data.open(tmp_path / "b.parquet", val="none")
    assert splits.train.class_names == ("9", "10")
    assert len(splits.pool) == 1


def test_parquet_with_lists_is_multi_label(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1, 2], [[0, 1], [1], []], ["x", "y"])
    assert data.open(tmp_path / "a.parquet", val="none").train.labels.tolist() == [[1, 1], [0, 1], [0, 0]]


def test_parquet_errors(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        data.open(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"no column with image bytes, only x"):
        data.open(tmp_path / "b.parquet")
    pq.write_table(pa.table({"image": [{"bytes": 1}]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"no column with image bytes, only image"):
        data.open(tmp_path / "c.parquet")
    write_parquet(tmp_path / "d.parquet", [0, 1], [0, 1], ["x", "y"])
    content = (tmp_path / "d.parquet").read_bytes().replace(b"label", b"l\xffbel")
    (tmp_path / "d.parquet").write_bytes(content)  # a column whose name is not UTF-8
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        data.open(tmp_path / "d.parquet")


def write_tar(path, members: dict[str, bytes]):
    with tarfile.open(path, "w") as file:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            file.addfile(info, io.BytesIO(raw))


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize("labels", [[0.0, math.nan, 1.0], [math.nan] * 3])
def test_a_label_that_is_nan_is_missing(tmp_path, kind, labels):
    path = tmp_path / f"d.{kind}"
    if kind == "npz":
        np.savez(path, x=np.zeros((3, 8, 8, 3), np.uint8), y=np.array(labels))
    else:
        pq.write_table(pa.table({"image": [encoded(picture(0))] * 3, "label": labels}), path)
    source = read_source(str(path), DataConfig())
    if math.isnan(labels[0]):
        assert source.splits["train"].labels is None
    else:
        assert source.splits["train"].labels == [("0.0",), ("1.0",)]
        assert len(source.splits["pool"]) == 1


def test_webdataset_shards_from_a_brace_pattern(tmp_path):
    for shard in range(2):
        members = {}
        for k in range(3):
            key = f"{shard:02}{k:04}"
            members |= {
                f"{key}.jpg": encoded(picture(10 * shard + k), "JPEG"),
                f"{key}.cls": b"%d" % (9 + k % 2),
                f"{key}.seg.png": b"x",
            }
        write_tar(tmp_path / f"d-{shard:06}.tar", members)
    splits = data.open(f"{tmp_path}/d-{{000000..000001}}.tar", val="none")
    assert len(splits.train) == 6
    assert splits.train.class_names == ("9", "10")
    assert splits.train.labels.tolist() == [0, 1, 0] * 2
    assert splits.train.read(4) == encoded(picture(11), "JPEG")
    assert pickle.loads(pickle.dumps(splits.train)).read(5) == encoded(picture(12), "JPEG")
    assert len(data.open(f"{tmp_path}/d-*.tar", val="none").train) == 6
    assert inspect(f"{tmp_path}/d-*.tar").splits["train"].images == 6
    with pytest.raises(UserError, match=r"no file for .*d-000002\.tar"):
        data.open(f"{tmp_path}/d-{{000000..000002}}.tar")


def test_webdataset_json_labels(tmp_path):
    samples = {"a": {"label": "cat"}, "b": {"label": ["cat", "dog"]}, "c": {"caption": "x"}}
    members = {}
    for k, (key, label) in enumerate(samples.items()):
        members |= {f"{key}.png": encoded(picture(k)), f"{key}.json": json.dumps(label).encode()}
    write_tar(tmp_path / "x.tar", members)
    splits = data.open(tmp_path / "x.tar", val="none")
    assert splits.train.labels.tolist() == [[True, False], [True, True]]
    assert splits.pool.keys == ["c.png"]


@pytest.mark.parametrize("wrap", ["", "./", "flowers/"])
def test_tar_of_class_folders(tmp_path, wrap):
    names = ["train/b/0.webp", "train/a/1.v2.webp", "train/a/0.webp", "test/a/2.webp", "train/._x.webp"]
    write_tar(tmp_path / "t.tar", {wrap + name: encoded(picture(k), "WEBP") for k, name in enumerate(names)})
    splits = data.open(tmp_path / "t.tar", val="none")
    assert splits.train.class_names == ("a", "b")
    assert splits.train.keys == ["train/a/0.webp", "train/a/1.v2.webp", "train/b/0.webp"]
    assert splits.train.read(0) == encoded(picture(2), "WEBP")
    assert len(splits.open_test("t")) == 1


def test_folder_of_tars_named_by_split(tmp_path):
    for split, first in (("train", 0), ("test", 10)):
        members = {f"{c}/{k}.png": encoded(picture(first + k)) for c in "ab" for k in range(2)}
        write_tar(tmp_path / f"flowers-{split}.tar", members)
    splits = data.open(tmp_path, val="none")
    assert (len(splits.train), len(splits.open_test("t"))) == (4, 4)
    named = data.open(f"train={tmp_path}/flowers-test.tar,test={tmp_path}/flowers-train.tar", val="none")
    assert named.train.read(0) == encoded(picture(10))


def test_truncated_tar(tmp_path):
    write_tar(tmp_path / "t.tar", {"a/0.png": encoded(picture(0, 200, 200)) * 5})
    (tmp_path / "t.tar").write_bytes((tmp_path / "t.tar").read_bytes()[:700])
    with pytest.raises(UserError, match=r"cannot be read as a tar file.*copy is complete"):
        data.open(tmp_path / "t.tar")


def test_npz_whole_and_in_splits(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([0, 2, 10, 0, 2, 10]))
    train = data.open(tmp_path / "a.npz", val="none").train
    assert train.class_names == ("0", "2", "10")
    assert np.array_equal(train.read(2), x[2][:, :, None])
    np.savez(
        tmp_path / "med.npz",
        train_images=x, train_labels=np.array([[0], [1]] * 3), val_images=x[:2], val_labels=np.array([[0], [1]]),
        test_images=x[:1], test_labels=np.array([[1]]), class_names=np.array(["no", "yes"]),
    )  # fmt: skip
    splits = data.open(tmp_path / "med.npz")
    assert splits.train.class_names == ("no", "yes")
    assert splits.train.labels.tolist() == [0, 1] * 3
    assert (len(splits.val), len(splits.open_test("t"))) == (2, 1)
    np.savez(tmp_path / "u.npz", images=np.stack([x] * 5, axis=3))
    assert data.open(tmp_path / "u.npz").train.read(0).shape == (8, 8, 5)
    np.savez(tmp_path / "m.npz", x=x, y=np.eye(6, 3, dtype=int))
    assert data.open(tmp_path / "m.npz", val="none").train.task == "multi"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 8, 8))}, "x is float64. Save the images as uint8"),
        ({"x": np.zeros((2, 3, 8, 8), np.uint8)}, "channels first"),
        ({"x": np.zeros((2, 8, 8), np.uint8), "y": np.zeros(3, int)}, "3 labels for 2 images"),
        ({"z": np.zeros(3)}, r"has no images \(it has: z\)"),
        ({"x": np.array([{}, {}], object)}, "cannot be read as npz"),
    ],
)
def test_npz_errors(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message):
        data.open(tmp_path / "a.npz")


def test_digits():
    splits = data.open("embedded:digits", val="none")
    test = splits.open_test("t")
    assert (len(splits.train), len(test)) == (1498, 299)
    assert splits.train.class_names == tuple("0123456789")
    first = splits.train.read(0)
    assert (first.shape, first.dtype, first.max()) == ((8, 8, 1), np.uint8, 239)
    with pytest.raises(UserError, match="Use embedded:digits"):
        data.open("embedded:letters")


def test_digits_with_few_labels():
    splits = data.open("embedded:digits?labels=100&seed=1", val="none")
    assert splits.pool is not None
    assert (len(splits.train), len(splits.pool), len(splits.open_test("t"))) == (100, 1398, 299)
    assert np.bincount(splits.train.labels).tolist() == [10] * 10
    assert (splits.pool.labels, splits.pool.class_names) == (None, ())
    everything = data.open("embedded:digits", val="none").train
    assert sorted([*splits.train.keys, *splits.pool.keys]) == sorted(everything.keys)
    known = dict(zip(everything.keys, everything.labels))
    assert all(known[key] == label for key, label in zip(splits.train.keys, splits.train.labels))
    assert any("unlabelled pool: 1,398 images" in note for note in splits.notes)


def test_the_seed_draws_the_labelled_digits():
    first, again, other = (
        data.open(f"embedded:digits?labels=100{seed}", val="none") for seed in ("", "&seed=0", "&seed=1")
    )
    assert first.train.keys == again.train.keys != other.train.keys
    assert first.open_test("t").keys == other.open_test("t").keys
    assert data.open("embedded:digits?labels=1498", val="none").pool is None


@pytest.mark.parametrize("query", ["labels=9", "labels=1499", "labels=many", "seed=1", "labels=100&sed=1", "labels="])
def test_digits_rejects_bad_queries(query):
    with pytest.raises(UserError, match="labels"):
        data.open(f"embedded:digits?{query}")


def test_torchvision_reads_what_is_on_disk(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    for split in ("train", "t10k"):
        head = np.array([0x803, 4, 28, 28], ">i4").tobytes()
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(np.array([0x801, 4], ">i4").tobytes() + bytes([0, 9, 1, 9]))
    splits = data.open(f"torchvision:MNIST?root={tmp_path}", val="none")
    assert splits.train.labels.tolist() == [0, 9, 1, 9]
    assert splits.train.class_names[9] == "9 - nine"
    assert np.array_equal(splits.train.read(1)[:, :, 0], pixels[1])
    assert len(splits.open_test("t")) == 4


def test_torchvision_downloads_only_on_request(tmp_path):
    with pytest.raises(UserError, match=r"cannot load CIFAR100 from .*--data.download"):
        data.open(f"torchvision:CIFAR100?root={tmp_path}")
    with pytest.raises(UserError, match=r"torchvision:CIFAR100\?root=DIR"):
        data.open("torchvision:CIFAR100")
    with pytest.raises(UserError, match="has no dataset Cifar"):
        data.open("torchvision:Cifar?root=x")
    assert not list(tmp_path.iterdir())


def test_multi_label_row_without_a_label_is_a_negative(images):
    rows = (
        "path,label,split\npics/0.png,a|b,\npics/1.png,,\npics/2.png,,unlabelled\npics/3.png,b,test\npics/4.png,,test\n"
        "pics/5.png,,val\n"
    )
    splits = read_splits(write(images / "list.csv", rows), DataConfig())
    assert splits.train.labels.tolist() == [[True, True], [False, False]]
    assert splits.pool.keys == ["pics/2.png"]
    assert splits.open_test("t").labels.tolist() == [[False, True], [False, False]]
    assert splits.bad == []
    assert any("Negatives (no label) in train: 1 image" in note for note in splits.notes)
    assert "The val split has no labels and is not used." in splits.notes  # not a single label in it


def test_empty_label_list_in_a_tar_is_a_negative(tmp_path):
    samples = {"a": {"label": ["cat", "dog"]}, "b": {"label": []}, "c": {"caption": "x"}}
    members = {f"{key}.json": json.dumps(label).encode() for key, label in samples.items()}
    write_tar(tmp_path / "x.tar", members | {f"{key}.png": encoded(picture(0)) for key in samples})
    splits = data.open(tmp_path / "x.tar", val="none")
    assert splits.train.labels.tolist() == [[True, True], [False, False]]
    assert splits.pool.keys == ["c.png"]


@pytest.mark.parametrize(
    "rows",
    [
        'pics/0.png,a\npics/1.png,"b\npics/2.png,a\npics/3.png,b\n',
        'pics/0.png,a\npics/1.png,"b' + "x" * 140_000,
        'pics/0.png,a\n"pics/1.png,b\npics/2.png,"a"\npics/3.png,b\n',
        'pics/0.png,a\npics/1.png,"b' + "\npics/2.png,a" * 12_000,
    ],
)
def test_unclosed_quote_is_reported_with_its_line(images, rows):
    with pytest.raises(UserError, match=r"list\.csv, line 3: .*unclosed quote"):
        data.open(write(images / "list.csv", "path,label\n" + rows), val="none")


def test_unclosed_quote_in_an_unused_column(images):
    rows = 'path,label,note\npics/0.png,a,"one\ntwo"\npics/1.png,b,5" disc\npics/2.png,b,"lost\npics/3.png,a,x\n'
    with pytest.raises(UserError, match=r"list\.csv, line 5: .*unclosed quote"):
        data.open(write(images / "list.csv", rows.replace('5" disc', "disc")), val="none")
    fine = 'path,label,note\npics/0.png,a,"one\ntwo"\npics/1.png,b,5" disc\n'
    assert len(data.open(write(images / "list.csv", fine), val="none").train) == 2


def test_one_hot_array_is_single_label(tmp_path):
    x, y = np.zeros((6, 4, 4), np.uint8), np.eye(3, dtype=int)[[0, 1, 2, 2, 1, 0]]
    np.savez(tmp_path / "a.npz", x=x, y=y)
    train = data.open(tmp_path / "a.npz", val="none").train
    assert train.task == "single"
    assert train.labels.tolist() == [0, 1, 2, 2, 1, 0]
    np.savez(tmp_path / "b.npz", x_train=x, y_train=np.maximum(y, y[0]), x_test=x, y_test=y)
    splits = data.open(tmp_path / "b.npz", val="none")
    assert splits.train.task == splits.open_test("t").task == "multi"


def test_parquet_row_without_an_image_is_a_bad_file(tmp_path):
    table = pa.table({"image": [encoded(picture(0)), None, encoded(picture(1))], "label": ["a", "b", "b"]})
    pq.write_table(table, tmp_path / "x.parquet")
    store = data.build_store(data.open(tmp_path / "x.parquet", val="none").train, 8, allow_bad=True)
    assert len(store) == 2
    assert [file.reason for file in store.bad] == ["cannot be read: the row has no image bytes"]
