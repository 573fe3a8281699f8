"""Cascade R-CNN (Cai and Vasconcelos, 2018): three box heads, each trained on the boxes of the one before it.

A later head sees better boxes and is trained for a higher overlap. The mask head is trained on the proposals of the
first, and at test sees the boxes of the last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models.detection import roi_heads
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.ops import clip_boxes_to_image

from vitling.dense.mask_rcnn import BOX_FACTOR, BOX_SIDE, BoxPredictor, Heads, Sides, Targets

OVERLAPS = (0.5, 0.6, 0.7)
REGRESSION_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
LOSS_WEIGHTS = (1.0, 0.5, 0.25)  # of the heads, as in mmdetection


class CascadeHeads(Heads):
    """Three class-agnostic box heads and, if there are masks, a mask head."""

    def __init__(self, width: int, classes: int, masks: bool):
        hidden, later = BOX_FACTOR * width, OVERLAPS[1:]
        super().__init__(width, classes, masks, BoxPredictor(hidden, classes, agnostic=True))
        self.later_heads = nn.ModuleList(TwoMLPHead(width * BOX_SIDE**2, hidden) for _ in later)
        self.later_predictors = nn.ModuleList(BoxPredictor(hidden, classes, agnostic=True) for _ in later)

    def enter(self, stage: int) -> None:
        """Match, encode and decode boxes as this stage does."""
        overlap = OVERLAPS[stage]
        self.proposal_matcher = Matcher(overlap, overlap, allow_low_quality_matches=False)
        self.box_coder = BoxCoder(REGRESSION_WEIGHTS[stage])

    def run_stage(
        self, stage: int, features: dict[str, Tensor], boxes: list[Tensor], sides: Sides
    ) -> tuple[Tensor, Tensor]:
        """Return scores [n, 1 + K] and regression [n, 4] of a stage."""
        head = self.later_heads[stage - 1] if stage else self.box_head
        predictor = self.later_predictors[stage - 1] if stage else self.box_predictor
        return predictor(head(self.box_roi_pool(features, boxes, sides)))

    def compute_losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], sides: Sides, targets: Targets
    ) -> dict[str, Tensor]:
        class_losses, box_losses = [], []
        mask_loss: dict[str, Tensor] = {}
        for stage, weight in enumerate(LOSS_WEIGHTS):
            self.enter(stage)
            samples, matches, labels, deltas = self.select_training_samples(proposals, targets)
            scores, regression = self.run_stage(stage, features, samples, sides)
            class_loss, box_loss = roi_heads.fastrcnn_loss(scores, repeat_classes(regression, scores), labels, deltas)
            class_losses.append(weight * class_loss)
            box_losses.append(weight * box_loss)
            if stage == 0:
                mask_loss = self.compute_mask_loss(features, samples, sides, matches, labels, targets)
            proposals = self.refine(regression.detach(), samples, sides)
        return {"class": torch.stack(class_losses).sum(), "box": torch.stack(box_losses).sum(), **mask_loss}

    def refine(self, regression: Tensor, boxes: list[Tensor], sides: Sides) -> list[Tensor]:
        """Move the boxes as this stage predicts."""
        moved = self.box_coder.decode(regression, boxes)[:, 0].split([len(some) for some in boxes])
        return [clip_boxes_to_image(some, side) for some, side in zip(moved, sides)]

    def predict_boxes(
        self, features: dict[str, Tensor], proposals: list[Tensor], sides: Sides
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return boxes of the last stage, scores averaged over all, and labels."""
        boxes, probabilities = proposals, []
        last = len(OVERLAPS) - 1
        for stage in range(last + 1):
            self.enter(stage)
            scores, regression = self.run_stage(stage, features, boxes, sides)
            probabilities.append(scores.softmax(dim=-1))
            if stage < last:
                boxes = self.refine(regression, boxes, sides)
        # torchvision applies a softmax to what it gets, which undoes the logarithm
        averaged = torch.stack(probabilities).mean(dim=0).log()
        return self.postprocess_detections(averaged, repeat_classes(regression, scores), boxes, sides)


def repeat_classes(regression: Tensor, scores: Tensor) -> Tensor:
    """Give every class the same regression, [n, (1 + K) * 4]."""
    return regression.repeat(1, scores.shape[1])
