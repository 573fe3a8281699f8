"""Read a MATLAB file from standard input and write its arrays to standard output, pickled; see `lists.load_mat`."""

from __future__ import annotations

import io
import math
import pickle
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

SPARE = 1 << 26  # bytes for everything but the arrays


def main(limit: int) -> None:
    """Refuse arrays of more than `limit` bytes in all, also in structs and cells, which do not state their size."""
    from scipy.io import loadmat, whosmat

    content = io.BytesIO(sys.stdin.buffer.read())
    limit_memory(2 * limit + SPARE)  # the arrays, and again as bytes
    try:
        size = sum(8 * math.prod(shape) for _, shape, _ in whosmat(content))  # at most 8 bytes each
        if size > limit:
            raise ValueError(f"unpacks to {size / 1e9:.1f} GB, so it is not read")
        arrays = {key: np.asarray(value) for key, value in loadmat(content, squeeze_me=True).items()}
        pickle.dump(arrays, sys.stdout.buffer)
    except MemoryError:
        raise ValueError(f"unpacks to more than {limit / 1e9:.1f} GB, so it is not read") from None


def limit_memory(more: int) -> None:
    """Limit the additional memory of this process, if the system can and has no lower limit already."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except Exception as error:
        sys.exit(str(error) or type(error).__name__)
