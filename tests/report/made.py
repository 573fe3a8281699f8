"""Made reports, without a run behind them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from vitling.report.data import (
    AttentionImage,
    Bin,
    ClassScore,
    Curve,
    DenseClass,
    DenseReport,
    Errors,
    ImageMap,
    MatchedViews,
    Origin,
    Picture,
    Reliability,
    ReportData,
    RunReport,
    Score,
    Setting,
    Stage,
    SuspectImage,
    Suspects,
    TrainingImages,
)
from vitling.report.sprites import SIDE, encode_picture, make_sprites

HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028\"'"


def make_run(name: str = "runs/first", **changes: Any) -> RunReport:
    """Make a run with two stages, two loss terms and three classes, one of them with a hostile name."""
    score = Score("last epoch", "test", "top-1 accuracy", 0.9, 40, (0.77, 0.96), (("log loss", "0.3100"),))
    settings = (
        Setting("epochs", "20", "plan", "few images"),
        Setting("optim.weight-decay", "0.05", "plan", ""),
        Setting("seed", "0", "default", ""),
        Setting("size", "8", "explicit", "passed by you"),
    )
    epochs = tuple(range(1, 21))
    curves = [Curve("First stage", n, epochs, tuple(9 / e for e in epochs)) for n in ("loss", "global", "local", "lr")]
    curves += [Curve("Second stage", n, epochs, tuple(1 / e for e in epochs)) for n in ("loss", "classification")]
    curves += [Curve("Second stage", "val/top1", epochs[::2], tuple(1 - 1 / e for e in epochs[::2]))]
    names = ("cat", HOSTILE, "dog")
    classes = tuple(ClassScore(one, 10 + i, 0.5 + 0.1 * i, 0.8) for i, one in enumerate(names))
    run = RunReport(
        name=name,
        headline=score,
        scores=(score,),
        facts=(("Data", "100 training images"), ("Machine", "2 CPU cores")),
        warnings=("Something to know.",),
        stages=(Stage("First stage", settings), Stage("Second stage", settings)),
        curves=tuple(curves),
        origin=Origin("vitling train x", "abc123", (("Seed", "0"),), (("torch", "2.11"),), '{"seed": 0}'),
        class_names=names,
        errors=Errors("test", ((8, 1, 1), (0, 11, 0), (2, 0, 10)), classes),
    )
    return replace(run, **changes)


def make_images(n: int = 36, classes: int = 3, max_bytes: int = 7_000_000) -> ImageMap:
    """Make a map of n images whose names are hostile too; every ninth is wrong."""
    random = np.random.default_rng(0)
    tiles = (Image.fromarray(random.integers(0, 255, (7, 7, 3), np.uint8)).resize((SIDE, SIDE)) for _ in range(n + 12))
    sprites, drawn = make_sprites(tiles, max_bytes)
    labels = [i % classes for i in range(n)]
    points = tuple((float(x), float(y)) for x, y in random.normal(size=(n, 2)))
    near = TrainingImages(
        keys=tuple(f"train/{i}{HOSTILE}.png" for i in range(12)),
        labels=tuple(i % classes for i in range(12)),
        tiles=tuple(n + i if n + i < drawn else -1 for i in range(12)),
    )
    return ImageMap(
        split="test",
        total=n,
        keys=tuple(f"test/{i}{HOSTILE}.png" for i in range(n)),
        labels=tuple(labels),
        texts=(),
        predicted=tuple((c + (i % 9 == 0)) % classes for i, c in enumerate(labels)),
        confidence=tuple(0.5 + 0.4 * i / n for i in range(n)),
        pca=points,
        tsne=tuple((y, x) for x, y in points),
        tiles=tuple(i if i < drawn else -1 for i in range(n)),
        neighbours=tuple(tuple((i + k) % 12 for k in range(6)) for i in range(n)),
        training=near,
        sprites=sprites,
    )


def make_attention(rows: int = 4, columns: int = 5, heads: int = 3) -> AttentionImage:
    """Make an image whose patches attend to themselves in head 1, and to the first patch in the others."""
    maps = np.zeros((heads, rows * columns, rows * columns), np.uint8)
    maps[0] = 255 * np.eye(rows * columns)
    maps[1:, :, 0] = 255
    picture = encode_picture(Image.new("RGB", (50, 40), "orange"))
    size = (rows, columns)
    return AttentionImage(HOSTILE, picture, size, size, heads, base64.b64encode(maps.tobytes()).decode())


def make_matches(rows: int = 4, columns: int = 5) -> MatchedViews:
    """Make views of which the second lies a column to the right and is matched correctly, except for the last patch.

    A patch has the similarity 0.75 with its match, and -0.25 with the others.
    """
    patches = np.arange(rows * columns)
    nearest = np.where(patches % columns, patches - 1, patches)
    nearest[-1] = 0
    similarities = np.full((len(patches), len(patches)), -25, np.int8)
    similarities[patches, nearest] = 75
    same_place = [True if patch % columns else None for patch in patches[:-1]] + [False]
    picture = encode_picture(Image.new("RGB", (50, 50), "teal"))
    return MatchedViews(
        name=HOSTILE,
        pictures=(picture, picture),
        grid=(rows, columns),
        similarities=base64.b64encode(similarities.tobytes()).decode(),
        nearest=tuple(nearest.tolist()),
        same_place=tuple(same_place),
        shift=(-1 / columns, 1.0, 0.0, 1.0),
    )


def make_suspects(n: int = 3) -> Suspects:
    """Make suspects whose names are hostile; the last has no thumbnail."""
    sprites, _ = make_sprites((Image.new("RGB", (SIDE, SIDE), "teal") for _ in range(n - 1)), 100_000)
    shown = [
        SuspectImage(f"={i}{HOSTILE}.png", "train", "cat", HOSTILE, 0.02, 0.97, i if i < n - 1 else -1)
        for i in range(n)
    ]
    return Suspects(
        "images", 40, 3.2, 0.93, False, "10 folds", n + 2, "runs/first/doctor/suspects.csv", tuple(shown), sprites
    )


def make_full_run(n: int = 36, **changes: Any) -> RunReport:
    """Make a run with every section; the confusion matrix is that of the map."""
    images = make_images(n)
    run = make_run(**changes)
    confusion = np.zeros((3, 3), int)
    np.add.at(confusion, (list(images.labels), list(images.predicted)), 1)
    bins = (Bin(0.6, 0.8, 10), Bin(0.9, 0.95, 26))
    assert run.errors is not None
    errors = replace(
        run.errors,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        reliability=(Reliability("before calibration", 0.12, bins), Reliability("after calibration", 0.03, bins)),
    )
    views = Picture("First stage", encode_picture(Image.new("RGB", (400, 200), "navy")), "random views")
    return replace(
        run,
        images=images,
        errors=errors,
        suspects=make_suspects(),
        attention=(make_attention(),),
        matches=(make_matches(),),
        views=(views,),
    )


def make_dense_run(name: str, metric: str = "mIoU") -> RunReport:
    """Make a detector or segmentation network, whose scores have no intervals."""
    score = Score("last epoch", "val", metric, 0.4, 40)
    epochs = (1, 2, 3)
    key = {"mIoU": "val/mean_iou", "box AP": "val/box_ap"}[metric]
    curves = (Curve("", "loss", epochs, (3.0, 2.0, 1.5)), Curve("", key, epochs, (0.1, 0.3, 0.4)))
    worst = Picture("street.png", encode_picture(Image.new("RGB", (400, 200), "navy")), "annotated and predicted")
    classes = (DenseClass(HOSTILE, 12, (0.5,)), DenseClass("car", 0, (None,)))
    dense = DenseReport("val", (metric,), classes, (worst,))
    return make_run(name, headline=score, scores=(score,), curves=curves, class_names=(), errors=None, dense=dense)


def make_report(*runs: RunReport) -> ReportData:
    runs = runs or (make_run(),)
    return ReportData(runs[0].name, "2026-01-01 12:00", "0.1.0", runs)
