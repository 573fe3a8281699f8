"""Reading of files from elsewhere: a value or a UserError, whatever they hold."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes, damaged_records, json_texts, values
from vitling import loading
from vitling.data.cache import CacheEntry
from vitling.errors import InvalidFile
from vitling.files import write_json
from vitling.loading import (
    open_regular,
    open_text,
    parse_json,
    read_bytes,
    read_json,
    read_npz,
    read_record,
    read_safetensors,
    read_torch,
)
from vitling.papers.costs import CostResult
from vitling.papers.suite.suite import SuiteCell
from vitling.records import Environment, MetricsLine, RunResult, StudyResults, TaskResult
from vitling.runs.compare_methods import ComparisonResult
from vitling.runs.evaluate import DataSettings
from vitling.runs.group import SeedsResult, StoredRequest
from vitling.settings.config import ComparisonConfig, FinetuneConfig, PretrainConfig, TrainConfig
from vitling.settings.saved import load_config, load_resolved

RECORDS = [CacheEntry, ComparisonResult, CostResult, DataSettings, Environment, MetricsLine, RunResult, SeedsResult]
RECORDS += [StoredRequest, StudyResults, SuiteCell, TaskResult]
CONFIGS = [TrainConfig, PretrainConfig, FinetuneConfig, ComparisonConfig]


def save_bytes(save_to, *arguments, **arrays) -> bytes:
    buffer = io.BytesIO()
    save_to(*arguments, buffer, **arrays) if arguments else save_to(buffer, **arrays)
    return buffer.getvalue()


NPZ = save_bytes(np.savez, x=np.arange(6, dtype=np.uint8), names=np.array(["a", "bcd"]))
COMPRESSED = save_bytes(np.savez_compressed, x=np.arange(600, dtype=np.int64), y=np.ones((3, 2)))
TORCH = save_bytes(torch.save, {"w": torch.arange(6.0), "step": 3, "names": ["a", "b"]})
SAFE = save({"w": torch.arange(6.0), "b": torch.ones(2, 3)})


@QUICK
@given(text=json_texts)
@pytest.mark.parametrize("kind", RECORDS)
def test_any_text_is_a_record_or_refused(text, kind):
    found = accepts_or_refuses(parse_json, text, kind, "file.json")
    assert found is None or isinstance(found, dict)


@QUICK
@given(data=st.data())
@pytest.mark.parametrize("kind", CONFIGS)
def test_settings_with_one_wrong_value_are_loaded_with_their_types_or_refused(data, kind):
    record = json.loads(json.dumps(asdict(kind()))) | {"origins": {"epochs": ["plan", "few images"]}}
    values = data.draw(damaged_records(record))
    found = accepts_or_refuses(load_resolved, kind, values, "config.json")
    assert found is None or isinstance(found.config.epochs, int)


@QUICK
@given(raw=st.one_of(st.binary(max_size=300), damaged_bytes(NPZ), damaged_bytes(COMPRESSED)))
def test_any_bytes_are_arrays_or_refused(raw, tmp_path):
    (tmp_path / "a.npz").write_bytes(raw)
    accepts_or_refuses(read_npz, tmp_path / "a.npz")


@QUICK
@given(raw=st.one_of(st.binary(max_size=300), damaged_bytes(TORCH)))
def test_any_bytes_are_a_checkpoint_or_refused(raw, tmp_path):
    (tmp_path / "a.pt").write_bytes(raw)
    accepts_or_refuses(read_torch, tmp_path / "a.pt")


@QUICK
@given(raw=st.one_of(st.binary(max_size=300), damaged_bytes(SAFE)))
def test_any_bytes_are_safetensors_or_refused(raw, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(raw)
    accepts_or_refuses(read_safetensors, tmp_path / "a.safetensors")


@QUICK
@given(value=values)
def test_whatever_write_json_takes_can_be_read_or_is_refused(value, tmp_path):
    write_json(tmp_path / "a.json", value)
    accepts_or_refuses(read_json, tmp_path / "a.json")


def test_an_error_names_file_field_and_expected_type(tmp_path):
    write_json(tmp_path / "config.json", asdict(TrainConfig()) | {"optim": {"lr": "fast"}})
    with pytest.raises(InvalidFile, match=r"config\.json, optim\.lr: expected float \| null, got str\.") as caught:
        load_config(TrainConfig, read_json(tmp_path / "config.json"), tmp_path / "config.json")
    assert caught.value.field == "optim.lr"


def test_settings_of_a_newer_version_are_ignored_or_named():
    values = asdict(TrainConfig()) | {"warp_speed": 9}
    assert load_config(TrainConfig, values, "config.json") == TrainConfig()
    with pytest.raises(InvalidFile, match="Unknown here: warp_speed; a newer version"):
        load_config(TrainConfig, values | {"epochs": [1]}, "config.json")


@pytest.mark.parametrize("text", ["9" * 5000, str(2**63), "[" * 70 + "]" * 70, "[" * 100_000, "nul", "", "\xff"])
def test_numbers_and_nesting_without_limit_are_refused(text, tmp_path):
    (tmp_path / "a.json").write_bytes(text.encode("latin1"))
    with pytest.raises(InvalidFile, match=r"a\.json"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "latin-1"])
def test_json_that_is_not_utf8_is_refused(encoding, tmp_path):
    """Python's json guesses UTF-16 and UTF-32, which timm and others do not read."""
    (tmp_path / "a.json").write_bytes('{"name": "Blüte"}'.encode(encoding))
    with pytest.raises(InvalidFile, match=r"not UTF-8|not valid JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes('{"name": "Blüte"}'.encode("utf-8-sig"))  # as Windows editors write it
    assert read_json(tmp_path / "a.json") == {"name": "Blüte"}


def test_additional_keys_of_records_are_kept(tmp_path):
    write_json(tmp_path / "seeds.json", {"seeds": [0, 1], "scores": {}})
    assert read_record(tmp_path / "seeds.json", SeedsResult) == {"seeds": [0, 1], "scores": {}}


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, read_json, read_npz, read_torch, read_safetensors):
        with pytest.raises(OSError, match="Not a regular file"):
            read(tmp_path / "pipe")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    for read in (read_bytes, read_json, read_npz, read_torch, read_safetensors):
        with pytest.raises(IsADirectoryError) as caught:
            read(tmp_path)
        assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6), (-1,)])
def test_an_array_larger_than_its_file_is_refused_before_it_is_allocated(shape, tmp_path):
    header = str({"descr": "<f8", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy + bytes(64))
    with pytest.raises(InvalidFile, match="does not fit"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("read", [read_npz, read_torch])
def test_archives_that_unpack_to_much_more_than_their_size_are_refused(read, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "MAX_UNPACKED", 10**5)
    np.savez_compressed(tmp_path / "a", x=np.zeros(10**6, np.uint8))
    with pytest.raises(InvalidFile, match="unpacks to"):
        read(tmp_path / "a.npz")


def test_text_that_is_no_text_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", names=np.array([0x7FFFFFFF], np.uint32).view("<U1"))
    with pytest.raises(InvalidFile, match="npz"):
        read_npz(tmp_path / "a.npz")


class Planted:
    def __reduce__(self):
        return os.mkdir, ("planted",)


def test_code_in_a_checkpoint_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Planted()}, tmp_path / "a.pt")
    with pytest.raises(InvalidFile, match="could execute arbitrary code"):
        read_torch(tmp_path / "a.pt")
    assert not (tmp_path / "planted").exists()


def test_a_name_that_is_not_utf8_survives_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    write_json(tmp_path / "a.json", {"file": name})
    assert read_json(tmp_path / "a.json") == {"file": name}
    config = TrainConfig(source=name)
    assert load_config(TrainConfig, json.loads(json.dumps(asdict(config))), "config.json") == config


def test_a_text_of_gigabytes_is_refused(tmp_path):
    with open(tmp_path / "a.txt", "wb") as file:
        file.truncate(3 * 10**9)  # takes no space on the disk
    with pytest.raises(OSError, match=r"Too large: 3.0 GB, over 1 GB"):
        open_text(tmp_path / "a.txt")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that cannot be read")
@pytest.mark.parametrize(
    "read", [read_bytes, lambda path: open_regular(path).read(10), lambda path: list(open_text(path))]
)
def test_errors_while_reading_name_the_file(read):
    """Python names a file only if it cannot be opened."""
    with pytest.raises(OSError, match="/proc/self/mem") as caught:
        read("/proc/self/mem")
    assert caught.value.errno == errno.EIO
