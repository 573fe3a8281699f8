"""Model folders and weights files from elsewhere: a network or a UserError; nothing is downloaded or executed."""

from __future__ import annotations

import json
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes, damaged_records
from tests.tiny import tiny_backbone
from vitling.backbones.transfer import load_weights
from vitling.errors import UserError
from vitling.evaluation.bundle import load_bundle, save_bundle
from vitling.evaluation.meta import BundleMeta


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    meta = BundleMeta("single", ("cat", "dog"), 16, 18, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    save_bundle(folder, tiny_backbone(), torch.nn.Linear(32, 2), meta)
    (folder / "original.json").write_bytes((folder / "config.json").read_bytes())
    (folder / "original.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def original(folder):
    (folder / "model.safetensors").write_bytes((folder / "original.safetensors").read_bytes())
    return json.loads((folder / "original.json").read_text())


@QUICK
@given(data=st.data())
def test_a_description_with_one_wrong_value_is_loaded_or_refused(data, folder, original):
    (folder / "config.json").write_text(json.dumps(data.draw(damaged_records(original))))
    accepts_or_refuses(load_bundle, folder)


@QUICK
@given(data=st.data())
def test_damaged_weights_are_loaded_or_refused(data, folder, original):
    (folder / "config.json").write_text(json.dumps(original))
    (folder / "model.safetensors").write_bytes(data.draw(damaged_bytes((folder / "original.safetensors").read_bytes())))
    accepts_or_refuses(load_bundle, folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("architecture",), "hf-hub:someone/vit", "not one that vitling builds"),
        (("architecture",), "local-dir:/tmp", "not one that vitling builds"),
        (("model_args", "pretrained"), True, "'pretrained', which vitling does not pass"),
        (("model_args", "checkpoint_path"), "/etc/passwd", "'checkpoint_path'"),
        (("model_args", "num_heads"), 3, "cannot be built"),
        (("model_args", "embed_dim"), 65_536, "do not fit"),
        (("model_args", "embed_dim"), 10**9, "expected numbers from 0"),
        (("model_args", "depth"), 10**4, "at most 512 blocks"),
        (("model_args", "patch_size"), 0, "cannot be built"),
        (("model_args", "img_size"), 0, "config.json"),
        (("model_args", "in_chans"), None, "in_chans is None; expected a number"),
        (("model_args", "drop_path_rate"), None, "drop_path_rate is None; expected a number"),
        (("vitling", "mean"), [], "mean needs at least one number"),
        (("vitling", "std"), [0.2, 0.2, 0.0], "at least"),
        (("vitling", "size"), 0, "at least 1"),
        (("vitling", "temperature"), float("nan"), "finite"),
        (("vitling", "class_names"), ["cat"], "a row for each class"),
        (("vitling", "task"), "several", "vitling"),
    ],
)
def test_networks_that_cannot_exist_are_refused(place, value, message, folder, original):
    section = original if len(place) == 1 else original[place[0]]
    section[place[-1]] = value
    (folder / "config.json").write_text(json.dumps(original))
    with pytest.raises(UserError, match=message):
        load_bundle(folder)


@QUICK
@given(
    shape=st.lists(st.integers(0, 40), max_size=4),
    dtype=st.sampled_from([torch.complex64, torch.bool, torch.int64, torch.float16, torch.float64, torch.uint8]),
    name=st.sampled_from(["pos_embed", "cls_token", "patch_embed.proj.weight", "blocks.0.norm1.weight", "head.weight"]),
)
def test_tensors_of_any_shape_and_type_are_taken_or_refused(shape, dtype, name):
    backbone = tiny_backbone()
    accepts_or_refuses(load_weights, backbone, {name: torch.ones(shape, dtype=dtype)})
    assert all(value.is_floating_point() for value in backbone.timm_model.state_dict().values())


def test_a_checkpoint_that_holds_itself_is_refused(tmp_path):
    content: dict = {}
    content["model"] = content
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(UserError, match="no tensors"):
        load_weights(tiny_backbone(), tmp_path / "a.pth")


def test_sparse_and_expanded_tensors_are_refused(tmp_path):
    for value in (torch.eye(4).to_sparse(), torch.ones(1, 1, 32).expand(1, 10**9, 32)):
        with pytest.raises(UserError, match="pos_embed"):
            load_weights(tiny_backbone(), {"pos_embed": value})


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_a_file_that_ends_early_is_refused(name, tmp_path):
    weights = tiny_backbone().timm_model.state_dict()
    save_file(weights, tmp_path / name) if name.endswith("tensors") else torch.save(weights, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be read"):
        load_weights(tiny_backbone(), tmp_path / name)


@pytest.mark.parametrize("change", [{"mean": [1e308] * 3}, {"std": [1e-300] * 3}, {"temperature": 1e308}], ids=str)
def test_numbers_that_float32_cannot_hold_are_refused(folder, original, change):
    (folder / "config.json").write_text(json.dumps(original | {"vitling": original["vitling"] | change}))
    with pytest.raises(UserError, match=next(iter(change))):
        load_bundle(folder)


def test_a_description_without_channels_is_refused(folder, original):
    del original["model_args"]["in_chans"]
    (folder / "config.json").write_text(json.dumps(original))
    with pytest.raises(UserError, match="in_chans"):
        load_bundle(folder)
