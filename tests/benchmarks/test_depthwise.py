"""Candidates for PVTv2's depthwise convolution: equal to torch's in float64, outputs and gradients.

Without a GPU the Triton kernels run in its interpreter, in a process of their own, because it is chosen at import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

CHECK = """
import torch
from depthwise import CANDIDATES, _run, convolve

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for shape in [(2, 5, 7, 20), (1, 4, 4, 70), (3, 3, 2, 8), (9, 1, 1, 3), (2, 30, 33, 5)]:  # [B, h, w, C]
    channels = shape[-1]
    inputs = [torch.randn(size, device=device) for size in (shape, (channels, 1, 3, 3), channels)]
    grad = torch.randn(shape, device=device)
    expected = _run(convolve, [t.double() for t in inputs], grad.double())
    for name, candidate in CANDIDATES.items():
        for ours, exact in zip(_run(candidate, inputs, grad), expected):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()), msg=name)
print("equal")
"""


def test_candidates_equal_torch():
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    if _has_gpu():
        del environment["TRITON_INTERPRET"]
    done = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
