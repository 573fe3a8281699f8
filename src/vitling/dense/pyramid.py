"""Feature maps of strides 4, 8, 16 and 32 from any backbone, and a feature pyramid over them.

A network with stages has most of these maps already. A plain ViT has one, from which the others are made by
transposed convolutions and pooling (ViTDet's simple pyramid).
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from vitling.backbones.backbone import Backbone
from vitling.errors import UserError

STRIDES = (4, 8, 16, 32)


class StageMaps(nn.Module):
    """Four maps of a backbone; `widths` are their channels. `pad` makes the sides of images a multiple of `multiple`.

    Parameters of the backbone that the maps do not use, such as those of the final norm, are frozen.
    """

    def __init__(self, backbone: Backbone, multiple: int = STRIDES[-1]):
        super().__init__()
        self.multiple = math.lcm(multiple, backbone.family.patch(backbone.timm_model))
        side = max(2 * STRIDES[-1], self.multiple)
        maps, has_norm = _probe(backbone, torch.zeros(1, backbone.channels, side, side))
        _freeze_unused(backbone, maps)
        strides = [side // some.shape[-1] for some in maps]
        self.is_plain = strides[0] == strides[-1]
        if strides[-1] not in STRIDES or (not self.is_plain and strides[0] != STRIDES[0]):
            raise UserError(
                f"{backbone.name} has maps of stride {strides[0]} to {strides[-1]}; detection and segmentation need "
                "patches of 4, 8, 16 or 32 px."
            )
        self.first = len(maps) - 1 if self.is_plain else 0  # of the maps used
        strides, widths = strides[self.first :], [some.shape[1] for some in maps[self.first :]]
        sources = [max((s for s in strides if s <= target), default=strides[0]) for target in STRIDES]
        self.sources = [strides.index(source) for source in sources]
        self.widths = [widths[source] for source in self.sources]
        self.norms = nn.ModuleList(LayerNorm2d(width) if has_norm else nn.Identity() for width in widths)
        self.resizers = nn.ModuleList(_make_resizer(w, s, t) for w, s, t in zip(self.widths, sources, STRIDES))

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """Return maps [B, widths[i], h, w] for `Features.stages` of an image whose sides are multiples of 32."""
        maps = [norm(some) for norm, some in zip(self.norms, stages[self.first :], strict=True)]
        return [resize(maps[source]) for resize, source in zip(self.resizers, self.sources)]

    def pad(self, pixels: Tensor) -> Tensor:
        """Pad images at the right and bottom to a multiple of `multiple` pixels and of a patch."""
        height, width = pixels.shape[-2:]
        missing = (0, -width % self.multiple, 0, -height % self.multiple)
        return F.pad(pixels, missing) if any(missing) else pixels


def _probe(backbone: Backbone, example: Tensor) -> tuple[list[Tensor], bool]:
    """Run the backbone on an image of zeros; return its maps and whether a norm would follow them."""
    training = backbone.training
    with torch.enable_grad():
        features = backbone.eval().forward(example.to(next(backbone.parameters()).device), stages=True)
    backbone.train(training)
    assert features.stages is not None
    return features.stages, features.raw_grid is not None


def _freeze_unused(backbone: Backbone, maps: list[Tensor]) -> None:
    """Freeze parameters without a gradient: DDP would wait for it."""
    trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    if not trained:
        return
    with torch.enable_grad():
        total = torch.stack([some.sum() for some in maps]).sum()
    for parameter, gradient in zip(trained, torch.autograd.grad(total, trained, allow_unused=True)):
        parameter.requires_grad_(gradient is not None)


def _make_resizer(width: int, source: int, target: int) -> nn.Module:
    """Make a module that takes a map of stride `source` to stride `target`."""
    layers: list[nn.Module] = []
    for step in range(int(math.log2(max(source // target, 1)))):
        layers += [LayerNorm2d(width), nn.GELU()] if step else []
        layers.append(nn.ConvTranspose2d(width, width, kernel_size=2, stride=2))
    if target > source:
        layers.append(nn.MaxPool2d(target // source))
    return nn.Sequential(*layers)


class Pyramid(nn.Module):
    """Maps of one width for strides 4 to 64: an FPN over stages, or separate convolutions over a plain ViT's maps."""

    def __init__(self, maps: StageMaps, width: int = 256):
        super().__init__()
        self.width = width
        if maps.is_plain:
            self.top_down = None
            self.convs = nn.ModuleList(_make_convs(some, width) for some in maps.widths)
        else:
            self.top_down = FeaturePyramidNetwork(maps.widths, width)
            self.convs = nn.ModuleList()

    def forward(self, maps: list[Tensor]) -> OrderedDict[str, Tensor]:
        """Return five maps by name, "0" to "3" and "pool"."""
        named = OrderedDict((str(i), some) for i, some in enumerate(maps))
        if self.top_down is not None:
            named = OrderedDict(self.top_down(named))
        else:
            named = OrderedDict((name, conv(some)) for conv, (name, some) in zip(self.convs, named.items()))
        named["pool"] = F.max_pool2d(named["3"], kernel_size=1, stride=2)
        return named


def _make_convs(width_in: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width_in, width, 1, bias=False),
        LayerNorm2d(width),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        LayerNorm2d(width),
    )
