"""The same views made by other libraries: torchvision and lightly in worker processes, kornia on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import Image
from released_style import PilBlur
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from vitling.data.store import Store
from vitling.papers.measure import Workload
from vitling.views import Blur, Flip, Grey, Jitter, Plan, RandAugment, Solarise

Transform = Callable[[Image.Image], list[Tensor]]


def is_available(peer: str, work: Workload) -> bool:
    """Return whether a library is installed and has these views: kornia and lightly only have SimCLR's."""
    if len(work.plan.groups) > 1 or work.plan.groups[0].count != 2 or find_spec(peer) is None:
        return False
    try:
        import_module(peer)
    except ImportError as problem:
        print(f"{peer} is left out: {problem}", flush=True)
        return False
    return True


def make_torchvision_views(plan: Plan) -> Transform:
    """Make the views with torchvision's transforms on PIL images, without mixing."""
    transforms = []
    for group in plan.groups:
        filter = getattr(T.InterpolationMode, group.policy.filter.upper())
        steps: list[Any] = [T.RandomResizedCrop(group.size, group.policy.scale, group.policy.ratio, filter)]
        for step in group.policy.steps:
            match step:
                case Flip(prob):
                    steps.append(T.RandomHorizontalFlip(prob))
                case Jitter(b, c, s, h, prob):
                    steps.append(T.RandomApply([T.ColorJitter(b, c, s, h)], prob))
                case Grey(prob):
                    steps.append(T.RandomGrayscale(prob))
                case Blur(prob, radius):
                    steps.append(T.RandomApply([PilBlur(radius)], prob))
                case Solarise(prob, threshold):
                    steps.append(T.RandomSolarize(threshold, prob))
                case RandAugment():
                    from timm.data.auto_augment import rand_augment_transform

                    steps.append(rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": (124, 116, 104)}))
        steps += [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        if group.policy.erase:
            steps.append(T.RandomErasing(group.policy.erase, value="random"))
        transforms += [T.Compose(steps)] * group.count
    return lambda image: [transform(image) for transform in transforms]


def make_lightly_views(plan: Plan) -> Transform:
    from lightly.transforms import SimCLRTransform

    return SimCLRTransform(input_size=plan.groups[0].size)


class PilImages(Dataset):
    def __init__(self, pixels: np.ndarray, make: Callable[[Plan], Transform], plan: Plan, length: int):
        self.pixels, self.length, self.make, self.plan = pixels, length, make, plan
        self.transform: Transform | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> list[Tensor]:
        self.transform = self.transform or self.make(self.plan)
        return self.transform(Image.fromarray(self.pixels[i % len(self.pixels)]))


def make_pil_loader(
    work: Workload, store: Store, workers: int, batches: int, make: Callable[[Plan], Transform] = make_torchvision_views
) -> DataLoader:
    """Load `batches` batches of views of decoded pixels, plus twice what the workers prefetch."""
    pixels = torch.cat([store.fetch(np.arange(i, i + 64))[0].cpu() for i in range(0, min(512, len(store)), 64)])
    length = (batches + 4 * workers) * work.batch
    images = PilImages(pixels.permute(0, 2, 3, 1).contiguous().numpy(), make, work.plan, length)
    pinned = store.device.type == "cuda"
    return DataLoader(images, work.batch, num_workers=workers, pin_memory=pinned, drop_last=True, prefetch_factor=2)


class Kornia:
    """Batches of the store, augmented on the device with one draw per image, on kornia's fast path without boxes."""

    def __init__(self, work: Workload, store: Store):
        import kornia.augmentation as K

        group = work.plan.groups[0]
        size = (group.size, group.size)
        self.store, self.batch = store, work.batch
        self.transform = torch.nn.Sequential(
            K.RandomResizedCrop(size, scale=group.policy.scale, ratio=group.policy.ratio, resample="bicubic"),
            K.RandomHorizontalFlip(),
            K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            K.RandomGrayscale(p=0.2),
            K.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5),
            K.Normalize(torch.tensor(store.mean), torch.tensor(store.std)),
        )

    def __iter__(self) -> Iterator[list[Tensor]]:
        while True:
            ids = np.random.default_rng().integers(0, len(self.store), self.batch)
            pixels = self.store.fetch(ids)[0].float() / 255
            with torch.no_grad():
                views = [self.transform(pixels) for _ in range(2)]
            yield views
