"""Number formats, compilation and determinism: what the machine can do, and what to say when it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.data.cache import cache_root
from vitling.errors import UserError
from vitling.training.config import LoopConfig

WORTH_COMPILING = 200  # steps; compiling takes 20 to 60 s
WORTH_ANOTHER_SHAPE = 50  # epochs, each with one batch that has it
RECOMPILE_LIMIT = 256  # to Dynamo all functions of views are one, and every shape counts; its own limit over all is 256

Compile = Literal["on", "blocks", "views", "off"]


@dataclass(frozen=True)
class Precision:
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
    """Dropout and stochastic depth: by a key of the step, so that a resume meets the same ones."""
    seed = key % 2**63
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every kind of device, which takes its time
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def choose_compile(config: LoopConfig, device: torch.device, steps: int) -> Compile:
    if config.compile == "auto":
        return "on" if device.type == "cuda" and steps >= WORTH_COMPILING else "off"
    return config.compile


def compile_in_place(network: nn.Module, how: Compile, graphs: bool = False) -> None:
    """In blocks, parts that are alike share a graph: their weights are its inputs. `graphs`: the launches of a forward
    pass in one graph become one, a CUDA graph, and so do those of the backward pass."""
    _keep_graphs()
    if how == "on":
        network.compile(dynamic=False, mode="reduce-overhead" if graphs else None)
    elif how == "blocks":
        for part in network.blocks() if isinstance(network, Backbone) else [network]:
            part.compile(dynamic=False)


def mark_step() -> None:
    """What the graphs gave in the step before is no longer needed."""
    torch.compiler.cudagraph_mark_step_begin()


def compile_function(function: Callable) -> Callable:
    _keep_graphs()
    return torch.compile(function, dynamic=False)


def _keep_graphs() -> None:
    """Between runs, in vitling's cache folder. Within one, graphs of a function with other settings filled in, and of
    blocks of other shapes, count towards one limit, which is 8 by default."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_root() / "inductor"))


def undo_compile(module: nn.Module) -> None:
    for part in module.modules():
        part._compiled_call_impl = None
    torch._dynamo.reset()


def free_memory() -> None:
    """Also that of the graphs of a shape that did not fit."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()
        torch.cuda.empty_cache()


def force_eager() -> AbstractContextManager:
    """For a batch of a shape that comes too seldom to be worth graphs of its own."""
    return torch.compiler.set_stance("force_eager")


def is_compiler_error(problem: BaseException) -> bool:
    home = type(problem).__module__ or ""
    return home.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compile_or_warn(step: Callable[[], None], undo: Callable[[], None], say: Callable[[str], None]) -> None:
    """Runs the first compiled step; a compiler that fails costs the speed, not the run."""
    try:
        step()
    except Exception as problem:
        if not is_compiler_error(problem):
            raise
        reason = next((line for line in reversed(str(problem).splitlines()) if "Error" in line), type(problem).__name__)
        say(f"torch.compile failed ({reason.strip()[:300]}); training goes on without it, more slowly.")
        undo()
        step()
