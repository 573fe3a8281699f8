"""torch.compile: networks, their sections or blocks, and views; its cache and its failures."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.data.cache import redirect_cache
from vitling.errors import Interrupted
from vitling.training.compile_workers import end_workers
from vitling.training.config import LoopConfig

WORTH_COMPILING = 200  # steps: compilation takes 20 to 60 s
WORTH_ANOTHER_SHAPE = 50  # epochs, each with one batch of the other shape
RECOMPILE_LIMIT = 256  # Dynamo's overall limit; its own per function, 8, is too few for views, which share one

# of views, which take little of a step: tuning them takes seconds
VIEW_OPTIONS: dict[str, Any] = {"triton.autotune_pointwise": False}

Compile = Literal["on", "blocks", "views", "off"]
T = TypeVar("T")

_loader: Thread | None = None
_warmer: Thread | None = None
_records_graphs = False  # whether this process has used torch's own CUDA graphs


def choose_compile(config: LoopConfig, device: torch.device, steps: int) -> Compile:
    if config.compile == "auto":
        return "on" if device.type == "cuda" and steps >= WORTH_COMPILING else "off"
    return config.compile


def compile_in_place(network: nn.Module, how: Compile, graphs: bool = False) -> None:
    """Compile a network by its sections ("on") or in "blocks", where equal blocks share a graph that takes their
    weights as inputs. With `graphs`, it is one graph, whose forward pass becomes a CUDA graph and its backward pass
    another.

    Evaluation calls `forward`, which stays uncompiled: its batches have many shapes.
    """
    global _records_graphs
    configure_compiler()
    if how == "on" and graphs:
        _records_graphs = True
        network.compile(dynamic=False, mode="reduce-overhead")
    elif how in ("on", "blocks"):
        parts = list_parts(network, how)
        if parts == [network]:
            network.compile(dynamic=False)
        else:
            network._compiled_call_impl = _CompiledParts(network, parts)


class _CompiledParts:
    """Calls a network with compiled parts."""

    def __init__(self, network: nn.Module, parts: list[nn.Module]):
        self.network = network
        self.calls = [(part, torch.compile(part._call_impl, dynamic=False)) for part in parts]

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if options.get("attention"):  # which hooks record, inside the last block
            return self.network._call_impl(*inputs, **options)
        try:
            for part, call in self.calls:
                part._compiled_call_impl = call
            return self.network._call_impl(*inputs, **options)
        finally:
            for part, _ in self.calls:
                part._compiled_call_impl = None


def list_parts(network: nn.Module, how: Compile) -> list[nn.Module]:
    """List the parts of a network that are graphs of their own."""
    if not isinstance(network, Backbone):
        return [network]
    return network.sections() if how == "on" else network.blocks()


def is_started() -> bool:
    return _loader is not None


def start_in_background(load: Callable[[], object], warm_up: Callable[[], object]) -> None:
    """Load the compiler and warm up the device in threads."""
    global _loader, _warmer
    _loader, _warmer = Thread(target=load, name="compiler"), Thread(target=warm_up, name="warm-up")
    _warmer.start()
    _loader.start()


def wait_for_warm_up() -> None:
    """Wait for CUDA to start and for kernels that this process is trying: the first step would try them again."""
    if _warmer is not None:
        _warmer.join()


def mark_step() -> None:
    """Tell torch that the CUDA graphs' outputs of the previous step are no longer needed."""
    torch.compiler.cudagraph_mark_step_begin()


def compile_function(function: Callable, traced_only: bool = False) -> Callable:
    configure_compiler()
    if traced_only:
        return torch.compile(function, dynamic=False, backend="eager")
    return torch.compile(function, dynamic=False, options=VIEW_OPTIONS)


def configure_compiler() -> None:
    """Keep compiled code between runs, in vitling's cache folder, and raise the limit on graphs within one: those of a
    function with other settings, and of blocks with other shapes, all count towards it."""
    if _loader is not None:
        _loader.join()  # two threads that import the same modules can meet half of them
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")


def undo_compile(module: nn.Module) -> None:
    for part in module.modules():
        part._compiled_call_impl = None
    torch._dynamo.reset()


def free_memory() -> None:
    """Free cached GPU memory that nothing refers to any more. Compiled code stays, for runs with the same network."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_graphs() -> None:
    """Free cached GPU memory and the CUDA graphs that torch has recorded, with the compiled code that replays them:
    without its graphs it fails."""
    if _records_graphs:
        torch._dynamo.reset()
    free_memory()


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
        end_workers()
        raise
    except Exception as problem:
        if not is_compiler_error(problem):
            raise
        reason = next((line for line in reversed(str(problem).splitlines()) if "Error" in line), type(problem).__name__)
        warn(f"torch.compile failed ({reason.strip()[:300]}); training continues without it, more slowly.")
        undo()
        return step()
