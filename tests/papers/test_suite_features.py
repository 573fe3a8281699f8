"""The features that a suite keeps: they are read as they were written, or computed again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from tests.hostile import QUICK, damaged_bytes
from vitling.evaluation.probe_features import FrozenFeatures
from vitling.evaluation.probes import SplitFeatures
from vitling.papers.suite.features import DatasetFeatures, load_features, save_features

CPU, CLASSES = torch.device("cpu"), 3


def make_features(multi: bool = False) -> DatasetFeatures:
    origin = {"made_from": "abc", "class_names": ["a", "b", "\u00e9"], "notes": ["few"], "data_hashes": {"train": "1"}}
    splits = {}
    for count, name in enumerate(("train", "validation", "judged"), start=4):
        labels = torch.eye(CLASSES).bool()[torch.arange(count) % 3] if multi else torch.arange(count) % CLASSES
        splits[name] = SplitFeatures(None, FrozenFeatures(torch.randn(count, 8), torch.randn(count, 16)), labels)
    return DatasetFeatures(origin, splits)


@pytest.mark.parametrize("multi", [False, True])
def test_features_are_read_as_they_were_written(multi, tmp_path):
    path, features = tmp_path / "features-4.safetensors", make_features(multi)
    save_features(path, features)
    found = load_features(path, CPU)
    assert found is not None
    assert found.origin == features.origin
    assert found.splits.keys() == features.splits.keys()
    for name, split in features.splits.items():
        for own, other in zip((split.labels, *split.frozen), (found.splits[name].labels, *found.splits[name].frozen)):
            assert torch.equal(own, other)


def replaced(name, value):
    return lambda tensors, origin: tensors.update({name: value(tensors[name])})


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors, origin: tensors.pop("train.pooled"),
        lambda tensors, origin: tensors.update(more=torch.zeros(1)),
        replaced("train.labels", lambda x: x - 1),
        replaced("train.labels", lambda x: x + CLASSES),
        replaced("train.labels", torch.Tensor.float),
        replaced("train.labels", lambda x: x[0]),
        replaced("judged.labels", lambda x: x[:0]),
        replaced("judged.labels", lambda x: torch.eye(CLASSES).bool()[x]),
        replaced("validation.pooled", lambda x: x[1:]),
        replaced("validation.pooled", lambda x: x[:, 1:]),
        replaced("validation.pooled", lambda x: x[0]),
        replaced("validation.pooled", torch.Tensor.double),
        replaced("judged.blocks", torch.Tensor.int),
        lambda tensors, origin: origin.clear(),
        lambda tensors, origin: origin.update(class_names=5),
        lambda tensors, origin: origin.update(data_hashes=[]),
        lambda tensors, origin: origin.update(notes={"a": 1}),
    ],
)
def test_features_that_do_not_fit_are_none(damage, tmp_path):
    path = tmp_path / "features-4.safetensors"
    save_features(path, make_features())
    with safe_open(path, "pt") as file:
        tensors, origin = {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["origin"])  # noqa: SIM118
    damage(tensors, origin)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {"origin": json.dumps(origin)})
    assert load_features(path, CPU) is None


@given(data=st.data())
@QUICK
def test_damaged_files_of_features_raise_nothing(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features-4.safetensors"
        save_features(path, make_features())
        path.write_bytes(data.draw(damaged_bytes(path.read_bytes())))
        load_features(path, CPU)
