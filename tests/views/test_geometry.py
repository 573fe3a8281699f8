from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torchvision.transforms import RandomResizedCrop

from vitling.views.draws import Draws
from vitling.views.geometry import centre_boxes, crop, random_boxes

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture(size: int = 96) -> np.ndarray:
    """Make an image with smooth structure, edges and texture."""
    y, x = np.mgrid[:size, :size] / size
    channels = [np.sin(9 * x + 4 * y), np.sign(np.sin(14 * x * y)), np.cos(30 * (x - 0.5) * (y - 0.2))]
    noise = np.random.default_rng(0).normal(0, 8, (size, size, 3))
    return (128 + 90 * np.stack(channels, -1) + noise).clip(0, 255).astype(np.uint8)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(float) - b.astype(float)) ** 2)))


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("size", [24, 64, 160])
def test_crop_equals_pil(filter, size):
    image = picture()
    boxes = random_boxes(Draws.from_ids([1], torch.arange(24)), torch.ones(24), (0.05, 1.0), (3 / 4, 4 / 3))
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].expand(24, -1, -1, -1)
    ours = crop(pixels, boxes, size, filter).permute(0, 2, 3, 1).numpy()
    for out, (left, top, width, height) in zip(ours, (boxes * 96).tolist()):
        box = (left, top, min(left + width, 96), min(top + height, 96))
        theirs = np.asarray(Image.fromarray(image).resize((size, size), FILTERS[filter], box=box))
        assert psnr(out, theirs) > 45


def test_cpu_and_gpu_crops_agree(monkeypatch):
    """Whole products against bands: two views per image, from a store that is not square."""
    pixels = torch.randint(0, 256, (3, 2, 50, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    boxes = random_boxes(Draws.from_ids([1, 2], torch.arange(3)), torch.ones(6), (0.05, 1.0), (3 / 4, 4 / 3))
    flip = torch.tensor([True, False, False, True, True, False])
    in_bands = crop(pixels, boxes, 40, "bicubic", flip)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    whole = crop(pixels, boxes, 40, "bicubic", flip)
    assert torch.allclose(in_bands, whole, atol=1e-3)
    for view in range(2):
        own = slice(3 * view, 3 * view + 3)
        assert torch.allclose(crop(pixels, boxes[own], 40, "bicubic", flip[own]), whole[own], atol=1e-3)


def test_flip_is_a_mirror_image():
    pixels = torch.from_numpy(picture()).permute(2, 0, 1)[None].repeat(2, 1, 1, 1)
    boxes = torch.tensor([[0.1, 0.2, 0.5, 0.6]]).repeat(2, 1)
    straight, mirrored = crop(pixels, boxes, 32, "bicubic", torch.tensor([False, True]))
    assert torch.allclose(straight.flip(-1), mirrored, atol=1e-3)


@pytest.mark.parametrize("aspect", [0.4, 1.0, 1.7, 5.0])
def test_boxes_follow_torchvisions_distribution(aspect):
    """Area, ratio and position of the box, by Kolmogorov-Smirnov tests; extreme aspect ratios use the fallback."""
    height, width, n = 1000, round(1000 * aspect), 3000
    torch.manual_seed(0)
    image = torch.zeros(1, height, width)
    reference = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    top, left, h, w = reference.T / np.array([[height], [width], [height], [width]])
    boxes = random_boxes(
        Draws.from_ids([4], torch.arange(n)), torch.full((n,), width / height), (0.08, 1.0), (3 / 4, 4 / 3)
    )
    ours = boxes.double().numpy().T
    for mine, theirs in zip(ours, (left, top, w, h)):
        assert stats.ks_2samp(mine.round(3), theirs.round(3)).statistic < 0.05  # theirs are whole pixels; p = 0.001
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= 1 + 1e-6).all()


@pytest.mark.parametrize(("width", "height"), [(80, 60), (60, 80), (64, 64)])
def test_centre_box_is_resize_and_centre_crop(width, height):
    """Shorter side to 64, then the central 56 x 56, from pixels that the store squashed to 128 x 128."""
    image = Image.fromarray(picture(240)).resize((width * 3, height * 3), Image.Resampling.BICUBIC)
    scale = 64 / min(image.size)
    resized = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    x, y = (resized.width - 56) / 2, (resized.height - 56) / 2
    theirs = np.asarray(resized.crop((int(x), int(y), int(x) + 56, int(y) + 56)))
    squashed = torch.from_numpy(np.asarray(image.resize((128, 128), Image.Resampling.BICUBIC)).copy()).permute(2, 0, 1)
    boxes = centre_boxes(torch.tensor([width / height]), 56 / 64)
    ours = crop(squashed[None], boxes, 56, "bicubic")[0].permute(1, 2, 0).numpy()
    assert psnr(ours, theirs) > 22  # a squash and half a pixel away
    wrong = crop(squashed[None], centre_boxes(torch.tensor([height / width * 1.2]), 0.7), 56, "bicubic")[0]
    assert psnr(wrong.permute(1, 2, 0).numpy(), theirs) < psnr(ours, theirs) - 4
