"""ImageNet and its parts, DomainNet, and what EsViT pre-trains on (its Tables 3 and 13)."""

from __future__ import annotations

from vitling.papers.datasets.entry import DRLOC, PRETRAINING, Entry, Layout

IMAGENET_TERMS = "non-commercial research and education, by ImageNet's terms"
DOMAINS = {  # DRLoc, Table 1 (a): images of train and test
    "clipart": ("ClipArt", 33_525, 14_604),
    "infograph": ("Infograph", 36_023, 15_582),
    "painting": ("Painting", 50_416, 21_850),
    "quickdraw": ("Quickdraw", 120_750, 51_750),
    "real": ("Real", 120_906, 52_041),
    "sketch": ("Sketch", 48_212, 20_916),
}


def _domain(word: str, title: str, train: int, test: int) -> Entry:
    return Entry(
        f"domainnet-{word}",
        f"DomainNet, {title}",
        *(345, train, test),
        Layout("lists.domainnet", (f"{word}_train.txt",), ("domainnet", "DomainNet", "splits")),
        licence="fair use: copyrighted material, non-commercial research only",
        where="Boston University, M2SDA: the archive of the domain (the cleaned version) and its two lists",
        cite="Peng et al., ICCV 2019",
        tables=(DRLOC,),
    )


LARGE = (
    Entry(
        "imagenet1k",
        "ImageNet-1K",
        *(1_000, 1_281_167, 50_000),
        Layout("imagenet.imagenet1k", ("val", "ILSVRC/Data/CLS-LOC/val"), ("imagenet", "ILSVRC2012")),
        licence=IMAGENET_TERMS,
        where="image-net.org, ILSVRC2012; or the challenge on Kaggle",
        cite="Russakovsky et al., IJCV 2015",
        tables=(PRETRAINING,),
        notes=("Its 50,000 validation images are test here, as in all three papers.",),
    ),
    Entry(
        "imagenet100",
        "ImageNet-100",
        *(100, 126_689, 5_000),
        Layout("imagenet.imagenet100", ("val", "ILSVRC/Data/CLS-LOC/val"), ("imagenet", "ILSVRC2012")),
        licence=IMAGENET_TERMS,
        where="image-net.org, ILSVRC2012; the 100 classes are listed in scripts/imagenet-100.lst of VTs-Drloc",
        cite="Tian et al., ECCV 2020",
        tables=(DRLOC,),
        notes=("DIR is ImageNet-1K and the list lies in it, or ?list=FILE names it; or DIR has these classes alone.",),
    ),
    *(_domain(word, *about) for word, about in DOMAINS.items()),
    Entry(
        "imagenet22k",
        "ImageNet-22K",
        *(21_841, 14_197_122, 0),
        Layout("imagenet.imagenet22k", ("n01440764", "train"), ("imagenet22k", "imagenet21k", "fall11_whole")),
        licence=IMAGENET_TERMS,
        where="image-net.org: a folder a class",
        cite="Deng et al., CVPR 2009",
        tables=(PRETRAINING,),
        notes=("EsViT's Table 13 rounds to 14.2 million images.",),
    ),
    Entry(
        "webvision",
        "WebVision 1.0",
        *(1_000, 2_439_574, 50_000),
        Layout("lists.webvision", ("info/train_filelist_google.txt",), ("webvision", "WebVision")),
        licence="non-commercial research",
        where="ETH Zürich, WebVision 2017: info/, google/, flickr/, val_images_256/",
        cite="Li et al., 2017",
        tables=(PRETRAINING,),
        notes=(
            "Labels are search words, not checked by a person.",
            "The number of training images was not checked on a copy.",
        ),
    ),
    Entry(
        "openimages",
        "Open Images V4",
        *(0, 9_011_219, 0),
        Layout("imagenet.openimages", ("train",), ("openimages", "open-images-v4")),
        licence="images listed as CC BY 2.0, annotations CC BY 4.0",
        where="Open Images, version 4: train/ with its images",
        cite="Kuznetsova et al., IJCV 2020",
        tables=(PRETRAINING,),
        notes=("EsViT's Table 13 prints 7.5 million images.", "Read without labels: to pre-train on."),
    ),
)
