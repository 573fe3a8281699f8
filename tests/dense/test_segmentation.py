"""UPerNet: its parts against torch's, its loss against a literal one, and a toy run that overfits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.dense.shapes import Scenes, small_backbone
from tests.training.helpers import config, run_in
from vitling.data.store import Store
from vitling.dense.inference import WholeView, render_whole, segment_images
from vitling.dense.objective import freeze
from vitling.dense.segmentation import SegmentationObjective, average_loss
from vitling.dense.targets import MaskTargets, squash_masks
from vitling.dense.upernet import BINS, AuxiliaryHead, PyramidPooling, UPerNet, average_bins
from vitling.training import CheckpointConfig, OptimConfig, fit
from vitling.training.batch_norm import group_batch_norm
from vitling.views import Normaliser
from vitling.views.policies import make_plan


@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("side", [1, 5, 7, 16])
def test_bins_equal_adaptive_pooling(bins, side):
    maps = torch.randn(2, 3, side, side + 2)
    assert torch.allclose(average_bins(maps, bins), F.adaptive_avg_pool2d(maps, bins), atol=1e-6)


def test_pooling_takes_one_image():
    assert PyramidPooling(8, 4)(torch.randn(1, 8, 4, 4)).shape == (1, 4, 4, 4)


def test_upernet_has_the_sizes_of_the_paper():
    net = UPerNet([96, 192, 384, 768], 150)
    assert net.pooling.fuse[0].weight.shape == (512, 768 + 4 * 512, 3, 3)
    assert net.fuse[0].weight.shape == (512, 4 * 512, 3, 3)
    assert AuxiliaryHead([96, 192, 384, 768], 150).conv[0].weight.shape == (256, 384, 3, 3)
    net = UPerNet([4, 6, 8, 10], 5, width=8).eval()
    maps = [torch.randn(1, w, n, n) for w, n in zip((4, 6, 8, 10), (16, 8, 4, 2))]
    assert net(maps).shape == (1, 5, 16, 16)
    assert AuxiliaryHead([4, 6, 8, 10], 5, width=4)(maps).shape == (1, 5, 4, 4)


def test_loss_equals_a_literal_mean():
    logits, targets = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    targets[0, :2] = 255
    each = [
        -F.log_softmax(logits[b, :, y, x], 0)[targets[b, y, x]]
        for b in range(2) for y in range(4) for x in range(4) if targets[b, y, x] != 255
    ]  # fmt: skip
    assert torch.isclose(average_loss(logits, targets), torch.stack(each).mean())
    assert average_loss(logits, torch.full_like(targets, 255)) == 0


@pytest.mark.parametrize(("quarters", "share"), [(0, 0.0), (2, 0.5), (4, 1.0)])
def test_freezing_stops_at_a_block(quarters, share):
    backbone = small_backbone()
    freeze(backbone, quarters)
    blocks = backbone.blocks()
    frozen = [not any(p.requires_grad for p in block.parameters()) for block in blocks]
    assert frozen == [i < share * len(blocks) for i in range(len(blocks))]
    assert backbone.timm_model.patch_embed.proj.weight.requires_grad == (quarters == 0)


@pytest.mark.parametrize("change", ["none", "train", "group"])
def test_frozen_modules_stay_in_evaluation_mode(change):
    """From the start, in training mode, and after the batch norms were replaced."""
    model = SegmentationObjective(small_backbone("resnet18"), make_plan("segmentation", 64), None, 3, 8, frozen=1)
    if change == "group":
        group_batch_norm(model, 4)
    if change != "none":
        model.train()
    assert not model.backbone.timm_model.bn1.training
    assert model.backbone.timm_model.layer4[1].bn2.training
    assert model.head.training


def test_a_prediction_has_the_size_of_its_image():
    model = SegmentationObjective(small_backbone(), make_plan("segmentation", 64), None, 5, width=8).eval()
    assert model.predict(torch.randn(1, 3, 50, 70)).shape == (1, 5, 50, 70)


def test_whole_images_are_resized():
    pixels = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8)
    normalise = Normaliser((0.5,) * 3, (0.25,) * 3)
    for sides in ((40, 30), (20, 60)):
        resized = F.interpolate(pixels.float(), size=sides, mode="bilinear", antialias=True)
        assert torch.allclose(render_whole(pixels, sides, normalise), normalise(resized), atol=1e-2)


@pytest.mark.parametrize(
    ("scales", "flip"), [((0.5, 1.0, 1.75), False), ((1.0,), True), ((0.5, 1.25), True)], ids=["scales", "flip", "both"]
)
def test_multi_scale_testing_equals_the_literal_rule(scales, flip):
    torch.manual_seed(0)
    scenes, view = Scenes(4), WholeView(64, 256)
    store = scenes.make_store(96)
    model = SegmentationObjective(small_backbone(), make_plan("segmentation", 64), None, 4, width=8).eval()
    vary_classes(model, store)
    several = dict(segment_images(model, store, view, scales, flip))
    single = dict(segment_images(model, store, view))
    literal = {i: segment_slowly(model, store, view, i, scales, flip) for i in several}
    equal, with_one_view = (np.mean([(found[i] == literal[i]).mean() for i in literal]) for found in (several, single))
    assert equal > 0.99
    assert with_one_view < 0.9


@torch.no_grad()
def vary_classes(model: SegmentationObjective, store: Store) -> None:
    """Scale the logits of random weights, so that every class is the most probable one somewhere."""
    images = Normaliser(store.mean, store.std)(store.fetch(np.arange(len(store)))[0])
    logits, last = model.predict(images), model.head.classify[-1]
    scale = 3 / logits.std(dim=(0, 2, 3))
    last.weight.mul_(scale[:, None, None, None])
    last.bias.sub_(logits.mean(dim=(0, 2, 3))).mul_(scale)


@torch.inference_mode()
def segment_slowly(model, store, view, i, scales, flip) -> np.ndarray:
    """Resize one image to each scale, mirror it too, average the probabilities, and enlarge them."""
    height, width = store.facts.height[i], store.facts.width[i]
    pixels, base = store.fetch(np.array([i]))[0].float(), view.measure(width / height)
    normalise, probabilities = Normaliser(store.mean, store.std), []
    for scale in scales:
        sides = [round(side * scale) for side in base]
        image = normalise(F.interpolate(pixels, size=sides, mode="bilinear", antialias=True))
        found = [model.predict(image).softmax(dim=1)]
        if flip:
            found.append(model.predict(image.flip(-1)).softmax(dim=1).flip(-1))
        probabilities += [F.interpolate(one, size=base, mode="bilinear") for one in found]
    average = torch.stack(probabilities).mean(dim=0)
    return F.interpolate(average, size=(height, width), mode="bilinear")[0].argmax(dim=0).numpy()


def test_toy_run_overfits(tmp_path):
    """mIoU of ten drawn images above 0.8 (in 40 epochs, batch 5)."""
    torch.manual_seed(0)
    scenes = Scenes(10)
    store = scenes.make_store(96)
    masks = MaskTargets(torch.from_numpy(squash_masks(lambda i: scenes.masks[i], 10, 96)))
    plan = make_plan("segmentation", 64)
    model = SegmentationObjective(small_backbone(), plan, masks, classes=4, width=32)
    settings = config(epochs=40, batch=5, optim=OptimConfig(lr=2e-3), checkpoint=CheckpointConfig())
    result = fit(model, store, settings, run=run_in(tmp_path / "run"))
    assert set(result.metrics) >= {"loss", "segmentation", "auxiliary"}
    view = WholeView(64, 256)
    confusion = count_confusion(segment_images(model, store, view), scenes.masks)
    assert compute_miou(confusion) > 0.8
    several = count_confusion(segment_images(model, store, view, scales=(0.75, 1.0, 1.25), flip=True), scenes.masks)
    assert compute_miou(several) > 0.8


def count_confusion(predictions, masks) -> np.ndarray:
    confusion = np.zeros((4, 4), np.int64)
    for i, found in predictions:
        assert found.shape == masks[i].shape
        np.add.at(confusion, (masks[i].ravel(), found.ravel()), 1)
    return confusion


def compute_miou(confusion: np.ndarray) -> float:
    hit = np.diag(confusion)
    return float((hit / (confusion.sum(0) + confusion.sum(1) - hit)).mean())
