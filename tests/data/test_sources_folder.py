from __future__ import annotations

import os

import numpy as np
import pytest
from pictures import put, put_classes

from vitling import data
from vitling.errors import UserError


def test_class_folders_keep_imagefolder_order(tmp_path):
    from torchvision.datasets import ImageFolder

    for k, name in enumerate(
        ["b/2.png", "b/10.jpg", "a/z.png", "a/x-1/y.png", "a/x/y.png", "a/x/a.png", "C/1.png", "10/1.png", "9/1.png"]
    ):
        put(tmp_path / name, k)
    splits = data.open(tmp_path, val="none")
    reference = ImageFolder(str(tmp_path))
    assert list(splits.train.class_names) == reference.classes
    assert [str(tmp_path / key) for key in splits.train.keys] == [path for path, _ in reference.samples]
    assert splits.train.labels.tolist() == reference.targets
    assert splits.train.read(0) == (tmp_path / splits.train.keys[0]).read_bytes()


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_split_folders(tmp_path, word):
    for split, first in (("train", 0), (word, 20), ("test", 40)):
        put_classes(tmp_path / split, {"cat": 3, "dog": 2}, first)
    splits = data.open(tmp_path)
    assert (len(splits.train), len(splits.val), len(splits.open_test("test"))) == (5, 5, 5)
    assert splits.train.class_names == splits.val.class_names == ("cat", "dog")
    assert splits.val.keys[0] == f"{word}/cat/000.png"


def test_flat_folder_is_unlabelled(tmp_path):
    for k in range(4):
        put(tmp_path / f"{k}.png", k)
    splits = data.open(tmp_path)
    assert splits.train.task == "none"
    assert splits.val is None
    assert splits.train.keys == ["0.png", "1.png", "2.png", "3.png"]


@pytest.mark.parametrize("where", ["unlabelled", "unlabeled", "train/unlabelled"])
def test_pool_beside_classes_and_beside_train(tmp_path, where):
    root = tmp_path / "train" if "/" in where or where == "unlabeled" else tmp_path
    put_classes(root, {"cat": 3, "dog": 3})
    put(tmp_path / where / "deep" / "x.png", 50)
    put(tmp_path / where / "y.png", 51)
    splits = data.open(tmp_path, val="none")
    assert splits.train.class_names == ("cat", "dog")
    assert splits.pool.task == "none"
    assert len(splits.pool) == 2


def test_lone_pool_becomes_train(tmp_path):
    put(tmp_path / "unlabelled" / "x.png", 0)
    assert data.open(tmp_path).train.keys == ["unlabelled/x.png"]


def test_class_may_be_called_train(tmp_path):
    put_classes(tmp_path, {"train": 2, "bus": 2})
    assert data.open(tmp_path, val="none").train.class_names == ("bus", "train")


def test_classes_beside_a_test_folder_are_train(tmp_path):
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    put_classes(tmp_path / "test", {"cat": 1, "dog": 1}, 10)
    splits = data.open(tmp_path, val="none")
    assert splits.train.class_names == ("cat", "dog")
    assert splits.has_test


def test_unused_files_are_noted(tmp_path):
    put_classes(tmp_path / "train", {"cat": 2, "dog": 2})
    put(tmp_path / "train" / "loose.png", 30)
    put(tmp_path / "preview" / "p.png", 31)
    (tmp_path / "train" / "cow").mkdir()
    (tmp_path / "train" / "cat" / "notes.txt").write_text("x")
    (tmp_path / "train" / "cat" / ".hidden.png").write_bytes(b"x")
    splits = data.open(tmp_path, val="none")
    notes = " ".join(splits.notes)
    assert len(splits.train) == 4
    assert "next to the class folders of train): 1 image" in notes
    assert "(next to the splits): preview/" in notes
    assert "No images in train/cow" in notes
    assert "not images: 1 .txt" in notes


def test_links_are_followed_once_and_broken_ones_are_bad(tmp_path):
    put_classes(tmp_path / "real", {"cat": 2})
    put_classes(tmp_path / "set", {"dog": 2}, 10)
    os.symlink(tmp_path / "real" / "cat", tmp_path / "set" / "cat")
    os.symlink(tmp_path / "set", tmp_path / "set" / "dog" / "loop")
    os.symlink(tmp_path / "gone.png", tmp_path / "set" / "dog" / "gone.png")
    splits = data.open(tmp_path / "set", val="none")
    assert splits.train.class_names == ("cat", "dog")
    assert len(splits.train) == 4
    assert [(file.key, file.reason) for file in splits.bad] == [("dog/gone.png", "broken link")]


def test_file_names_that_are_not_utf8_can_be_read_and_printed(tmp_path):
    put_classes(tmp_path, {"cat": 2})
    odd = os.fsencode(tmp_path / "cat") + b"/\xff.png"
    with open(odd, "wb") as file:
        file.write((tmp_path / "cat" / "000.png").read_bytes())
    train = data.open(tmp_path, val="none").train
    odd_id = next(i for i, key in enumerate(train.keys) if "\\xff" in key)
    assert train.read(odd_id).startswith(b"\x89PNG")
    train.keys[odd_id].encode()


def test_no_images_and_no_folder(tmp_path):
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"has no images. Ignored files that are not images: 1 .txt"):
        data.open(tmp_path / "flowers")
    with pytest.raises(UserError, match=r"flwers does not exist. Did you mean .*flowers\?"):
        data.open(tmp_path / "flwers")
    with pytest.raises(UserError, match=r"Unknown dataset 'flowers103'. Did you mean flowers102:DIR\?"):
        data.open("flowers103:DIR")
    for name, meant in (("digits", "embedded:digits"), ("flowers102", "flowers102:DIR")):
        with pytest.raises(UserError, match=rf"{name} does not exist. Did you mean {meant}"):
            data.open(name)
    (tmp_path / "x.pdf").write_text("x")
    with pytest.raises(UserError, match=r"x\.pdf is not a dataset"):
        data.open(tmp_path / "x.pdf")


def test_data_with_only_a_test_split_cannot_be_trained_on(tmp_path):
    put_classes(tmp_path / "test", {"cat": 2, "dog": 2})
    with pytest.raises(UserError, match="has only test, and nothing to train on"):
        data.open(tmp_path)


def test_classes_missing_from_train_are_named(tmp_path):
    put_classes(tmp_path / "train", {"cat": 2, "dog": 2})
    put_classes(tmp_path / "test", {f"c{k}": 1 for k in range(7)}, 10)
    with pytest.raises(UserError, match="test has classes that train does not have: c0, c1, c2, c3, c4 and 2 more"):
        data.open(tmp_path)


def test_flat_test_folder_has_no_labels(tmp_path):
    put_classes(tmp_path / "train", {"cat": 4, "dog": 4})
    put(tmp_path / "test" / "x.png", 20)
    splits = data.open(tmp_path)
    assert splits.open_test("test").labels is None
    assert "The test split has no labels." in splits.notes


def test_named_splits(tmp_path):
    put_classes(tmp_path / "a,b", {"cat": 3, "dog": 3})
    put_classes(tmp_path / "other" / "train", {"cat": 1, "dog": 1}, 20)
    put(tmp_path / "more" / "x.png", 30)
    spec = f"train={tmp_path}/a,b,test={tmp_path}/other,pool={tmp_path}/more"
    splits = data.open(spec, val="none")
    assert (len(splits.train), len(splits.open_test("t")), len(splits.pool)) == (6, 2, 1)
    merged = data.open(f"train={tmp_path}/a,b,val={tmp_path}/other", val="none").train
    assert len(merged) == 8
    assert merged.read(7) == (tmp_path / "other" / "train" / "dog" / "000.png").read_bytes()
    with pytest.raises(UserError, match="twice"):
        data.open(f"train={tmp_path}/a,b,train={tmp_path}/other")


def test_import_is_light():
    import subprocess
    import sys

    code = "import sys, vitling.data.config; print([m for m in ('torch', 'PIL', 'numpy') if m in sys.modules])"
    heavy = (
        "import sys, vitling.data as d; d.open, d.inspect; print('torch' in sys.modules, 'torchvision' in sys.modules)"
    )
    for command, answer in ((code, "[]"), (heavy, "False False")):
        assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout.strip() == answer
    assert data.Dataset("x", [], lambda row: b"", np.arange(0)).task == "none"
    with pytest.raises(AttributeError):
        data.nothing  # noqa: B018


def test_class_folders_that_are_not_utf8_stay_distinct_in_json(tmp_path):
    put_classes(tmp_path, {"cat": 2})
    for name in (b"caf\xe9", b"caf\xe8"):
        os.rename(put_classes(tmp_path / "new", {"x": 2}) / "x", os.fsencode(tmp_path) + b"/" + name)
    train = data.open(tmp_path, val="none").train
    assert train.class_names == ("caf\\xe8", "caf\\xe9", "cat")
    assert "".join(train.class_names).encode()
    assert train.read(0).startswith(b"\x89PNG")


def test_link_to_itself_is_broken(tmp_path):
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    for name in ("loop.png", "loop"):
        os.symlink(tmp_path / "cat" / name, tmp_path / "cat" / name)
    splits = data.open(tmp_path, val="none")
    assert len(splits.train) == 4
    assert [(file.key, file.reason) for file in splits.bad] == [("cat/loop.png", "broken link")]


def test_broken_link_counts_for_its_own_split(tmp_path):
    put_classes(tmp_path / "train", {"cat": 2, "dog": 2})
    for split in ("val", "test"):
        put_classes(tmp_path / split, {"cat": 1, "dog": 1}, 10)
        os.symlink(tmp_path / "gone.png", tmp_path / split / "cat" / "gone.png")
    assert sorted(file.split for file in data.open(tmp_path).bad) == ["test", "val"]


def test_bad_files_of_named_splits_count_for_that_split(tmp_path):
    put_classes(tmp_path / "d1", {"cat": 3, "dog": 3})
    put_classes(tmp_path / "d2", {"cat": 1, "dog": 1}, 10)
    rows = ["path,label", "d2/cat/000.png,cat", "d2/dog/000.png,", "d2/gone.png,dog"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    splits = data.open(f"train={tmp_path}/d1,test={tmp_path}/t.csv", val="none")
    assert splits.open_test("t").keys == ["d2/cat/000.png"]
    assert splits.pool is None
    bad = sorted((file.key, file.reason, file.split) for file in splits.bad)
    assert bad == [("d2/dog/000.png", "no label", "test"), ("d2/gone.png", "no such file", "test")]


def test_unlabelled_images_of_named_train_join_the_pool(tmp_path):
    put_classes(tmp_path / "d1", {"cat": 3, "dog": 3, "unlabelled": 2})
    put_classes(tmp_path / "d2", {"cat": 1, "dog": 1}, 10)
    assert len(data.open(f"train={tmp_path}/d1,test={tmp_path}/d2", val="none").pool) == 2
    named = data.open(f"train={tmp_path}/d1,pool={tmp_path}/d2/cat", val="none")
    assert len(named.pool) == 1


def test_photos_in_unread_formats_are_a_warning(tmp_path):
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    for name in ("a.HEIC", "b.heic", "c.cr2"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    (warning,) = data.open(tmp_path, val="none").warnings
    assert "2 .heic, 1 .cr2 files are skipped" in warning
    assert "Convert" in warning


@pytest.mark.parametrize("under", ["", "train/"])
def test_nested_class_folders_are_a_warning(tmp_path, under):
    for site in ("site1", "site2"):
        put_classes(tmp_path / under / site, {"cat": 1, "pug": 1})
    (warning,) = data.open(tmp_path, val="none").warnings
    assert "(site1, site2)" in warning
    assert "(cat, pug)" in warning


def test_classes_that_contain_only_folders_are_a_warning(tmp_path):
    put_classes(tmp_path / "siteA", {"sunflower": 1, "cyclamen": 1})
    put_classes(tmp_path / "siteB", {"wallflower": 1, "snapdragon": 1})
    (warning,) = data.open(tmp_path, val="none").warnings
    assert "(siteA, siteB), which contain only folders" in warning


def test_urls_are_refused():
    with pytest.raises(UserError, match=r"http://x\.org/photos\.zip is a URL"):
        data.open("http://x.org/photos.zip")


def test_folders_below_classes_with_names_of_their_own_are_no_warning(tmp_path):
    put_classes(tmp_path / "cat", {"tabby": 1, "siamese": 1})
    put_classes(tmp_path / "dog", {"pug": 1})
    assert data.open(tmp_path, val="none").warnings == []


def test_one_image_under_two_labels_is_a_warning(tmp_path):
    put_classes(tmp_path, {"cat": 3, "dog": 3})
    put(tmp_path / "dog" / "same.png", 0)
    found = data.inspect(tmp_path)
    assert "The same image has different labels: cat/000.png = dog/same.png. Keep one of each." in found.warnings
