"""Torch files that ask for memory or time that their size does not show."""

from __future__ import annotations

import _codecs
import pickle
import tarfile
import warnings
import zipfile
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn

from vitling.errors import InvalidFile
from vitling.loading import read_torch


class Call:
    """Pickled as a call."""

    def __init__(self, function, *values):
        self.call = function, values

    def __reduce__(self):
        return self.call


HOSTILE = {
    "memory": Call(bytearray, 6 * 10**9),
    "storage": Call(torch.UntypedStorage, 6 * 10**9),
    "tensor": Call(torch.FloatTensor, 2 * 10**9),
    "codec": Call(_codecs.encode, "".join(chr(0x4E00 + i) for i in range(20_000)), "punycode"),
    "code": Call(print, "executed"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_calls_that_a_state_dict_does_not_need_are_refused(name, form, tmp_path, capsys):
    path, content = tmp_path / "a.pth", {"x": torch.zeros(1), "y": HOSTILE[name]}
    if form == "pickle":
        path.write_bytes(pickle.dumps({"y": HOSTILE[name]}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InvalidFile, match="other than tensors"):
        read_torch(path)
    assert capsys.readouterr().out == ""


def put_pickle(path, content: bytes, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members with the same name
        for name in names:
            archive.writestr(name, content)
        archive.writestr("archive/version", "3\n")


CRAFTED = {
    "memo": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "tuples": b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.",
    "NEWOBJ": b"\x80\x02ctorch\nFloatTensor\nJ\x00\x94\x35\x77\x85\x81.",
    "memoised": b"\x80\x02cbuiltins\nbytearray\nq\x000h\x00J\x00\x94\x35\x77\x85R.",
    "nothing called": b"\x80\x02NN\x85R.",
    "empty stack": b"\x80\x02R.",
    "no mark": b"\x80\x02Nt.",
}


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("new", [True, False])
def test_crafted_pickles_cost_nothing(name, new, tmp_path):
    path = tmp_path / "a.pth"
    put_pickle(path, CRAFTED[name], "archive/data.pkl") if new else path.write_bytes(CRAFTED[name])
    with pytest.raises(InvalidFile):
        read_torch(path)


HUGE = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x94\x35\x77\x85R."


@pytest.mark.parametrize("names", [("a/DATA.PKL",), ("a/data.pkl",) * 2, ("a/data.pkl", "b/Data.pkl")])
def test_the_pickle_that_is_checked_is_the_one_that_torch_loads(names, tmp_path):
    put_pickle(tmp_path / "a.pth", HUGE, *names)
    with pytest.raises(InvalidFile, match="other than tensors"):
        read_torch(tmp_path / "a.pth")


def test_a_zip_file_behind_a_pickle_does_not_hide_it(tmp_path):
    put_pickle(tmp_path / "end.zip", b"\x80\x02N.", "archive/data.pkl")
    (tmp_path / "a.pth").write_bytes(HUGE + (tmp_path / "end.zip").read_bytes())
    with pytest.raises(InvalidFile, match="other than tensors"):
        read_torch(tmp_path / "a.pth")


def test_a_tar_file_that_begins_as_a_pickle_is_refused(tmp_path):
    header = tarfile.TarInfo()
    header.name = (b"\x80\x02N." * 5).decode("utf-8", "surrogateescape")
    raw = header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    (tmp_path / "a.pth").write_bytes(raw + bytes(1024))
    with pytest.raises(InvalidFile, match="neither a zip file nor a pickle"):
        read_torch(tmp_path / "a.pth")


@pytest.mark.parametrize("new", [True, False])
def test_what_state_dicts_contain_is_read(new, tmp_path):
    shared = torch.randn(4, 3)
    content = {
        "state": nn.Linear(2, 3).state_dict(),
        "parameter": nn.Parameter(torch.ones(2)),
        "shared": [shared, shared.T, shared[1:]],
        "types": [torch.ones(3, dtype=dtype) for dtype in (torch.bfloat16, torch.int8, torch.bool, torch.complex64)],
        "odd": OrderedDict(a=Counter("abc"), b={1, 2}, c=b"bytes", d=1 + 2j, e=torch.Size([1]), f=torch.device("cpu")),
        "dtype": torch.float16,
        "sparse": torch.eye(3).to_sparse(),
        "optimiser": torch.optim.AdamW([nn.Parameter(torch.ones(2))]).state_dict(),
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    found = read_torch(tmp_path / "a.pt")
    assert found.keys() == content.keys()
    assert torch.equal(found["shared"][1], shared.T)
    assert found["odd"] == content["odd"]


@pytest.mark.parametrize("content", [b"", b"text", b"\x80", b"\x80\x02.", b"(lp0\n.", bytes(1024)])
def test_other_files_are_named(content, tmp_path):
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(InvalidFile, match=r"a\.pth: cannot be read as a torch file|a\.pth: damaged"):
        read_torch(tmp_path / "a.pth")
