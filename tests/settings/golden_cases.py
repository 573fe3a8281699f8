"""Commands whose resolved settings are compared with a golden file: command, flags and what is known of the images."""

from __future__ import annotations

from itertools import product
from typing import Any

PHOTOS = {"images": 2040, "classes": 102, "test": True}
FACTS = {
    "photos": PHOTOS,
    "few": {"images": 60, "classes": 3},
    "500": {"images": 500, "classes": 10},
    "3000-notest": {"images": 3000, "classes": 20},
    "10k": {"images": 10_000, "classes": 100, "test": True},
    "50k": {"images": 50_000, "classes": 100, "test": True},
    "150k": {"images": 150_000, "classes": 1000},
    "pool": {"images": 300, "classes": 5, "pool": 30_000},
    "unlabelled": {"images": 2040},
    "own-val": {"images": 6000, "classes": 30, "own_val": 600, "test": True},
    "tiny": {"images": 1498, "classes": 10, "test": True, "longer": 8},
    "cifar": {"images": 10_000, "classes": 100, "test": True, "longer": 32},
    "150px": {"images": 2040, "classes": 10, "longer": 150},
    "256px": {"images": 2040, "classes": 102, "test": True, "longer": 256},
    "multi": {"images": 2500, "classes": 20, "multi": True, "test": True},
    "photos-cpu": {**PHOTOS, "gpu": False},
    "tiny-cpu": {"images": 1498, "classes": 10, "test": True, "longer": 8, "gpu": False},
    "few-cpu": {"images": 60, "classes": 3, "gpu": False},
}
METHODS = ("idmm", "supervised", "simclr", "supcon", "moco-v2", "moco-v3", "byol", "dino", "esvit", "densecl")
BACKBONES = ("deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "t2t_vit_7", "pvt_v2_b0", "vit_micro_patch4_32")


TRAIN = """
--minutes 8
--minutes 2
--minutes 30 --method idmm
--epochs 50
--pretrain-epochs 100
--batch 64
--batch 512 --method simclr
--size 96
--size 288
--val none
--val 0.2
--optim.lr 1e-3
--pretrain-optim.lr 1e-3
--optim.name sgd --method supervised
--pretrain-optim.name sgd --method simclr
--preset paper
--pretrain-preset paper --method simclr
--aux drloc
--aux drloc --backbone swin_tiny_patch4_window7_224
--aux drloc --drloc.weight 0.3
--final-size 448
--test-size 224
--views.flip 0
--views.policy supervised
--views.mixup 0
--pretrain-views.flip 0
--objective.drop-path 0.2
--objective.drop-path 0.1
--data.channels 1
--data.channels 4
--seed 3
--split-seed 7
--store host
--store-size 200
--idmm.smoothing 0
--idmm.no-cutmix
--method esvit --esvit.match argmax
--method esvit --minutes 8
--method dino --dino.prototypes 512
--eval-every 5
--optim.accumulate 2
--optim.ema 0.999
--loop.compile off
--on-collapse warn
--method supervised --epochs 100 --batch 1024
--method supervised --minutes 3
--no-test
--data.folds 5
--pretrain-size 128
--epochs 200
--optim.weight-decay 0.05
"""
PRETRAIN = """
--epochs 100
--epochs 20
--epochs 800
--batch 64
--size 224
--size 48
--minutes 5
--preset released
--optim.lr 1e-3
--optim.warmup-epochs 3
--idmm.smoothing 0
--idmm.smoothing 0.1
--idmm.no-multi-crop
--drop-path 0
--drop-path 0.1 --method esvit --backbone swin_small_patch4_window7_224
--method esvit --backbone swin_small_patch4_window7_224
--method esvit --backbone resnet50
--method simclr --preset paper
--method simclr --optim.name sgd
--method moco-v2 --optim.name sgd --optim.lr 0.03
--method esvit --esvit.match argmax
--method esvit --esvit.match place
--method esvit --esvit.region-weight 0
--method esvit --esvit.view-weight 0
--method esvit --esvit.region-weight 0 --esvit.view-weight 0.5
--method esvit --batch 128
--method esvit --epochs 100
--method esvit --minutes 10
--method esvit --views-budget 1e6
--method esvit --views.rotate 20
--method esvit --esvit.prototypes 4096
--method esvit --esvit.momentum 0.99
--method esvit --epochs 800
--method esvit --size 224
--method esvit --esvit.region-from 50
--method dino --dino.local-crops 2
--method dino --optim.final-weight-decay 0.4
--views.flip 0
--views.no-colour
--views-budget 5e6
--aux drloc
--val 0.1
--store-size 128
--data.channels 1
--watch-every 5
--optim.accumulate 2
--optim.schedule-epochs 1000
--optim.clip 1
--method byol --byol.regions mse
--method densecl --densecl.dense-weight 0.3
--method moco-v3 --batch 512
--method supcon --preset adamw
--method supcon --preset paper --epochs 50
"""
ERRORS = """
train photos --batch 0
train photos --method supervised --pretrain-epochs 5
train photos --minutes 0
train unlabelled --method supervised
train photos --method idmm --esvit.hidden 64
train photos --drloc.weight 0.3
train multi --method supcon
train photos --optim.schedule-epochs 3
pretrain photos --method simclr --preset released
pretrain photos --method simclr --preset adamw --optim.name sgd
pretrain photos --method simclr --batch 1
pretrain photos --method esvit --esvit.match place --views.rotate 10
pretrain photos --method esvit --esvit.region-from 5000
pretrain photos --views-budget 1e6 --epochs 5
pretrain photos --optim.lr -1
pretrain unlabelled --method supcon
pretrain photos --esvit.hidden 64
finetune photos --backbone pvt_v2_b0 --views.crop-fraction 0
train photos --test-size 0
"""
# the flags of the first start > those of the second, which has --resume or --continue-from
RESUMED = """
--method idmm >
--method idmm > --batch 256
--method idmm > --batch 64
--minutes 8 >
--minutes 8 > --epochs 7
--minutes 8 > --minutes 9
--seed 3 > --seed 3
--seed 3 > --seed 0
--method esvit --esvit.match argmax > --esvit.match place
 > --allow-bad
--optim.lr 1e-3 > --optim.lr 1e-3
--optim.lr 1e-3 > --optim.lr 2e-3
--val 0.2 > --val none
"""
CONTINUED = """
 >
--method dino > --method esvit
--method esvit --esvit.region-weight 0 > --method esvit
--method esvit > --method esvit --epochs 900
--method simclr --preset paper > --method simclr
--method dino --dino.prototypes 512 > --method esvit
--method dino > --method esvit --batch 64
--method idmm --batch 128 > --epochs 900
"""


def split(block: str) -> list[list[str]]:
    return [line.split() for line in block.strip().splitlines()]


def split_pairs(block: str) -> list[tuple[list[str], list[str]]]:
    halves = (line.partition(">") for line in block.strip("\n").splitlines())
    return [(first.split(), second.split()) for first, _, second in halves]


def cases() -> dict[str, dict[str, Any]]:
    """Return all cases by name."""
    found: dict[str, dict[str, Any]] = {}

    def add(verb: str, facts: str, *flags: str, **more: Any) -> None:
        name = " ".join([verb, facts, *flags, *(f"{k}={v}" for k, v in more.items())])
        assert name not in found, name
        found[name] = {"verb": verb, "facts": facts, "flags": list(flags), **more}

    for facts in FACTS:
        add("train", facts)
        add("pretrain", facts)
    for method, facts in product(METHODS, ("photos", "few", "150k", "photos-cpu")):
        add("pretrain", facts, "--method", method)
    for method, backbone in product(METHODS, BACKBONES):
        add("pretrain", "photos", "--method", method, "--backbone", backbone)
    for method, facts in product(METHODS, ("photos", "10k", "cifar")):
        add("train", facts, "--method", method)
    for backbone, facts in product(BACKBONES, ("photos", "3000-notest", "photos-cpu")):
        add("train", facts, "--backbone", backbone)
        add("train", facts, "--backbone", backbone, "--method", "supervised")
    for backbone, flags in product(BACKBONES, ([], ["--preset", "released"], ["--size", "448"], ["--epochs", "800"])):
        add("finetune", "photos", "--backbone", backbone, *flags)
    for facts in FACTS:
        if facts != "unlabelled":
            add("finetune", facts, start="pvt_v2_b0", start_size=224)
    add("finetune", "photos", start="pvt_v2_b0", start_size=112)
    add("finetune", "photos", start="pvt_v2_b0", start_size=448)
    add("finetune", "cifar", start="vit_micro_patch4_32", start_size=64)
    add("finetune", "photos", "--size", "288", start="pvt_v2_b0", start_size=224)
    add("finetune", "photos", "--views.flip", "0", start="pvt_v2_b0", start_size=224)
    add("finetune", "photos", "--views.policy", "idmm-finetune", start="pvt_v2_b0", start_size=224)
    add("finetune", "photos", "--minutes", "5", start="pvt_v2_b0", start_size=224)
    add("finetune", "photos", "--optim.lr", "1e-4", "--batch", "64", start="pvt_v2_b0", start_size=224)
    for flags in split(TRAIN):
        add("train", "photos", *flags)
    for flags in split("--minutes 8\n--minutes 1\n--pretrain-epochs 10 --epochs 10\n--from START"):
        add("train", "photos-cpu", *flags)
        add("train", "unlabelled", *flags)
    add("train", "photos", "--from", "START")
    add("train", "photos", "--from", "START", "--method", "idmm")
    for flags in split(PRETRAIN):
        add("pretrain", "photos", *flags)
    add("pretrain", "150k", "--method", "esvit", "--esvit.match", "place")
    add("pretrain", "150k", "--method", "esvit", "--minutes", "60")
    for verb, facts, *flags in split(ERRORS):
        add(verb, facts, *flags)
    for first, again in split_pairs(RESUMED):
        for verb in ("train", "pretrain"):
            add(verb, "photos", *first, again=tuple(again))
    for first, again in split_pairs(CONTINUED):
        add("pretrain", "photos", *first, after=tuple(again))
    return found
