"""Detection and instance segmentation: Mask R-CNN or its cascade on a backbone."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.dense.cascade import CascadeHeads
from vitling.dense.copy_paste import copy_paste
from vitling.dense.mask_rcnn import Heads, MaskRCNN, Sides, Targets
from vitling.dense.objective import DenseObjective
from vitling.dense.pyramid import Pyramid
from vitling.dense.targets import InstanceTargets
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.views.draws import Draws
from vitling.views.plan import Plan
from vitling.views.renderer import Views

Detector = Literal["mask-rcnn", "cascade"]
MULTIPLE = 64  # of the padded canvas; the coarsest map has this stride


class DetectionObjective(DenseObjective):
    """Mask R-CNN on a backbone; without `masks` Faster R-CNN. Without `targets` it only predicts.

    `copy_paste` is the probability that objects of another image of the pass are pasted onto an image.
    """

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        targets: InstanceTargets | None,
        classes: int,
        kind: Detector = "mask-rcnn",
        masks: bool = True,
        width: int = 256,
        frozen: int = 0,
        copy_paste: float = 0.0,
    ):
        if copy_paste and not masks:
            raise ValueError("copy-paste needs masks")
        super().__init__(backbone, plan, frozen, MULTIPLE)
        self.targets, self.classes, self.kind, self.masks = targets, classes, kind, masks
        self.copy_paste, self.compares_images = copy_paste, copy_paste > 0
        self.pyramid = Pyramid(self.maps, width)
        heads = Heads if kind == "mask-rcnn" else CascadeHeads
        self.detector = MaskRCNN(width, heads(width, classes, masks))

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        view = views[0]
        assert self.targets is not None
        assert view.boxes is not None
        targets = self.targets.view(batch.ids, view.boxes, view.pixels.shape[-1])
        pixels = view.pixels
        if self.copy_paste:
            draws = Draws.from_integers(batch.ids + batch.key, max(1, self.targets.most))
            pixels, targets = copy_paste(pixels, targets, draws, self.copy_paste)
        images = self.maps.pad(pixels)
        return self.detector.compute_losses(images, self.pyramid(self.compute_maps(images)), targets)

    def predict(self, pixels: Tensor, sides: Sides | None = None) -> Targets:
        """Detect objects in normalised images [B, C, H, W], of which `sides` (height, width) at the top left are used.

        Returns "boxes" in pixels, "scores", "labels" from 1 and, if there are masks, "masks" [n, 28, 28] for each.
        Does without torch.compile.
        """
        sides = sides or [(pixels.shape[-2], pixels.shape[-1])] * len(pixels)
        images = self.maps.pad(pixels)
        return self.detector.detect(images, self.pyramid(self.predict_maps(images)), sides)
