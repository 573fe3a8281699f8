"""Number formats, compilation and determinism."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.data.cache import redirect_cache
from vitling.errors import Interrupted, UserError
from vitling.training.config import LoopConfig

WORTH_COMPILING = 200  # steps: compilation takes 20 to 60 s
WORTH_ANOTHER_SHAPE = 50  # epochs, each with one batch of the other shape
RECOMPILE_LIMIT = 256  # Dynamo's overall limit; its own per function, 8, is too few for views, which share one

Compile = Literal["on", "blocks", "views", "off"]
T = TypeVar("T")


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


def choose_compile(config: LoopConfig, device: torch.device, steps: int) -> Compile:
    if config.compile == "auto":
        return "on" if device.type == "cuda" and steps >= WORTH_COMPILING else "off"
    return config.compile


def compile_in_place(network: nn.Module, how: Compile, graphs: bool = False) -> None:
    """Compile a network as one graph ("on") or in "blocks", where equal blocks share a graph that takes their weights
    as inputs. With `graphs`, a forward pass becomes one CUDA graph and a backward pass another."""
    _configure_compiler()
    if how == "on":
        network.compile(dynamic=False, mode="reduce-overhead" if graphs else None)
    elif how == "blocks":
        for part in network.blocks() if isinstance(network, Backbone) else [network]:
            part.compile(dynamic=False)


def mark_step() -> None:
    """Tell torch that the CUDA graphs' outputs of the previous step are no longer needed."""
    torch.compiler.cudagraph_mark_step_begin()


def compile_function(function: Callable) -> Callable:
    _configure_compiler()
    return torch.compile(function, dynamic=False)


def _configure_compiler() -> None:
    """Keep compiled code between runs, in vitling's cache folder, and raise the limit on graphs within one: those of a
    function with other settings, and of blocks with other shapes, all count towards it."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")


def undo_compile(module: nn.Module) -> None:
    for part in module.modules():
        part._compiled_call_impl = None
    torch._dynamo.reset()


def free_memory() -> None:
    """Free cached GPU memory, that of CUDA graphs of a shape that did not fit included."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()
        torch.cuda.empty_cache()


def force_eager() -> AbstractContextManager:
    """Skip compiled code, for batches of a shape that is too rare to be worth compiling."""
    return torch.compiler.set_stance("force_eager")


def is_compiler_error(problem: BaseException) -> bool:
    home = type(problem).__module__ or ""
    return home.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compile_or_warn(step: Callable[[], T], undo: Callable[[], None], warn: Callable[[str], None]) -> T:
    """Run the first compiled step; if the compiler fails, warn and run it uncompiled."""
    try:
        return step()
    except Interrupted:
        _end_compile_workers()
        raise
    except Exception as problem:
        if not is_compiler_error(problem):
            raise
        reason = next((line for line in reversed(str(problem).splitlines()) if "Error" in line), type(problem).__name__)
        warn(f"torch.compile failed ({reason.strip()[:300]}); training continues without it, more slowly.")
        undo()
        return step()


def _end_compile_workers() -> None:
    """End the compiler's worker processes, for which Python would wait at its exit."""
    from torch._inductor import async_compile

    for pool in async_compile._pool_set:
        if (process := getattr(pool, "process", None)) is not None:
            process.kill()
