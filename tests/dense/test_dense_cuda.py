"""Dense tasks on a CUDA GPU: targets equal the CPU's, and steps in bf16 are finite."""

from __future__ import annotations

import pytest
import torch

from tests.dense.shapes import Scenes, draw_view, small_backbone
from vitling.dense.detection import DetectionObjective
from vitling.dense.inference import WholeView, detect_images, segment_images
from vitling.dense.segmentation import SegmentationObjective
from vitling.dense.targets import InstanceTargets, MaskTargets, squash_masks
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.views import Views
from vitling.views.policies import make_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_views_and_targets_equal_the_cpus():
    scenes, found = Scenes(6), {}
    masks = torch.from_numpy(squash_masks(lambda i: scenes.masks[i], 6, 96))
    for device in ("cpu", "cuda"):
        views, ids = draw_view(make_plan("large-scale-jitter", 96), scenes.make_store(96, device))
        instances = InstanceTargets(scenes.instances, device).view(ids.to(device), views.boxes, 96)
        semantic = MaskTargets(masks.to(device)).view(ids.to(device), views.boxes, 96)
        from_host = MaskTargets(masks).view(ids.to(device), views.boxes, 96)
        assert torch.equal(semantic, from_host)
        found[device] = views, instances, semantic
    (views, instances, semantic), (ours, ours_instances, ours_semantic) = found["cpu"], found["cuda"]
    assert (ours.pixels.cpu() - views.pixels).abs().max() < 0.1  # half precision
    assert (ours_semantic.cpu() == semantic).float().mean() > 0.999
    for some, others in zip(instances, ours_instances):
        assert torch.equal(some["labels"], others["labels"].cpu())
        assert torch.allclose(some["boxes"], others["boxes"].cpu(), atol=1e-2)


@pytest.mark.parametrize("kind", ["segment", "mask-rcnn", "cascade"])
def test_steps_in_bf16_have_finite_gradients(kind):
    scenes = Scenes(4)
    store = scenes.make_store(96, "cuda")
    if kind == "segment":
        masks = torch.from_numpy(squash_masks(lambda i: scenes.masks[i], 4, 96)).cuda()
        model = SegmentationObjective(small_backbone(), make_plan("segmentation", 64), MaskTargets(masks), 4, width=32)
    else:
        targets = InstanceTargets(scenes.instances, "cuda")
        plan = make_plan("detection", 128)
        model = DetectionObjective(small_backbone(), plan, targets, 3, kind, width=32, copy_paste=0.5)
    model.cuda().train()
    views, ids = draw_view(model.plan, store)
    views = Views(views.pixels.bfloat16(), views.count, boxes=views.boxes)
    with torch.autocast("cuda", torch.bfloat16):
        terms = model([views], Batch(ids.cuda(), None, key=torch.tensor(3, device="cuda")), Progress(0, 1, 1))
    assert all(value.dtype == torch.float32 for value in terms.values())
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    predict = segment_images if kind == "segment" else detect_images
    assert len(list(predict(model, store, WholeView(64, 128)))) == 4
