"""Torch files that ask for memory or time that their size does not show."""

from __future__ import annotations

import _codecs
import pickle
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
