"""`embedded:digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, at hand without a download.

Every sixth digit is test (299), so that all writers are in both parts. In `embedded:digits?labels=100&seed=0` only 100
of the others have labels, ten of each digit, drawn by the seed; the rest is the unlabelled pool.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import interleave_classes
from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError

TEST_EVERY, CLASSES = 6, 10


def read(spec: str, config: DataConfig) -> Source:
    name, _, query = spec.partition("?")
    if name != "digits":
        raise UserError(f'No embedded data set is called "{name}". There is embedded:digits.')
    from sklearn.datasets import load_digits

    digits = load_digits()
    reader = ArrayReader(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    is_test = np.arange(len(digits.target)) % TEST_EVERY == TEST_EVERY - 1
    labelled = is_test | _labelled(query, digits.target, ~is_test)
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


def _labelled(query: str, classes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """bool [N]: which digits keep their labels, all of them unless the query says how many."""
    asked = dict(parse_qsl(query, keep_blank_values=True))
    if not asked:
        return among
    there = np.flatnonzero(among)
    if "labels" not in asked or not asked.keys() <= {"labels", "seed"} or not all(map(str.isdecimal, asked.values())):
        raise UserError(f"embedded:digits?{query}: it takes labels and seed, as in embedded:digits?labels=100&seed=0.")
    count, seed = int(asked["labels"]), int(asked.get("seed", "0"))
    if not CLASSES <= count <= len(there):
        raise UserError(f"embedded:digits?{query}: labels from {CLASSES}, one a class, to {len(there)}.")
    kept = np.zeros(len(classes), bool)
    kept[there[interleave_classes(classes[there], seed)[:count]]] = True
    return kept
