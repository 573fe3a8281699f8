"""Mask R-CNN (He et al., 2017) on torchvision's parts: proposals, box head and mask head over a feature pyramid.

Two things differ from torchvision's own. Masks of instances are squares within their boxes, and a proposal's target is
sampled from them, which needs no masks of the size of the canvas. Anchors and the outputs of heads are float32, because
bf16 cannot tell coordinates of neighbouring pixels apart.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection import roi_heads
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign, roi_align
from torchvision.ops.poolers import initLevelMapper

from vitling.dense.pyramid import STRIDES

Targets = list[dict[str, Tensor]]  # see `InstanceTargets.view`
Sides = list[tuple[int, int]]  # height and width of the images of a batch

ANCHORS = (32, 64, 128, 256, 512)  # canvas pixels, one for each level
RATIOS = (0.5, 1.0, 2.0)
LEVELS = ["0", "1", "2", "3"]  # that boxes and masks are read from; proposals use the pooled one too
BOX_SIDE, MASK_SIDE = 7, 14  # cells of a box that the heads see; the mask has twice as many
BOX_FACTOR = 4  # width of the box head over that of the pyramid: 1024 and 256 in the papers
SAMPLES = 512  # proposals per image that the box head is trained on, a quarter of them on objects
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # of the regression targets


class Anchors(AnchorGenerator):
    """torchvision's, in float32 whatever the type of the maps."""

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        number = torch.zeros((), device=feature_maps[0].device)
        return super().forward(image_list, [number.expand(some.shape) for some in feature_maps])


class ProposalHead(RPNHead):
    """torchvision's, in float32."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        objectness, deltas = super().forward(x)
        return [some.float() for some in objectness], [some.float() for some in deltas]


class BoxPredictor(FastRCNNPredictor):
    """torchvision's, in float32; class-agnostic regression for the cascade."""

    def __init__(self, width: int, classes: int, agnostic: bool = False):
        super().__init__(width, classes + 1)
        if agnostic:
            self.bbox_pred = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, deltas = super().forward(x)
        return scores.float(), deltas.float()


def make_proposal_network(width: int) -> RegionProposalNetwork:
    """Make a region proposal network with the settings of Mask R-CNN's paper and its implementations."""
    anchors = Anchors(tuple((side,) for side in ANCHORS), (RATIOS,) * len(ANCHORS))
    return RegionProposalNetwork(
        anchors,
        ProposalHead(width, len(RATIOS)),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 2000, "testing": 1000},
        post_nms_top_n={"training": 1000, "testing": 1000},
        nms_thresh=0.7,
    )


def make_pooler(side: int) -> MultiScaleRoIAlign:
    """Make a pooler with known strides: torchvision would guess them from the first image."""
    pooler = MultiScaleRoIAlign(LEVELS, output_size=side, sampling_ratio=2)
    pooler.scales = [1 / stride for stride in STRIDES]
    pooler.map_levels = initLevelMapper(2, 5)
    return pooler


class Heads(roi_heads.RoIHeads):
    """Box head and, if there are masks, mask head over the proposals."""

    def __init__(self, width: int, classes: int, masks: bool, predictor: BoxPredictor | None = None):
        super().__init__(
            make_pooler(BOX_SIDE),
            TwoMLPHead(width * BOX_SIDE**2, BOX_FACTOR * width),
            predictor or BoxPredictor(BOX_FACTOR * width, classes),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=SAMPLES,
            positive_fraction=0.25,
            bbox_reg_weights=BOX_WEIGHTS,
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
        )
        if masks:
            self.mask_roi_pool = make_pooler(MASK_SIDE)
            self.mask_head = MaskRCNNHeads(width, (width,) * 4, dilation=1)
            self.mask_predictor = MaskRCNNPredictor(width, width, classes + 1)

    def compute_losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], sides: Sides, targets: Targets
    ) -> dict[str, Tensor]:
        samples, matches, labels, deltas = self.select_training_samples(proposals, targets)
        scores, regression = self.box_predictor(self.box_head(self.box_roi_pool(features, samples, sides)))
        class_loss, box_loss = roi_heads.fastrcnn_loss(scores, regression, labels, deltas)
        losses = {"class": class_loss, "box": box_loss}
        return losses | self.compute_mask_loss(features, samples, sides, matches, labels, targets)

    def compute_mask_loss(
        self,
        features: dict[str, Tensor],
        samples: list[Tensor],
        sides: Sides,
        matches: list[Tensor],
        labels: list[Tensor],
        targets: Targets,
    ) -> dict[str, Tensor]:
        """Compute the loss of the mask of the true class, for samples on objects."""
        if not self.has_mask():
            return {}
        on_object = [some.nonzero()[:, 0] for some in (label > 0 for label in labels)]
        boxes = [some[index] for some, index in zip(samples, on_object)]
        matched = [some[index] for some, index in zip(matches, on_object)]
        logits = self.predict_masks(features, boxes, sides)
        true_class = torch.cat([some[index] for some, index in zip(labels, on_object)])
        logits = logits[torch.arange(len(logits), device=logits.device), true_class]
        wanted = sample_masks(boxes, matched, targets, logits.shape[-1])
        loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        return {"mask": loss / max(1, wanted.numel())}

    def predict_masks(self, features: dict[str, Tensor], boxes: list[Tensor], sides: Sides) -> Tensor:
        """Return the logits of the masks of all classes, float32 [n, 1 + K, 28, 28]."""
        assert self.mask_roi_pool is not None
        assert self.mask_head is not None
        assert self.mask_predictor is not None
        return self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, sides))).float()

    def predict_boxes(
        self, features: dict[str, Tensor], proposals: list[Tensor], sides: Sides
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return boxes, scores and labels of each image."""
        scores, regression = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, sides)))
        return self.postprocess_detections(scores, regression, proposals, sides)

    def detect(self, features: dict[str, Tensor], proposals: list[Tensor], sides: Sides) -> Targets:
        """Return "boxes", "scores", "labels" and, if there are masks, "masks" [n, 28, 28] from 0 to 1."""
        boxes, scores, labels = self.predict_boxes(features, proposals, sides)
        found = [dict(zip(("boxes", "scores", "labels"), some)) for some in zip(boxes, scores, labels)]
        if self.has_mask():
            masks = roi_heads.maskrcnn_inference(self.predict_masks(features, boxes, sides), labels)
            for some, probabilities in zip(found, masks):
                some["masks"] = probabilities[:, 0]
        return found


def sample_masks(boxes: list[Tensor], matched: list[Tensor], targets: Targets, side: int) -> Tensor:
    """Sample the masks of the matched instances on side x side cells of each box, float [n, side, side]."""
    masks = torch.cat([target["masks"] for target in targets])
    numbers = [len(target["masks"]) for target in targets]
    first = [sum(numbers[:i]) for i in range(len(numbers))]
    index = torch.cat([some + start for some, start in zip(matched, first)])
    rois = torch.cat(boxes)
    if not len(rois):
        return rois.new_zeros(0, side, side)
    places = torch.cat([target["mask_boxes"] for target in targets])[index]
    corner, extent = places[:, :2].repeat(1, 2), (places[:, 2:] - places[:, :2]).repeat(1, 2)
    within = (rois - corner) / extent * masks.shape[-1]  # pixels of the mask
    rows = torch.cat([index[:, None].to(within.dtype), within], dim=1)
    return roi_align(masks[:, None].float(), rows, side, aligned=True)[:, 0]


class MaskRCNN(nn.Module):
    """Proposals and heads over a pyramid of maps."""

    def __init__(self, width: int, heads: Heads):
        super().__init__()
        self.proposals, self.heads = make_proposal_network(width), heads

    def compute_losses(self, images: Tensor, features: OrderedDict[str, Tensor], targets: Targets) -> dict[str, Tensor]:
        """Compute the named terms of the loss. Proposals may lie anywhere on the canvas, padding included."""
        sides = [(images.shape[-2], images.shape[-1])] * len(images)
        proposals, losses = self.proposals(ImageList(images, sides), features, targets)
        named = {"objectness": losses["loss_objectness"], "proposal": losses["loss_rpn_box_reg"]}
        return named | self.heads.compute_losses(features, proposals, sides, targets)

    def detect(self, images: Tensor, features: OrderedDict[str, Tensor], sides: Sides) -> Targets:
        proposals, _ = self.proposals(ImageList(images, sides), features)
        return self.heads.detect(features, proposals, sides)
