"""Everything that the report shows, as plain data. Collected by `vitling.runs.report`, rendered by `page`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Split = str  # train, val or test


@dataclass(frozen=True)
class Score:
    """A metric of one set of weights on one split."""

    weights: str  # "last epoch", "best epoch on val"
    split: Split
    metric: str  # as displayed: "accuracy", "mAP"
    value: float | None  # 0 to 1; None: undefined, such as the mAP of classes without images
    images: int
    interval: tuple[float, float] | None = None  # 95 % confidence interval
    others: tuple[tuple[str, str], ...] = ()  # further metrics, formatted


@dataclass(frozen=True)
class Setting:
    flag: str
    value: str
    origin: str  # default, method, plan, pace or explicit
    reason: str


@dataclass(frozen=True)
class Stage:
    """A stage of a run, with its settings."""

    title: str  # "First stage"; empty if it is the only one
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Curve:
    """A metric over the epochs of a stage."""

    stage: str
    name: str  # as in metrics.jsonl: loss, lr, val/top1
    epochs: tuple[float, ...]
    values: tuple[float, ...]


class RunCurves(NamedTuple):
    """The curves of a run that may still be training."""

    name: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Origin:
    """Command, versions and seeds to reproduce the run."""

    command: str
    commit: str | None
    seeds: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    config: str  # config.json
    test_openings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sprites:
    """Thumbnails in sheets, row by row. Tile t is number t % per_sheet of sheet t // per_sheet."""

    sheets: tuple[str, ...]  # data URIs
    side: int  # px
    columns: int
    per_sheet: int


@dataclass(frozen=True)
class TrainingImages:
    """Training images that are near to images of the map."""

    keys: tuple[str, ...]
    labels: tuple[int, ...]  # -1: none
    tiles: tuple[int, ...]  # -1: no thumbnail


@dataclass(frozen=True)
class ImageMap:
    """Images of one split as points; row i of each column belongs to the same image."""

    split: Split
    total: int  # images of the split; the map may have fewer
    keys: tuple[str, ...]
    labels: tuple[int, ...]  # -1: none, or several
    texts: tuple[str, ...]  # labels in words, for several per image; empty otherwise
    predicted: tuple[int, ...]  # empty without a classifier
    confidence: tuple[float, ...]  # probability of the prediction, calibrated
    pca: tuple[tuple[float, float], ...]
    tsne: tuple[tuple[float, float], ...]  # empty if it was left out
    tiles: tuple[int, ...]  # -1: no thumbnail
    neighbours: tuple[tuple[int, ...], ...]  # rows of `training`, nearest first
    training: TrainingImages
    sprites: Sprites

    @property
    def mistakes(self) -> tuple[int, ...]:
        return list_mistakes(self.labels, self.predicted, self.confidence)


def list_mistakes(labels: Sequence[int], predicted: Sequence[int], confidence: Sequence[float]) -> tuple[int, ...]:
    """List the rows that are classified wrongly, the most confident first."""
    wrong = [i for i, (label, given) in enumerate(zip(labels, predicted)) if label not in (-1, given)]
    return tuple(sorted(wrong, key=lambda i: -confidence[i]))


@dataclass(frozen=True)
class ClassScore:
    name: str
    images: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Bin:
    """Images whose confidence lies in one interval of the reliability diagram."""

    confidence: float  # mean
    accuracy: float
    images: int


@dataclass(frozen=True)
class Reliability:
    name: str  # "before calibration", "after calibration"
    error: float  # expected calibration error
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Errors:
    """Mistakes of the classifier on one split."""

    split: Split
    confusion: tuple[tuple[int, ...], ...]  # [true class][predicted class]; empty for several labels per image
    classes: tuple[ClassScore, ...]
    reliability: tuple[Reliability, ...] = ()


@dataclass(frozen=True)
class SuspectImage:
    """An image whose label is probably wrong."""

    path: str
    split: Split
    given: str
    suggested: str
    given_probability: float
    suggested_probability: float
    tile: int  # -1: no thumbnail


@dataclass(frozen=True)
class Suspects:
    """Findings of `vitling doctor`."""

    source: str  # the data
    images: int
    expected_wrong: float
    agreement: float  # fraction of the labels that are the most probable class
    is_weak: bool  # too little agreement to tell wrong labels from difficult images
    method: str
    total: int
    csv: str
    shown: tuple[SuspectImage, ...]  # the most suspicious first
    sprites: Sprites


@dataclass(frozen=True)
class AttentionImage:
    """An image and the attention of its patches in the last block."""

    name: str
    picture: str  # data URI
    grid: tuple[int, int]  # rows and columns of the patches
    keys: tuple[int, int]  # rows and columns of what they attend to
    heads: int
    weights: str  # base64 of uint8 [heads, patches, keys], each map scaled to its maximum


@dataclass(frozen=True)
class MatchedViews:
    """Two training views of an image, and how similar their regions are. A region is row * columns + column."""

    name: str
    pictures: tuple[str, str]  # data URIs
    grid: tuple[int, int]  # rows and columns of the regions of each view
    similarities: str  # base64 of int8 [first, second]: cosines in hundredths
    nearest: tuple[int, ...]  # the most similar region of the second view, for each of the first
    same_place: tuple[bool | None, ...] = ()  # whether it shows the same place; None: no region of the second view does
    by_chance: float = 0.0  # how many random regions would show the same place
    shift: tuple[float, ...] = ()  # (a, b, c, d): x, y of the first view is a + b x, c + d y of the second, all 0 to 1


@dataclass(frozen=True)
class Picture:
    title: str
    source: str  # data URI
    alt: str


@dataclass(frozen=True)
class DenseClass:
    name: str
    count: int  # annotated pixels or instances
    values: tuple[float | None, ...]  # of the columns, 0 to 1


@dataclass(frozen=True)
class DenseReport:
    """The results of a detector or segmentation network on one split."""

    split: Split
    columns: tuple[str, ...]
    classes: tuple[DenseClass, ...]
    worst: tuple[Picture, ...]


@dataclass(frozen=True)
class RunReport:
    name: str
    headline: Score | None  # None: no labelled images were held out
    scores: tuple[Score, ...]
    facts: tuple[tuple[str, str], ...]  # data, network, time, machine
    warnings: tuple[str, ...]
    stages: tuple[Stage, ...]
    curves: tuple[Curve, ...]
    origin: Origin
    class_names: tuple[str, ...] = ()
    images: ImageMap | None = None
    errors: Errors | None = None
    suspects: Suspects | None = None
    attention: tuple[AttentionImage, ...] = ()
    matches: tuple[MatchedViews, ...] = ()
    views: tuple[Picture, ...] = ()
    dense: DenseReport | None = None


@dataclass(frozen=True)
class ReportData:
    title: str
    made: str  # date and time
    version: str  # of vitling
    runs: tuple[RunReport, ...]
