from __future__ import annotations

import errno
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_folder, make_image
from vitling import data
from vitling.data import cache
from vitling.data.config import DataConfig
from vitling.data.dataset import merge_unlabelled
from vitling.data.look_alikes import group_look_alikes
from vitling.data.store import (
    build_store,
    choose_normalisation,
    choose_placement,
    choose_size,
    compute_mean_std,
    measure_median_side,
)
from vitling.errors import UserError
from vitling.files import scratch_folder

SIZE = 12


@pytest.fixture
def dataset(folder):
    return data.open(str(folder), val="none").train


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


def expected(folder, dataset, i):
    path = folder / dataset.keys[i]
    image = Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


@pytest.mark.parametrize("placement", ["host", "stream"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_all_placements_return_the_same_pixels(folder, dataset, placement, use_cache):
    store = build_store(dataset, SIZE, placement=placement, use_cache=use_cache)
    ids = np.array([17, 3, 3, 29])
    pixels, aspect = store.fetch(ids)
    for row, i in zip(pixels, ids):
        assert torch.equal(row, expected(folder, dataset, i))
    assert torch.allclose(aspect, torch.full((4,), 20 / 16))
    assert store.labels is not None
    assert store.labels[ids].tolist() == [1, 0, 0, 2]


def test_second_start_decodes_nothing(dataset, own_cache, monkeypatch):
    first = build_store(dataset, SIZE).fetch(np.arange(30))[0]
    monkeypatch.setattr(cache, "scan", None)  # would fail if it were called
    assert torch.equal(build_store(dataset, SIZE).fetch(np.arange(30))[0], first)


def test_other_size_or_image_is_another_entry(folder, dataset, own_cache):
    keys = {cache.hash_dataset(dataset, 12, DataConfig()), cache.hash_dataset(dataset, 13, DataConfig())}
    keys.add(cache.hash_dataset(dataset, 12, DataConfig(channels=1)))
    make_image(0, 999).save(folder / "class-0" / "image-00.png")
    keys.add(cache.hash_dataset(dataset, 12, DataConfig()))
    assert len(keys) == 4


def test_moved_folder_finds_its_cache(folder, tmp_path):
    before = cache.hash_dataset(data.open(str(folder), val="none").train, SIZE, DataConfig())
    shutil.move(folder, tmp_path / "elsewhere")
    assert cache.hash_dataset(data.open(str(tmp_path / "elsewhere"), val="none").train, SIZE, DataConfig()) == before


@pytest.mark.parametrize("damage", ["flip a bit", "cut pixels", "cut facts", "no done.json", "pipe"])
def test_damaged_cache_is_rebuilt_with_a_warning(dataset, own_cache, damage):
    good = build_store(dataset, SIZE).fetch(np.arange(30))[0]
    entry = next(own_cache.iterdir())
    if damage == "flip a bit":
        raw = bytearray((entry / "pixels.bin").read_bytes())
        raw[1234] ^= 1
        (entry / "pixels.bin").write_bytes(raw)
    elif damage == "cut pixels":
        (entry / "pixels.bin").write_bytes((entry / "pixels.bin").read_bytes()[:-7])
    elif damage == "cut facts":
        (entry / "facts.npz").write_bytes(b"PK")
    elif damage == "pipe":
        (entry / "pixels.bin").unlink()
        os.mkfifo(entry / "pixels.bin")
    else:
        (entry / "done.json").unlink()
    messages: list[str] = []
    again = build_store(dataset, SIZE, warn=messages.append)
    assert torch.equal(again.fetch(np.arange(30))[0], good)
    assert len(messages) == 1
    assert "damaged" in messages[0]
    assert build_store(dataset, SIZE, warn=messages.append)
    assert len(messages) == 1


def test_full_disk_only_disables_the_cache(dataset, own_cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    messages: list[str] = []
    for placement in ("host", "stream"):
        assert (
            build_store(dataset, SIZE, placement=placement, warn=messages.append).fetch(np.arange(5))[0].float().std()
            > 0
        )
    assert all("not cached" in line for line in messages)
    assert len(messages) == 2


def test_no_home_directory_only_disables_the_cache(dataset, monkeypatch):
    """As in a container that runs as a user without an entry in /etc/passwd."""

    def raise_error():
        raise RuntimeError("Could not determine home directory.")

    for name in ("VITLING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", raise_error)
    messages: list[str] = []
    assert len(build_store(dataset, SIZE, warn=messages.append)) == len(dataset)
    (message,) = messages
    assert "not cached: this user has no home directory; set VITLING_CACHE." in message
    group_look_alikes(dataset, DataConfig())
    with pytest.raises(OSError, match="set VITLING_CACHE"):
        cache.cache_root()


def test_least_recently_used_entries_are_deleted(dataset, own_cache, monkeypatch):
    entry_bytes = len(dataset) * 3 * SIZE**2
    monkeypatch.setenv("VITLING_CACHE_GB", str(2.5 * entry_bytes / 1e9))
    for size in (SIZE - 2, SIZE - 1, SIZE):
        build_store(dataset, size)
    assert len(list(own_cache.iterdir())) == 2


def test_bad_files_are_left_out_and_ids_stay_contiguous(folder):
    (folder / "class-0" / "image-00.png").write_bytes(b"")
    (folder / "class-1" / "image-03.png").write_bytes(b"hello")
    dataset = data.open(str(folder), val="none").train
    with pytest.raises(UserError, match="--allow-bad"):
        build_store(dataset, SIZE)
    store = build_store(dataset, SIZE, allow_bad=True)
    assert len(store) == 28
    assert {file.reason.split()[0] for file in store.bad} == {"empty", "not"}
    assert torch.equal(store.fetch(np.array([0]))[0][0], expected(folder, store.dataset, 0))
    assert len(store.labels) == 28


def test_identity_depends_on_labels_and_partial_labels(dataset):
    pool = replace(dataset, labels=None, class_names=())
    other = replace(dataset, labels=np.roll(dataset.labels, 1))
    parts = [
        dataset,
        other,
        pool,
        merge_unlabelled(dataset, pool),
        merge_unlabelled(other, pool),
        merge_unlabelled(pool, pool),
    ]
    assert len({build_store(part, 12).identity for part in parts}) == 6


def test_placement_depends_on_free_memory(monkeypatch):
    from vitling.data import store as module

    monkeypatch.setattr(module, "get_free_memory", lambda: 1000)
    assert choose_placement(500, torch.device("cpu")) == "host"
    assert choose_placement(501, torch.device("cpu")) == "stream"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000, 4000))
    assert choose_placement(1000, torch.device("cuda")) == "device"
    assert choose_placement(1001, torch.device("cuda")) == "stream"
    assert choose_placement(400, torch.device("cuda")) == "device"


def test_size_is_limited_by_views_and_images(tmp_path):
    large = data.open(str(make_folder(tmp_path / "large", 2, 3, width=900, height=600)), val="none").train
    small = data.open(str(make_folder(tmp_path / "small", 2, 3, width=28, height=28)), val="none").train
    assert measure_median_side(large) == 900
    assert measure_median_side(small) == 28
    assert choose_size(large, 384) == 384
    assert choose_size(small, 384) == 28


def test_mean_and_std_of_the_data(dataset):
    store = build_store(dataset, SIZE)
    mean, std = compute_mean_std(store)
    pixels = store.fetch(np.arange(30))[0].double() / 255
    assert np.allclose(mean, pixels.mean(dim=(0, 2, 3)), atol=1e-6)
    assert np.allclose(std, pixels.permute(1, 0, 2, 3).flatten(1).std(dim=1), atol=1e-3)
    assert choose_normalisation(store, DataConfig())[0] == (0.485, 0.456, 0.406)
    assert choose_normalisation(store, DataConfig(normalise="data"))[0] == mean


def test_one_channel(folder):
    config = DataConfig(channels=1)
    store = build_store(data.open(str(folder), config, val="none").train, SIZE, config)
    assert store.fetch(np.array([0]))[0].shape == (1, 1, SIZE, SIZE)
    assert len(choose_normalisation(store, config)[0]) == 1


def test_done_file_without_a_shape_is_damaged(dataset, own_cache):
    build_store(dataset, SIZE)
    entry = next(own_cache.iterdir())
    for content in ("{}", "[]"):
        (entry / "done.json").write_text(content)
        messages: list[str] = []
        build_store(dataset, SIZE, warn=messages.append)
        assert "damaged" in messages[0]


def test_damage_that_cannot_be_removed_only_disables_the_cache(dataset, own_cache, monkeypatch):
    good = build_store(dataset, SIZE).fetch(np.arange(30))[0]
    (next(own_cache.iterdir()) / "done.json").write_text("{}")
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
    assert torch.equal(build_store(dataset, SIZE).fetch(np.arange(30))[0], good)


def test_entry_of_another_user_is_used(dataset, own_cache, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Operation not permitted")

    build_store(dataset, SIZE)
    monkeypatch.setattr(cache.Path, "touch", refuse)
    monkeypatch.setattr(cache, "scan", None)  # would fail if it were called
    messages: list[str] = []
    build_store(dataset, SIZE, warn=messages.append)
    assert messages == []


def test_partial_entries_of_dead_processes_are_deleted(dataset, own_cache):
    dead = own_cache / ".an-entry.12345678.part"
    dead.mkdir(parents=True)
    (dead / "pixels.bin").write_bytes(b"x")
    with scratch_folder(own_cache / "another-entry") as alive:
        build_store(dataset, SIZE)
        assert list(own_cache.glob(".*")) == [alive]


def test_too_few_file_handles_are_not_blamed_on_the_images(dataset, own_cache, monkeypatch):
    def fail(self, i):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(type(dataset), "read", fail)
    with pytest.raises(OSError, match="Too many open files"):
        build_store(dataset, SIZE)


def test_making_room_deletes_no_more_than_needed(own_cache, monkeypatch):
    """The large entry in the middle has to go, and the small ones that fit stay."""
    for age, (name, size) in enumerate({"newest": 300, "large": 900, "small": 100}.items()):
        (own_cache / name).mkdir(parents=True)
        (own_cache / name / "pixels.bin").write_bytes(bytes(size))
        (own_cache / name / "done.json").write_text("{}")
        os.utime(own_cache / name / "done.json", times=(1e9 - age,) * 2)
    monkeypatch.setenv("VITLING_CACHE_GB", str(1000 / 1e9))
    cache._make_room(own_cache, 500)
    assert sorted(path.name for path in own_cache.iterdir()) == ["newest", "small"]


@pytest.mark.parametrize("placement", ["host", "stream"])
@pytest.mark.parametrize("bad", [0, 1])
def test_pixels_are_not_copied_and_torch_does_not_warn(folder, own_cache, placement, bad, monkeypatch):
    if bad:
        (folder / "class-0" / "image-03.png").write_bytes(b"")
    dataset = data.open(str(folder), val="none").train
    build_store(dataset, SIZE, placement=placement, allow_bad=True)
    shared = []
    from_numpy = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: shared.append(array) or from_numpy(array))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = build_store(dataset, SIZE, placement=placement, allow_bad=True)
        pixels = store.fetch(np.array([0, 5, 28]))[0]
    assert any(isinstance(array, np.memmap) and len(array) == 30 for array in shared)
    for row, i in zip(pixels, (0, 5, 28)):
        assert torch.equal(row, expected(folder, store.dataset, i))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("height", np.array("x")),
        ("width", np.zeros(3)),
        ("thumbs", np.zeros((1, 16, 16), np.uint8)),
        ("digests", np.zeros(4, np.uint8)),
        ("modes", np.zeros(6)),
        ("bad_ids", np.array([10**6])),
    ],
)
def test_facts_of_other_shapes_or_types_are_rebuilt(tmp_path, name, value, monkeypatch):
    dataset = data.open(str(make_folder(tmp_path / "images", classes=2, each=3)), val="none").train
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))
    first = build_store(dataset, 8)
    (path,) = (tmp_path / "cache").rglob("facts.npz")
    with np.load(path) as saved:
        arrays = dict(saved)
    more = {"bad_reasons": np.array(["damaged"])} if name == "bad_ids" else {}
    np.savez(path, **arrays | {name: value} | more)
    again = build_store(dataset, 8)
    assert again.facts.has_rows(6)
    assert torch.equal(again.fetch(np.arange(6))[0], first.fetch(np.arange(6))[0])
