"""The sections of a run's networks as tasks for a compile server."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.training.compilation import list_parts
from vitling.training.config import LoopConfig
from vitling.training.feed import LoadedBatch
from vitling.training.precision import choose_precision, set_deterministic
from vitling.training.trainer import Trainer

FILL = 0.02  # value of all tensors; the code does not depend on it


@dataclass
class SectionTask:
    """A section of a network and the calls to compile. Tensors are sent without their values."""

    section: nn.Module
    loop: LoopConfig
    device: str
    compiled: bool = True
    calls: list[Call] = field(default_factory=list)

    def run(self) -> None:
        """Run all calls forward and, those with gradients, backward."""
        set_deterministic(self.loop.deterministic)
        self.section.to(self.device)
        if self.compiled:
            self.section.compile(dynamic=False)
        precision = choose_precision(self.loop, torch.device(self.device))
        for call in self.calls:
            self.section.train(call.training)
            inputs = call.make_inputs(self.device)
            with torch.set_grad_enabled(call.gradients), precision.autocast() if call.autocast else nullcontext():
                outputs = self.section(*inputs, **call.options)
            outputs = vars(outputs) if isinstance(outputs, Features) else outputs
            if totals := [output.float().sum() for output in tree_leaves(outputs) if _needs_gradient(output)]:
                torch.stack(totals).sum().backward()


@dataclass
class Call:
    """Inputs of a section, and the state of torch when it was called."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    training: bool
    gradients: bool
    autocast: bool

    def make_inputs(self, device: str) -> tuple[Any, ...]:
        """Make inputs on the device. Tensors that require gradients are non-leaves, as a section's outputs are."""
        inputs = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, self.inputs)
        return tree_map(lambda x: x.clone() if _needs_gradient(x) else x, inputs)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def record_sections(trainer: Trainer, loaded: LoadedBatch) -> list[SectionTask]:
    """Return a task for each section of the networks, with the calls that this batch makes."""
    loop = trainer.config.loop
    plain = LoopConfig(precision=loop.precision, deterministic=loop.deterministic)
    sections = [part for network in trainer.objective.networks() for part in list_parts(network, "on")]
    tasks = [SectionTask(section, plain, str(trainer.store.device)) for section in sections]
    return _record_calls(tasks, lambda: trainer.run_uncompiled(loaded))


def record_trials(backbone: Backbone, config: LoopConfig, device: torch.device) -> list[SectionTask]:
    """Return a task for each section, which trains it on one image and so tries its kernels."""
    plain, precision = LoopConfig(precision=config.precision), choose_precision(config, device)
    tasks = [SectionTask(section, plain, str(device), compiled=False) for section in backbone.sections()]
    image = torch.zeros(1, backbone.channels, backbone.size, backbone.size)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision.name != "fp32"):
        return _record_calls(tasks, lambda: backbone.eval()(image))


def _record_calls(tasks: list[SectionTask], run: Callable[[], object]) -> list[SectionTask]:
    """Call `run`, and return the tasks whose sections it has called."""
    hooks = [task.section.register_forward_pre_hook(partial(_record, task), with_kwargs=True) for task in tasks]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [task for task in tasks if task.calls]


def _record(task: SectionTask, section: nn.Module, inputs: tuple[Any, ...], options: dict) -> None:
    autocast = torch.is_autocast_enabled(next(section.parameters()).device.type)
    inputs, options = tree_map(_detach, (inputs, options))
    task.calls.append(Call(inputs, options, section.training, torch.is_grad_enabled(), autocast))


def _detach(value: Any) -> Any:
    """Detach a tensor but keep requires_grad."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


class _Pickler(pickle.Pickler):
    """Pickles tensors as their shape, strides, type and device."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        kind = (tuple(value.shape), value.stride(), value.dtype, str(value.device), value.requires_grad)
        return _make_tensor, (isinstance(value, nn.Parameter), *kind)


def pack_section(task: SectionTask) -> bytes:
    """Pickle a task without the values of its tensors."""
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(task)
    return content.getvalue()


def _make_tensor(
    is_parameter: bool, shape: tuple, stride: tuple, dtype: torch.dtype, device: str, gradient: bool
) -> Tensor:
    value = torch.empty_strided(shape, stride, dtype=dtype, device=device).fill_(FILL)
    return nn.Parameter(value, gradient) if is_parameter else value.requires_grad_(gradient)
