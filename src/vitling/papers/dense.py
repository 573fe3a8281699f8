"""Detection and segmentation: tables of DRLoc and EsViT on COCO and ADE20K, and our own study on CamVid.

The backbone is pre-trained with or without DRLoc; the dense stage is the same for both, without DRLoc. Swin's settings
are used throughout, as the DRLoc paper does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitling.data.annotations.config import AnnotationConfig
from vitling.methods import METHODS
from vitling.methods.method import SIZE
from vitling.papers import esvit_recipes
from vitling.papers.dense_task import BOXES, MASKS, SEGMENTS, detect_coco, make_dense_runs, segment_ade20k
from vitling.papers.drloc_recipes import scratch
from vitling.papers.stages import pretrain_config
from vitling.papers.study import Study, StudyRun
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.settings.dense import SegmentConfig
from vitling.training.config import OptimConfig

SWIN = "swin_tiny_patch4_window7_224"
UNIT = "the figure that the name ends with, on val, last epoch, %"
CAMVID = "camvid-masks"
CAMVID_CLASSES = "sky,building,pole,road,pavement,tree,sign,fence,car,pedestrian,bicyclist"  # 11: unlabelled
CAMVID_NETWORKS = {"pvtv2-b0": "pvt_v2_b0", "swin-t": SWIN}
CAMVID_SIZE, CAMVID_EPOCHS = 480, 100  # px; about two minutes on an H200 with PVTv2-B0
FLOWERS_EPOCHS, IDMM_EPOCHS, ESVIT_EPOCHS = 200, 800, 300  # of pre-training
FRAMES_BATCH = 64  # of IDMM: six steps per epoch of 367 frames


def studies() -> tuple[Study, ...]:
    """List the studies of detection and segmentation."""
    drloc, supplement, new = "DRLoc,", "DRLoc, supplement,", Study.from_runs
    small, large = "imagenet100", "imagenet1k"
    return (
        new("drloc-t5", "COCO after ImageNet-100, 3x", f"{drloc} Table 5", _detect(small, "3x"), UNIT),
        new("drloc-t6", "ADE20K after ImageNet-100", f"{drloc} Table 6", _segment(small), UNIT),
        new("drloc-supp-t10", "COCO after ImageNet-1K, 1x", f"{supplement} Table 10", _detect(large, "1x"), UNIT),
        new("drloc-supp-t11", "COCO after ImageNet-100, 1x", f"{supplement} Table 11", _detect(small, "1x"), UNIT),
        new("drloc-supp-t12", "ADE20K after ImageNet-1K", f"{supplement} Table 12", _segment(large), UNIT),
        new("drloc-supp-t13", "ADE20K after ImageNet-100", f"{supplement} Table 13", _segment(small), UNIT),
        new("esvit-t2", "COCO with Swin-T, 3x", "EsViT, Table 2", _detect_esvit(), UNIT),
        new("camvid-dense", "CamVid after little pre-training", "ours", _camvid(), "mIoU on test, last epoch, %"),
    )


def _detect(data: str, preset: str) -> Iterator[StudyRun]:
    for model in ("mask-rcnn", "cascade"):
        base, dense = f"{model}-swin-t", detect_coco(SWIN, preset, model)
        for ending, aux in (("", False), ("-drloc", True)):
            before = scratch(SWIN, aux=aux, epochs=300)
            against = base if aux else ""
            about = {"data": "coco", "pretrain_data": data}
            yield from make_dense_runs(f"{base}{ending}", dense, (*BOXES, *MASKS), before, against, **about)


def _segment(data: str) -> Iterator[StudyRun]:
    dense = segment_ade20k(SWIN)
    for name, aux in (("swin-t", False), ("swin-t-drloc", True)):
        before, against = scratch(SWIN, aux=aux, epochs=300), "swin-t" if aux else ""
        yield from make_dense_runs(name, dense, SEGMENTS, before, against, data="ade20k", pretrain_data=data)


def _detect_esvit() -> Iterator[StudyRun]:
    dense, figures = detect_coco(SWIN, "3x"), (*BOXES, *MASKS)
    yield from make_dense_runs("swin-t-supervised", dense, figures, data="coco", weights=SWIN)
    for name, regions in (("views", False), ("both", True)):
        before = pretrain_config(esvit_recipes.table_1("swin-t", regions), method="esvit")
        about = {"data": "coco", "pretrain_data": "imagenet1k"}
        yield from make_dense_runs(f"swin-t-{name}", dense, figures, before, "swin-t-supervised", **about)


def _camvid() -> Iterator[StudyRun]:
    """Segment CamVid from random weights, and after pre-training on Flowers-102 with labels or on its own frames."""
    for net, backbone in CAMVID_NETWORKS.items():
        dense, base = segment_camvid(backbone), f"{net}-random"
        befores: dict[str, tuple[str, PretrainConfig | TrainConfig]] = {
            "flowers102": ("flowers102", _label_flowers(backbone, aux=False)),
            "flowers102-drloc": ("flowers102", _label_flowers(backbone, aux=True)),
            "idmm": ("camvid", _idmm_on_frames(backbone)),
            "esvit": ("camvid", _esvit_on_frames(backbone)),
        }
        yield from _drop_ending(make_dense_runs(base, dense, ("mean_iou",), data=CAMVID))
        for name, (source, before) in befores.items():
            runs = make_dense_runs(f"{net}-{name}", dense, ("mean_iou",), before, data=CAMVID, pretrain_data=source)
            against = f"{net}-flowers102" if name == "flowers102-drloc" else base
            yield from (replace(run, baseline=against) for run in _drop_ending(runs))


def _drop_ending(runs: Iterator[StudyRun]) -> Iterator[StudyRun]:
    return (replace(run, name=run.name.removesuffix("-mean-iou")) for run in runs)


def segment_camvid(backbone: str) -> SegmentConfig:
    """Return our settings for CamVid: a shortened schedule, the same from every start."""
    return SegmentConfig(
        backbone=backbone,
        preset="small",
        size=CAMVID_SIZE,
        epochs=CAMVID_EPOCHS,
        batch=16,
        freeze=0,
        drop_path=0.1,
        eval_every=CAMVID_EPOCHS // 5,
        annotations=AnnotationConfig(ignore_index=11, classes=CAMVID_CLASSES),
        optim=OptimConfig(lr=2e-4, weight_decay=0.01, warmup_epochs=5.0),
    )


def _label_flowers(backbone: str, aux: bool) -> TrainConfig:
    return scratch(backbone, aux=aux, epochs=FLOWERS_EPOCHS, batch=256)


def _idmm_on_frames(backbone: str) -> PretrainConfig:
    recipe = METHODS["idmm"].recipe(backbone, "paper", IDMM_EPOCHS, SIZE)
    optim = replace(recipe.optim, lr=recipe.lr_for(FRAMES_BATCH))
    return pretrain_config(replace(recipe, batch=FRAMES_BATCH, optim=optim))


def _esvit_on_frames(backbone: str) -> PretrainConfig:
    """Leave open what EsViT's rule for few images decides."""
    return PretrainConfig(
        method="esvit", preset="paper", backbone=backbone, epochs=ESVIT_EPOCHS, size=224, on_collapse="warn"
    )
