"""Run Triton kernels in Triton's interpreter, which must be chosen before they are imported, and print their errors.

python -m tests.backbones.interpreted depthwise float16 2 5 9 16
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

os.environ["TRITON_INTERPRET"] = "1"

import torch

if __name__ == "__main__":
    name, dtype, *sides = sys.argv[1:]
    import_module(f"vitling.backbones.{name}").has_kernels = lambda device, dtype: True
    if name == "depthwise":
        import_module("vitling.backbones.depthwise_kernels").PROGRAMS = 4  # so that some have several strips
    compare = import_module(f"tests.backbones.{name}").compare
    for error in compare(tuple(map(int, sides)), getattr(torch, dtype), torch.device("cpu")):
        print(error)
