"""`embedded:digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, at hand without a download.

Every sixth digit is test (299), so that all writers are in both parts.
"""

from __future__ import annotations

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.parts import Part, Parts
from vitling.errors import UserError

TEST_EVERY = 6


def read(name: str, config: DataConfig) -> Parts:
    if name != "digits":
        raise UserError(f'No embedded data set is called "{name}". There is embedded:digits.')
    from sklearn.datasets import load_digits

    digits = load_digits()
    reader = ArrayReader(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    labels = [(str(label),) for label in digits.target]
    keys = [f"digits[{i}]" for i in range(len(labels))]
    everything = Part(keys, reader, np.arange(len(keys)), labels)
    is_test = np.arange(len(keys)) % TEST_EVERY == TEST_EVERY - 1
    return Parts(
        "digits",
        {
            "train": everything.take(np.flatnonzero(~is_test).tolist()),
            "test": everything.take(np.flatnonzero(is_test).tolist()),
        },
        class_order=tuple(str(digit) for digit in range(10)),
    )
