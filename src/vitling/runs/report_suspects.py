"""Suspects of `vitling doctor` for the report, with thumbnails."""

from __future__ import annotations

import shlex
from pathlib import Path

from vitling.data.dataset import Dataset
from vitling.data.store import build_store, measure_median_side
from vitling.errors import UserError
from vitling.evaluation.suspects import FOLDER, SUMMARY, Diagnosis, Suspect
from vitling.loading import convert, read_json
from vitling.report.data import Sprites, SuspectImage, Suspects
from vitling.report.sprites import SIDE, make_sprites
from vitling.runs.images import open_labels
from vitling.runs.thumbnails import draw_thumbnails
from vitling.settings.config import RunConfig
from vitling.training.processes import choose_device

SHOWN = 120
_BYTES = 400_000  # of their thumbnails


def collect_suspects(folder: Path, config: RunConfig) -> Suspects | None:
    """Read the findings of `vitling doctor`, if it has checked the run. Without the images, they have no thumbnails."""
    path = folder / FOLDER / SUMMARY
    if not path.exists():
        return None
    found: Diagnosis = convert(read_json(path), Diagnosis, path)
    shown = found.suspects[:SHOWN]
    sprites, tiles = _draw_thumbnails(shown, config)
    return Suspects(
        source=shlex.quote(found.source),
        images=found.images,
        expected_wrong=found.expected_wrong,
        agreement=found.agreement,
        is_weak=found.is_weak,
        method=found.method,
        total=len(found.suspects),
        csv=found.csv,
        shown=tuple(_describe(one, tiles.get((one.split, one.path), -1)) for one in shown),
        sprites=sprites,
    )


def _describe(one: Suspect, tile: int) -> SuspectImage:
    return SuspectImage(
        one.path, one.split, one.given, one.suggested, one.given_probability, one.suggested_probability, tile
    )


def _draw_thumbnails(rows: list[Suspect], config: RunConfig) -> tuple[Sprites, dict[tuple[str, str], int]]:
    """Draw the images; return the sheets and the tile of each image by split and path."""
    try:
        dataset, names = _select_images(rows, config)
        side = measure_median_side(dataset) or 2 * SIDE
        store = build_store(
            dataset,
            min(2 * SIDE, side),
            config.data,
            choose_device("cpu"),
            "host",
            allow_bad=True,
            split="train",
            use_cache=False,
        )
    except (UserError, OSError):
        return make_sprites((), 0)[0], {}
    sprites, drawn = make_sprites(draw_thumbnails([(store, i) for i in range(len(store))]), _BYTES)
    return sprites, {names[int(row)]: i for i, row in enumerate(store.dataset.rows) if i < drawn}


def _select_images(rows: list[Suspect], config: RunConfig) -> tuple[Dataset, dict[int, tuple[str, str]]]:
    """Return the images that are still there, and split and path of each by its row in the data."""
    splits, splits_of = open_labels(config)
    wanted = {(row.split, row.path) for row in rows}
    train = splits.train
    ids = [i for i, name in enumerate(zip(splits_of, train.keys)) if name in wanted]
    return train.take(ids), {int(train.rows[i]): (splits_of[i], train.keys[i]) for i in ids}
