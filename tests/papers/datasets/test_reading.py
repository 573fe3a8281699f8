"""Every dataset of the papers is read from a small copy in the layout in which it is distributed."""

from __future__ import annotations

import _codecs
import gzip
import os
import pickle
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from scipy.io import savemat

from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes
from tests.made_runs import train
from tests.papers.datasets import copies
from vitling import loading
from vitling.cli import run
from vitling.data import open as open_data
from vitling.data.config import DataConfig
from vitling.data.decode import decode
from vitling.data.sources import read_source
from vitling.data.splits import read_splits
from vitling.errors import InvalidFile, UserError
from vitling.papers import datasets
from vitling.papers.datasets import ENTRIES
from vitling.papers.datasets.files import pick
from vitling.papers.datasets.lists import load_mat
from vitling.papers.datasets.pickles import read_pickle
from vitling.papers.datasets.reading import read_entry


def made(name: str, root: Path) -> Path:
    if name == "patchcamelyon":
        pytest.importorskip("h5py")
    copies.MAKERS[name](root)
    return root


def test_every_entry_has_a_copy():
    assert copies.MAKERS.keys() == ENTRIES.keys()


@pytest.mark.parametrize("name", ENTRIES)
def test_a_copy_as_distributed(name, tmp_path):
    root = made(name, tmp_path)
    assert datasets.find_copy(name, root), "found by its name under a folder of datasets"
    splits = read_splits(f"{name}:{root}", DataConfig())
    test = splits.hidden_test
    sizes = len(splits.train), len(splits.val or ()), len(test or ())
    assert sizes == copies.COUNTS[name]
    assert splits.train.task == ("multi" if ENTRIES[name].multi else "none" if name == "openimages" else "single")
    for part in (splits.train, splits.val, test, splits.pool):
        assert part is None or all(decode(part.read(i)).width for i in range(len(part)))
    assert any(f"{name}: {sizes[0]:,} train images, not {ENTRIES[name].train:,}." in note for note in splits.notes)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_right_numbers_are_no_news(name, tmp_path):
    """A small copy passes by an entry that has its numbers."""
    train, val, test = copies.COUNTS[name]
    root, classes = made(name, tmp_path), len(read_splits(f"{name}:{tmp_path}", DataConfig()).train.class_names)
    small = replace(ENTRIES[name], train=train, val=val, test=test, classes=classes)
    assert not [note for note in read_entry(small, str(root)).notes if "not" in note and name in note]


def test_val_may_be_a_part_of_train(tmp_path):
    root = made("flowers102", tmp_path)
    assert len(read_splits(f"flowers102:{root}?val=train", DataConfig()).train) == 12
    both = read_splits(f"train=flowers102:{root}?val=train,test=flowers102:{root}", DataConfig())
    assert (len(both.train), len(both.hidden_test or ())) == (12, 6)
    with pytest.raises(UserError, match="unknown option vall"):
        read_source(f"flowers102:{root}?vall=train", DataConfig())


def test_what_is_missing_is_named(tmp_path):
    root = made("flowers102", tmp_path)
    with pytest.raises(UserError, match=r"has no setid.mat, nor in flowers102/, nor in flowers-102/.*Oxford VGG"):
        read_source(f"flowers102:{root / 'flowers-102' / 'jpg'}", DataConfig())
    (root / "flowers-102/imagelabels.mat").unlink()
    with pytest.raises(UserError, match=r"flowers-102 has no imagelabels.mat, which Oxford Flowers102 needs"):
        read_source(f"flowers102:{root}", DataConfig())
    with pytest.raises(UserError, match="does not exist"):
        read_source(f"cars:{root / 'nowhere'}", DataConfig())
    with pytest.raises(UserError, match="cars:DIR"):
        read_source("cars:", DataConfig())
    with pytest.raises(UserError, match=r"flowers17.*Did you mean flowers102"):
        datasets.get_entry("flowers17")


def test_a_missing_image_is_a_bad_file(tmp_path):
    root = made("indoor67", tmp_path)
    next((root / "indoor67/Images/bar").iterdir()).unlink()
    train = read_splits(f"indoor67:{root}", DataConfig()).train
    with pytest.raises(FileNotFoundError):
        [train.read(i) for i in range(len(train))]


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("cub", "image_class_labels.txt", "image_class_labels.txt, or a file .* is not as Caltech-UCSD Birds"),
        ("domainnet-clipart", "clipart_train.txt", "cut short"),
        ("hateful-memes", "train.jsonl", "cut short"),
        ("stl10", "train_X.bin", "cut short"),
        ("ucf101", "trainlist01.txt", "cut short"),
        ("flowers102", "setid.mat", "cannot be read as a MATLAB file"),
    ],
)
def test_a_file_that_is_cut_short(name, file, said, tmp_path):
    (path,) = made(name, tmp_path).rglob(file)
    path.write_bytes(path.read_bytes()[: 0 if name in ("ucf101", "flowers102") else -3])
    with pytest.raises(UserError, match=said):
        read_source(f"{name}:{tmp_path}", DataConfig())


def change_label(name: str, root: Path, label: int) -> None:
    """Give an image of train a class number that the dataset does not have."""
    (path,) = root.rglob(LABELS[name])
    if name == "webvision":
        path.write_text(f"google/q0000/0.jpg {label}\n")
    elif name == "hateful-memes":
        path.write_text(f'{{"img": "img/train0.png", "label": {label}}}\n')
    elif name == "fer2013":
        path.write_text(path.read_text().replace("\n0,", f"\n{label},"))
    elif name == "stl10":
        np.array([label % 256, 1, 2], np.uint8).tofile(path)
    elif name == "patchcamelyon":
        import h5py

        with h5py.File(path, "a") as file:
            del file["y"]
            file["y"] = np.array([label, 0, 1])[:, None, None, None]
    elif name == "cars":
        rows = np.array([("00001.jpg", label)], [("fname", object), ("class", object)])
        savemat(path, {"annotations": rows})
    else:
        key = {"svhn": "y", "flowers102": "labels"}[name]
        content = {name: value for name, value in load_mat(path).items() if not name.startswith("_")}
        savemat(path, content | {key: np.full(np.shape(content[key]), label)})


LABELS = {
    "webvision": "train_filelist_google.txt",
    "hateful-memes": "train.jsonl",
    "fer2013": "fer2013.csv",
    "stl10": "train_y.bin",
    "patchcamelyon": "*_train_y.h5",
    "cars": "cars_train_annos.mat",
    "svhn": "train_32x32.mat",
    "flowers102": "imagelabels.mat",
}


@pytest.mark.parametrize("label", [-1, 200])
@pytest.mark.parametrize("name", LABELS)
def test_class_numbers_that_do_not_exist_are_refused(name, label, tmp_path):
    """Python would take -1 for the last class."""
    change_label(name, made(name, tmp_path), label)
    with pytest.raises(UserError, match="distributed"):
        read_source(f"{name}:{tmp_path}", DataConfig())


@pytest.mark.parametrize("number", [0, 4, -1, True, 1.5])
def test_pick_counts_from_the_first(number):
    with pytest.raises(IndexError, match=f"{number} is not a number from 1 to 3"):
        pick("abc", number, first=1)
    assert [pick("abc", n, first=1) for n in (1, 2.0, 3)] == ["a", "b", "c"]


def test_a_matlab_file_on_which_the_reader_crashes(tmp_path):
    (path,) = made("flowers102", tmp_path).rglob("setid.mat")
    savemat(path, {"labels": np.array([[1, 2]])})
    content = bytearray(path.read_bytes())
    at = content.index(b"labels")
    content[at + 8] = 0  # the type of the array's values, which does not exist
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"setid\.mat"):
        read_source(f"flowers102:{tmp_path}", DataConfig())


@pytest.mark.parametrize("how", ["link", "external", "virtual"])
def test_hdf5_files_that_refer_to_others_are_refused(how, tmp_path):
    h5py = pytest.importorskip("h5py")
    (path,) = made("patchcamelyon", tmp_path).rglob("*train_y.h5")
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(path, "w") as file:
        if how == "link":
            file["y"] = h5py.ExternalLink(str(tmp_path / "pipe"), "y")
        elif how == "external":
            file.create_dataset("y", (6, 1, 1, 1), "u1", external=[(str(tmp_path / "pipe"), 0, 6)])
        else:
            layout = h5py.VirtualLayout((6, 1, 1, 1), "u1")
            layout[:] = h5py.VirtualSource(str(tmp_path / "pipe"), "y", (6, 1, 1, 1))
            file.create_virtual_dataset("y", layout)
    with pytest.raises(UserError, match="stored in this file"):
        read_source(f"patchcamelyon:{tmp_path}", DataConfig())


def test_splits_of_which_there_are_several(tmp_path):
    root = made("dtd", tmp_path)
    shutil.copy(root / "dtd/dtd/labels/test1.txt", root / "dtd/dtd/labels/train3.txt")
    for split in ("val", "test"):
        shutil.copy(root / f"dtd/dtd/labels/{split}1.txt", root / f"dtd/dtd/labels/{split}3.txt")
    assert len(read_splits(f"dtd:{root}?split=3", DataConfig()).train) == 6
    with pytest.raises(UserError, match="from 1 to 10"):
        read_source(f"dtd:{root}?split=11", DataConfig())


def test_the_binary_versions_of_cifar(tmp_path):
    copies.cifar10_binary(tmp_path)
    copies.cifar100_binary(tmp_path)
    ten, hundred = (read_splits(f"{name}:{tmp_path}", DataConfig()) for name in ("cifar10", "cifar100"))
    assert ten.train.labels.tolist() == [0, 1, 2] * 5
    assert hundred.train.class_names == ("apple", "bear", "cup")
    assert hundred.train.labels.tolist() == np.repeat([0, 1, 2], 3).tolist()
    raw = np.fromfile(tmp_path / "cifar-10-batches-bin/data_batch_1.bin", np.uint8)[1:3073]
    assert (ten.train.read(0) == raw.reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_a_pickle_runs_no_code(tmp_path):
    copies.cifar100(tmp_path)
    (tmp_path / "cifar-100-python/train").write_bytes(pickle.dumps(shutil.rmtree))
    with pytest.raises(UserError, match=r"asks for shutil.rmtree"):
        read_source(f"cifar100:{tmp_path}", DataConfig())


class Reduced:
    """Pickled as a call of a function, with a state."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


OBJECTS = Reduced(np.dtype, ("V8", False, True), (4, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0))
BYTES = np.dtype("u1")


@pytest.mark.parametrize(
    "state",
    [
        (1, (1, 3072), OBJECTS, False, b"A" * 8 * 3072),
        (1, (1, 3072), Reduced(np.dtype, ("O", False, True)), False, [0] * 3072),
        (1, (1, 3072), Reduced(np.dtype, ("u1",), (4, "|", (BYTES, (2,)), None, None, 2, 1, 0)), False, b"A" * 6144),
        (1, (1, 3072), BYTES, False, b"A" * 3071),
        (1, (-1, -3072), BYTES, False, b"A" * 3072),
        (1, (2**70, 3072), BYTES, False, b"A" * 3072),
        (1, [1, 3072], BYTES, False, b"A" * 3072),
        (1, (1, 3072), "u1", False, b"A" * 3072),
        (1,),
    ],
)
def test_pickled_arrays_are_plain_numbers(state, tmp_path):
    """A state that numpy accepts can crash Python: bytes of the file become pointers to objects."""
    copies.cifar100(tmp_path)
    path = tmp_path / "cifar-100-python/train"
    array = Reduced(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state)
    path.write_bytes(pickle.dumps({"data": array, "fine_labels": [0]}))
    with pytest.raises(InvalidFile, match=str(path)):
        read_source(f"cifar100:{tmp_path}", DataConfig())


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps({"fine_label_names": Reduced(_codecs.encode, ("\u4e00" * 60_000, "punycode"))}),
        b"\x80\x04}r\xff\xff\xff\xff.",  # a memo of 2 ** 32 places
        b"\x80\x04})" + b"\x86".join([b"2"] * 60) + b"K\x01s.",  # a key whose hash takes 2 ** 60 steps
        b"\x80\x05}\x96\xff\xff\xff\xff\x01\x00\x00\x00.",  # a bytearray of 8 GB
        pickle.dumps({"fine_label_names": [Reduced(_codecs.encode, ("x" * 99, "latin1")) for _ in range(50)]}),
        pickle.dumps({1: 2}),
        pickle.dumps([]),
        b"",
        b"0.",
        b"e.",
        b"}b.",
    ],
)
def test_pickles_that_take_long_or_much_memory_are_refused(raw, tmp_path):
    copies.cifar100(tmp_path)
    path = tmp_path / "cifar-100-python/meta"
    path.write_bytes(raw)
    with pytest.raises(InvalidFile, match=str(path)):
        read_source(f"cifar100:{tmp_path}", DataConfig())


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol(protocol, tmp_path):
    rows = np.arange(12, dtype=">u2").reshape(3, 4)
    content = {"data": np.asfortranarray(rows), "labels": [1, -1, 2**40], "names": ["a", "\xe9\n"], "none": None}
    (tmp_path / "a").write_bytes(pickle.dumps(content, protocol))
    found = read_pickle(tmp_path / "a")
    assert np.array_equal(found.pop("data"), content.pop("data"))
    assert found == content


@QUICK
@given(raw=damaged_bytes(pickle.dumps({"data": np.zeros((2, 3), np.uint8), "labels": [0, 1]}, 2)))
def test_damaged_pickles_are_read_or_refused(raw, tmp_path):
    (tmp_path / "a").write_bytes(raw)
    accepts_or_refuses(read_pickle, tmp_path / "a")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar100", "cifar-100-python/meta"),
        ("cifar100", "cifar-100-python/train"),
        ("food101", "food-101/meta/train.txt"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("stl10", "stl10_binary/train_X.bin"),
        ("stl10", "stl10_binary/train_y.bin"),
        ("svhn", "train_32x32.mat"),
        ("fer2013", "fer2013.csv"),
        ("gtsrb", "GT-final_test.csv"),
        ("voc2007", "Annotations/*.xml"),
    ],
)
def test_a_pipe_in_a_copy_is_not_waited_for(name, file, tmp_path):
    root = made(name, tmp_path)
    path = next(iter(root.glob(file)), None) or next(root.rglob(file))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=path.name):
        read_source(f"{name}:{root}", DataConfig())


def test_mnist_packed_and_cut_short(tmp_path):
    copies.mnist(tmp_path, packed=True)
    assert len(read_splits(f"mnist:{tmp_path}", DataConfig()).train) == 30
    labels = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    labels.write_bytes(b"\0\0")
    with pytest.raises(UserError, match="not a complete IDX file"):
        read_source(f"mnist:{tmp_path}", DataConfig())


def test_packed_mnist_is_unpacked_as_far_as_its_header_says(tmp_path, monkeypatch):
    copies.mnist(tmp_path, packed=True)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">4i", 2051, 100, 100, 100) + bytes(10**6)))
    monkeypatch.setattr(loading, "MAX_UNPACKED", 10**5)
    with pytest.raises(InvalidFile, match=f"{path.name}: unpacks to"):
        read_source(f"mnist:{tmp_path}", DataConfig())
    path.write_bytes(gzip.compress(struct.pack(">4i", 2051, 1, 1, 1) + bytes(10**6)))
    with pytest.raises(UserError, match="not a complete IDX file"):
        read_source(f"mnist:{tmp_path}", DataConfig())


def test_a_matlab_file_that_unpacks_to_much_more_than_its_size_is_refused(tmp_path, monkeypatch):
    savemat(tmp_path / "a.mat", {"X": np.zeros(10**6, np.uint8)}, do_compression=True)
    assert load_mat(tmp_path / "a.mat")["X"].shape == (10**6,)
    monkeypatch.setattr(loading, "MAX_UNPACKED", 10**5)
    with pytest.raises(InvalidFile, match=r"a\.mat: .*unpacks to"):
        load_mat(tmp_path / "a.mat")


def test_what_is_inside_a_struct_of_a_matlab_file_is_limited_too(tmp_path, monkeypatch):
    savemat(tmp_path / "a.mat", {"X": {"deep": np.zeros(10**8, np.uint8)}}, do_compression=True)
    monkeypatch.setattr(loading, "MAX_UNPACKED", 10**5)
    with pytest.raises(InvalidFile, match=r"a\.mat: .*unpacks to more than"):
        load_mat(tmp_path / "a.mat")


def test_the_stated_size_of_a_cell_inside_a_matlab_file_is_limited_too(tmp_path):
    outer = np.empty(1, object)
    outer[0] = np.array([1, "a"], object)
    savemat(tmp_path / "a.mat", {"X": outer})
    raw, size = (tmp_path / "a.mat").read_bytes(), struct.pack("<2i", 1, 2)
    assert raw.count(size) == 1
    (tmp_path / "a.mat").write_bytes(raw.replace(size, struct.pack("<2i", 2**14, 2**15)))
    with pytest.raises(InvalidFile, match=r"a\.mat: .*unpacks to more than 1\.0 GB"):
        load_mat(tmp_path / "a.mat")


def test_caltech101_is_drawn_by_class_and_always_alike(tmp_path):
    root = made("caltech101", tmp_path)
    first, again = (read_splits(f"caltech101:{root}", DataConfig()) for _ in range(2))
    assert first.train.keys == again.train.keys
    assert np.bincount(first.train.labels).tolist() == [30, 30, 30]
    assert np.bincount(first.hidden_test.labels).tolist() == [2, 3, 1]
    assert not set(first.train.keys) & set(first.hidden_test.keys)


def test_groups_stay_together(tmp_path):
    signs = open_data(f"gtsrb:{made('gtsrb', tmp_path)}", val="0.4")
    assert not set(signs.train.groups) & set(signs.val.groups)
    clips = read_splits(f"ucf101:{made('ucf101', tmp_path)}", DataConfig())
    assert len(set(clips.train.groups)) == 6
    assert not set(clips.train.groups) & set(clips.hidden_test.groups)


def test_voc_counts_no_difficult_objects(tmp_path):
    splits = read_splits(f"voc2007:{made('voc2007', tmp_path)}", DataConfig())
    named = [{splits.train.class_names[c] for c in np.flatnonzero(row)} for row in splits.train.labels[:3]]
    assert named == [{"dog"}, {"person", "sofa"}, {"bird"}]
    assert any("6 images have a class of which every object is difficult" in note for note in splits.notes)
    next((tmp_path / "VOCdevkit/VOC2007/Annotations").iterdir()).unlink()
    with pytest.raises(UserError, match=r"\.xml cannot be read"):
        read_source(f"voc2007:{tmp_path}", DataConfig())


def test_the_middle_frame_of_a_video(tmp_path, monkeypatch):
    root = made("ucf101", tmp_path)
    splits = read_splits(f"ucf101:{root}", DataConfig())
    assert all(key.endswith("/frame0002.jpg") for key in splits.train.keys)
    for clip in (root / "ucf101/UCF-101").glob("*/*"):
        (clip / "frame0002.jpg").rename(clip.with_suffix(".jpg"))
        shutil.rmtree(clip)
    assert len(read_splits(f"ucf101:{root}", DataConfig()).train.read(0)) > 100
    for image in (root / "ucf101/UCF-101").rglob("*.jpg"):
        image.rename(image.with_suffix(".avi"))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"vitling\[video\]"):
        read_source(f"ucf101:{root}", DataConfig())
    shutil.rmtree(root / "ucf101/UCF-101")
    with pytest.raises(UserError, match="no frames of it"):
        read_source(f"ucf101:{root}", DataConfig())


def test_videos_are_decoded(tmp_path):
    av = pytest.importorskip("av")
    root = made("ucf101", tmp_path)
    for clip in (root / "ucf101/UCF-101").glob("*/*"):
        shutil.rmtree(clip)
        with av.open(str(clip.with_suffix(".avi")), "w") as video:
            stream = video.add_stream("mpeg4", rate=5)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            for grey in (0, 50, 100, 150, 200):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), grey, np.uint8), format="rgb24")
                video.mux(stream.encode(frame))
            video.mux(stream.encode(None))
    train = read_splits(f"ucf101:{root}", DataConfig()).train
    assert abs(train.read(0).mean() - 100) < 8


def test_hdf5_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "pcam").mkdir()
    for word in ("train", "valid", "test"):
        for kind in "xy":
            (tmp_path / f"pcam/camelyonpatch_level_2_split_{word}_{kind}.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"vitling\[hdf5\]"):
        read_source(f"patchcamelyon:{tmp_path}", DataConfig())


def test_imagenet100_wants_its_list(tmp_path):
    root = made("imagenet1k", tmp_path)
    many = replace(ENTRIES["imagenet100"], classes=2)
    with pytest.raises(UserError, match=r"\?list=FILE"):
        read_entry(many, str(root))
    chosen = tmp_path / "mine.txt"
    copies.write(chosen, copies.WNIDS[:2])
    found = read_entry(many, f"{root}?list={chosen}")
    assert {names[0] for names in found.splits["train"].labels} == set(copies.WNIDS[:2])
    assert len(found.splits["test"]) == 4
    copies.write(chosen, ["n00000001"])
    with pytest.raises(UserError, match="no class n00000001"):
        read_entry(many, f"{root}?list={chosen}")


@pytest.mark.parametrize("how", ["devkit", "kaggle"])
def test_validation_images_of_imagenet_that_are_not_sorted(how, tmp_path):
    root = made("imagenet1k", tmp_path) / "imagenet"
    shutil.rmtree(root / "val")
    classes = [2, 0, 1]
    names = [f"ILSVRC2012_val_{i:08d}" for i in range(1, 4)]
    for name in names:
        copies.photo(root / "val" / f"{name}.JPEG")
    if how == "kaggle":
        rows = [f"{name},{copies.WNIDS[c]} 1 2 3 4" for name, c in zip(names, classes)]
        copies.write(root / "LOC_val_solution.csv", ["ImageId,PredictionString", *rows])
    else:
        kit = root / "ILSVRC2012_devkit_t12/data"
        copies.write(kit / "ILSVRC2012_validation_ground_truth.txt", [c + 1 for c in classes])
        kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
        rows = [(i, wnid, 0) for i, wnid in enumerate(copies.WNIDS, 1)] + [(4, "n00000001", 3)]
        copies.savemat(kit / "meta.mat", {"synsets": np.array(rows, kinds)})
    assert read_splits(f"imagenet1k:{tmp_path}", DataConfig()).hidden_test.labels.tolist() == classes


def test_every_verb_reads_them(tmp_path, capsys):
    assert train(f"svhn:{made('svhn', tmp_path)}", tmp_path / "run") == 0
    assert "svhn: 30 train images, not 73,257." in (tmp_path / "run/log.txt").read_text()
    root = made("cars", tmp_path)
    assert run(["inspect", f"cars:{root}", "--out", str(tmp_path / "found.json")]) == 0
    assert "8,144" in capsys.readouterr().out
