"""Read a MATLAB file from standard input and write its arrays to standard output, pickled; see `lists.load_mat`."""

from __future__ import annotations

import io
import math
import pickle
import sys

import numpy as np


def main(limit: int) -> None:
    """Refuse arrays of more than `limit` bytes in all."""
    from scipy.io import loadmat, whosmat

    content = io.BytesIO(sys.stdin.buffer.read())
    size = sum(8 * math.prod(shape) for _, shape, _ in whosmat(content))  # at most 8 bytes each
    if size > limit:
        raise ValueError(f"unpacks to {size / 1e9:.1f} GB, so it is not read")
    arrays = {key: np.asarray(value) for key, value in loadmat(content, squeeze_me=True).items()}
    pickle.dump(arrays, sys.stdout.buffer)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except Exception as error:
        sys.exit(str(error) or type(error).__name__)
