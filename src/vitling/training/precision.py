"""Number formats, seeds of layers and determinism."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from vitling.errors import UserError
from vitling.training.config import LoopConfig


@dataclass(frozen=True)
class Precision:
    """Number format of training: fp32, bf16 or fp16."""

    name: str
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.name]

    def autocast(self) -> AbstractContextManager:
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def choose_precision(config: LoopConfig, device: torch.device) -> Precision:
    name = config.precision
    if name == "auto":
        name = "fp32"
        if device.type == "cuda":
            name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if name == "fp16" and device.type == "cpu":
        raise UserError("--loop.precision fp16 needs a GPU; on CPUs use fp32 or bf16.")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return Precision(name, device)


def set_deterministic(on: bool) -> None:
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def seed_layers(key: int, device: torch.device) -> None:
    """Seed dropout and stochastic depth by a key of the step, so that a resumed run draws the same."""
    seed = key % 2**63
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)  # torch.manual_seed visits every kind of device, which is slow
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
