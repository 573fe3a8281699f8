"""Run Triton kernels, and the trial that precedes their use, in Triton's interpreter, which must be chosen before they
are imported, and print their errors.

python -m tests.backbones.interpreted depthwise float16 2 5 9 16
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

os.environ["TRITON_INTERPRET"] = "1"

import torch

if __name__ == "__main__":
    name, dtype = sys.argv[1], getattr(torch, sys.argv[2])
    shape, cpu = tuple(map(int, sys.argv[3:])), torch.device("cpu")
    kernels = import_module(f"vitling.backbones.{name}")
    kernels.has_kernels = lambda *_: True
    kernels.check_kernels(cpu, dtype, *((shape[4], shape[2]) if name == "short_attention" else ()))
    if name == "depthwise":
        launcher = import_module("vitling.backbones.depthwise_kernels")
        launcher.MIN_STRIPS_IN_FLIGHT = 4  # so that some programs have several images
    compare = import_module(f"tests.backbones.{name}").compare
    for error in compare(shape, dtype, cpu):
        print(error)
