"""Tests of Triton kernels on machines without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

UNALIGNED = ("images", "height", "width", "programs_per_row", "images_per_program", "heads", "queries", "keys")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def run_interpreted(name: str, dtype: str, sides: Sequence[int]) -> list[float]:
    """Return the errors of the kernels of `name` in Triton's interpreter, in a process of its own."""
    words = [sys.executable, "-m", "tests.backbones.interpreted", name, dtype, *map(str, sides)]
    done = subprocess.run(words, capture_output=True, text=True)
    if "only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton (3.6) does not support NumPy 2.4")
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def compile_kernel(
    kernel: Any, tensor: str, types: dict[str, str], constants: dict[str, Any], architecture: int, options: dict
) -> bytes:
    """Compile a kernel for a GPU that need not be there. `tensor` is the type of arguments not in `types`. As in large
    networks, all addresses and integers but heights, widths and counts of tokens are multiples of 16."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = types | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, tensor) for name in kernel.arg_names}
    aligned = [
        i
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and name not in UNALIGNED)
    ]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()}, attributes)
    return compile(source, target=GPUTarget("cuda", architecture, 32), options=options).asm["cubin"]
