"""Reader for `embedded:digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, which need no download.

Every sixth digit is test (299), so that all writers are in both splits. With `embedded:digits?labels=100&seed=0` only
100 of the others, ten of each digit, have labels (drawn with the seed); the rest is the unlabelled pool.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import interleave_classes
from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.loading import MAX_DIGITS

TEST_EVERY, CLASSES = 6, 10


def read(spec: str, config: DataConfig) -> Source:
    name, _, query = spec.partition("?")
    if name != "digits":
        raise UserError(f'There is no embedded dataset "{name}". Use embedded:digits.')
    from sklearn.datasets import load_digits

    digits = load_digits()
    reader = ArrayReader(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    is_test = np.arange(len(digits.target)) % TEST_EVERY == TEST_EVERY - 1
    labelled = is_test | _draw_labelled(query, digits.target, ~is_test)
    labels = [(str(label),) if known else () for label, known in zip(digits.target, labelled)]
    everything = SourceSplit([f"digits[{i}]" for i in range(len(labels))], reader, np.arange(len(labels)), labels)
    return Source(
        "digits",
        {
            "train": everything.take(np.flatnonzero(~is_test).tolist()),
            "test": everything.take(np.flatnonzero(is_test).tolist()),
        },
        class_order=tuple(str(digit) for digit in range(CLASSES)),
    )


def _draw_labelled(query: str, classes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return bool [N]: the digits that keep their labels, all of `among` unless the query limits them."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options:
        return among
    ids = np.flatnonzero(among)
    if (
        "labels" not in options
        or not options.keys() <= {"labels", "seed"}
        or not all(value.isdecimal() and len(value) <= MAX_DIGITS for value in options.values())
    ):
        raise UserError(f"embedded:digits?{query}: use labels and seed, as in embedded:digits?labels=100&seed=0.")
    count, seed = int(options["labels"]), int(options.get("seed", "0"))
    if not CLASSES <= count <= len(ids):
        raise UserError(f"embedded:digits?{query}: use labels from {CLASSES} (one per class) to {len(ids)}.")
    kept = np.zeros(len(classes), bool)
    kept[ids[interleave_classes(classes[ids], seed)[:count]]] = True
    return kept
