"""--test-size: larger views in validation and test than in training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.conftest import make_folder
from tests.made_runs import read, refused
from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.data.store import build_store
from vitling.evaluation import load
from vitling.evaluation.classify import compute_logits, get_labels
from vitling.evaluation.metrics import top1
from vitling.runs import timing
from vitling.settings.config import TrainConfig

TINY = [
    *("--backbone", "vit_micro_patch4_32", "--size", "16", "--batch", "16", "--epochs", "2", "--loop.device", "cpu"),
    *("--loop.trackers", "none", "--method", "supervised"),
]


@pytest.fixture
def images(tmp_path):
    make_folder(tmp_path / "images", each=12, split="train", width=48, height=48)
    return make_folder(tmp_path / "images", each=6, split="test", first=50, width=48, height=48)


def train(images, out, *flags) -> int:
    return run(["train", str(images), "--out", str(out), *TINY, *flags])


def test_validation_test_and_saved_model_use_it(images, tmp_path, capsys):
    assert train(images, tmp_path / "run", "--test-size", "24", "--val", "0.3") == 0
    assert "evaluated at 24 px" in capsys.readouterr().out
    model = load(tmp_path / "run", device="cpu")
    assert (model.meta.size, model.backbone.size) == (24, 24)
    result = read(tmp_path / "run" / "result.json")
    assert (result["size"], result["evaluated_at"]) == (16, 24)
    tested = result["last"]["test"]
    store = build_store(read_splits(str(images), DataConfig()).open_test("a test"), model.meta.store_size)
    store.mean, store.std = model.meta.mean, model.meta.std
    larger, usual = (compute_logits(model.logits, store, size, 0.875) for size in (24, 16))
    assert tested["top1"] == pytest.approx(top1(larger, get_labels(store)))
    assert not torch.allclose(larger, usual, atol=1e-3)
    assert run(["evaluate", str(tmp_path / "run"), str(images), "--out", str(tmp_path / "again.json")]) == 0
    again = read(tmp_path / "again.json")
    assert (again["size"], again["log_loss"]) == (24, pytest.approx(tested["log_loss"], abs=1e-5))


def test_stage_at_a_larger_size_is_evaluated_there(images, tmp_path, capsys):
    assert train(images, tmp_path / "run", "--test-size", "24", "--final-size", "32", "--val", "none") == 0
    output = capsys.readouterr().out
    assert output.index("evaluated at 24 px") < output.index("large, evaluated at 32 px") < output.index("Saved to")
    assert read(tmp_path / "run" / "large" / "result.json")["evaluated_at"] == 32


def test_time_is_reserved_for_larger_views(images):
    at = {size: TrainConfig(source=str(images), size=16, test_size=size) for size in (None, 32)}
    splits = SimpleNamespace(hidden_test=range(1000))
    stores = SimpleNamespace(splits=splits, val=None, seconds_per_image=0.0)
    usual, larger = (
        timing.ending_seconds(config, stores, pace=100.0) - timing._SAVING_SECONDS for config in at.values()
    )
    assert larger == pytest.approx(4 * usual)
    assert usual == pytest.approx(1000 / 100 / timing.EVALUATION_SPEED)


def test_training_does_not_depend_on_it(images, tmp_path):
    for name, flags in (("usual", []), ("larger", ["--test-size", "24", "--store-size", "28"])):
        assert train(images, tmp_path / name, "--val", "none", "--store-size", "28", *flags) == 0
    usual, larger = (load(tmp_path / name, device="cpu").backbone.state_dict() for name in ("usual", "larger"))
    resized = {name for name in usual if usual[name].shape != larger[name].shape}
    assert resized == {"timm_model.pos_embed"}
    assert all(torch.equal(usual[name], larger[name]) for name in usual.keys() - resized)


def test_images_are_decoded_large_enough(images, tmp_path):
    assert train(images, tmp_path / "run", "--test-size", "40", "--val", "none") == 0
    assert read(tmp_path / "run" / "result.json")["store_size"] == 46  # 40 / 0.875; the images have 48


@pytest.mark.parametrize(
    ("flags", "word"), [(["--test-size", "23"], "--test-size 23"), (["--test-size", "0"], "at least")]
)
def test_wrong_size_is_refused_before_training(images, tmp_path, capsys, flags, word):
    assert word in refused(capsys, "train", images, "--out", tmp_path / "run", *TINY, *flags)
    two = [*TINY[:-1], "idmm", "--pretrain-epochs", "1"]
    assert word in refused(capsys, "train", images, "--out", tmp_path / "run", *two, *flags)
    assert not (tmp_path / "run").exists()
