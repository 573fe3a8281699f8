"""The plan of detect and segment, and the presets of the papers."""

from __future__ import annotations

import pytest

from vitling.settings.dense import MULTI_SCALE, DetectConfig, SegmentConfig
from vitling.settings.facts import Facts, Fit, Start
from vitling.settings.resolve import resolve

PRETRAINED = Start("swin_tiny_patch4_window7_224", 224)


@pytest.mark.parametrize(
    ("images", "epochs", "batch", "freeze"),
    [(50, 300, 4, 1), (367, 157, 16, 1), (2_040, 66, 16, 0), (5_000, 42, 16, 0)],
)
def test_few_images_train_for_more_epochs(images, epochs, batch, freeze):
    config = resolve(SegmentConfig("data", from_="pre"), Facts(images, side=480, start=PRETRAINED)).config
    assert (config.preset, config.epochs, config.batch, config.freeze) == ("small", epochs, batch, freeze)
    assert config.backbone == PRETRAINED.backbone
    assert config.size == 480


def test_random_weights_are_never_frozen():
    config = resolve(DetectConfig("data"), Facts(50, side=640)).config
    assert (config.freeze, config.backbone, config.size) == (0, "pvt_v2_b0", 640)
    assert (config.shorter, config.longest, config.store_size) == ((384, 640), 640, 640)


def test_the_plan_is_written_with_reasons():
    notes = resolve(SegmentConfig("data"), Facts(367, side=480)).notes
    assert notes[0].startswith("Plan")
    assert any("--epochs 157" in note and "fewer for more" in note for note in notes)


def test_without_a_gpu_the_run_gets_an_hour():
    config = resolve(SegmentConfig("data"), Facts(100, side=480, gpu=False)).config
    assert (config.size, config.minutes) == (224, 60.0)
    shorter = resolve(SegmentConfig("data"), Facts(100, side=480, gpu=False, fit=Fit(7, "off"))).config
    assert shorter.epochs == 7


@pytest.mark.parametrize(("preset", "epochs", "drops"), [("1x", 12, (8, 11)), ("3x", 36, (27, 33))])
def test_presets_for_coco(preset, epochs, drops):
    config = resolve(DetectConfig("data", preset=preset), Facts(117_266, side=640)).config
    assert (config.epochs, config.batch, config.size, config.freeze) == (epochs, 16, 1344, 0)
    assert (config.shorter, config.longest, config.drop_path) == ((480, 800), 1333, 0.2)
    assert config.optim.drops == tuple(drop / epochs for drop in drops)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.schedule) == (1e-4, 0.05, "steps")


def test_preset_for_ade20k():
    config = resolve(SegmentConfig("data"), Facts(20_210, side=683)).config
    assert (config.preset, config.size, config.batch, config.test_scales) == ("160k", 512, 16, MULTI_SCALE)
    assert config.epochs * 20_210 / 16 == pytest.approx(160_000, rel=0.01)
    assert config.optim.warmup_epochs * 20_210 / 16 == pytest.approx(1_500)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.schedule) == (6e-5, 0.01, "linear")


def test_explicit_settings_win():
    request = SegmentConfig("data", size=256, epochs=3, freeze=2, explicit=("size", "epochs", "freeze"))
    config = resolve(request, Facts(367, side=480)).config
    assert (config.size, config.epochs, config.freeze) == (256, 3, 2)


def test_views_place_whole_images_on_a_square():
    detect = resolve(DetectConfig("data", jitter="large"), Facts(50, side=640)).config.make_views(640).groups[0]
    assert detect.policy.rescale.factor == (0.1, 2.0)
    assert detect.return_boxes
    (group,) = resolve(SegmentConfig("data"), Facts(367, side=480)).config.make_views(480).groups
    assert group.policy.rescale.factor == (0.5, 2.0)
    assert group.policy.rescale.random_crop
    assert group.policy.keeps_boxes
