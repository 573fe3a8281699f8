"""Types of a checkpoint's content, and whether it fits a trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from msgspec import Meta
from torch import Tensor
from torch.optim import AdamW

from vitling.errors import InvalidFile
from vitling.loading import convert
from vitling.training.trainer import Trainer

Count = Annotated[int, Meta(ge=0)]
Tensors = dict[str, Tensor]


class _Optimiser(TypedDict):
    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class _Average(TypedDict):
    updates: Count
    shadow: Tensors


class _Best(TypedDict):
    epoch: Count
    value: float
    weights: Tensors


class _Recorder(TypedDict):
    names: list[str]
    totals: dict[int, Tensor]


class _Length(TypedDict):
    epochs: Annotated[int, Meta(ge=1, le=10**9)]
    shift: Annotated[float, Meta(le=1e15)]  # steps


class _Content(TypedDict):
    step: Count
    length: NotRequired[_Length | None]
    data: str
    accumulate: Annotated[int, Meta(ge=1)]
    objective: Tensors
    optimiser: _Optimiser
    parameters: NotRequired[list[str]]
    per_epoch: Annotated[int, Meta(ge=1)]
    batch_sizes: NotRequired[Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1)]]
    scaler: dict[str, float]
    average: _Average | None
    seconds: NotRequired[float]
    best: _Best | None
    last_metrics: dict[str, float]
    recorder: _Recorder


def check_types(path: Path, state: dict[str, Any]) -> None:
    """Raise InvalidFile if a part is missing or has another type."""
    convert(state, _Content, path)
    recorder = state["recorder"]
    if any(t.ndim != 2 or t.shape[1] != len(recorder["names"]) or not len(t) for t in recorder["totals"].values()):
        raise InvalidFile(path, "its metrics have the wrong shape")
    length = state.get("length")
    if length and not (math.isfinite(length["shift"]) and state["step"] + length["shift"] >= 0):
        raise InvalidFile(path, "its position in the schedules is impossible", "length")


def check_content(trainer: Trainer, path: Path, state: dict[str, Any]) -> None:
    """Raise InvalidFile if the content has wrong types, or belongs to another network."""
    check_types(path, state)
    own = trainer.objective.state_dict()
    _check_tensors(trainer, path, state["objective"], own)
    if trainer.ema and state["average"]:
        _check_tensors(trainer, path, state["average"]["shadow"], trainer.ema.shadow)
    if state["best"]:
        _check_tensors(trainer, path, state["best"]["weights"], own)
    _check_moments(trainer, path, state["optimiser"])


def _check_tensors(trainer: Trainer, path: Path, found: Tensors, own: Tensors) -> None:
    if different := sorted(found.keys() ^ own.keys()):
        raise InvalidFile(path, f"{different[0][:100]} is in only one of the checkpoint and this run's network")
    for name, value in own.items():
        if not _is_plain(found[name]):
            raise InvalidFile(path, f"{name} is not a plain tensor")
        if found[name].shape != value.shape:
            raise InvalidFile(path, f"{name} has shape {tuple(found[name].shape)}, not {tuple(value.shape)}")


def _check_moments(trainer: Trainer, path: Path, found: dict[str, Any]) -> None:
    groups = trainer.optimiser.state_dict()["param_groups"]
    if [group.get("params") for group in found["param_groups"]] != [group["params"] for group in groups]:
        raise InvalidFile(path, "its optimiser has other parameters")
    for saved, group in zip(found["param_groups"], groups):
        if saved.keys() != group.keys() or not all(_has_same_type(saved[name], group[name]) for name in group):
            raise InvalidFile(path, "its optimiser has other settings")
    order = [p for group in trainer.optimiser.param_groups for p in group["params"]]
    adamw = {"step", "exp_avg", "exp_avg_sq"} if isinstance(trainer.optimiser, AdamW) else set()
    muon = {index for group in groups if group.get("matrices") for index in group["params"]}
    for index, moments in found["state"].items():
        if not all(isinstance(moments.get(name), Tensor) for name in ({"momentum"} if index in muon else adamw)):
            raise InvalidFile(path, "moments of its optimiser are missing")
        shape = order[index].shape if index in range(len(order)) else None
        every = [moment for moment in moments.values() if isinstance(moment, Tensor)]
        if not all(_is_plain(moment) and moment.is_floating_point() for moment in every):
            raise InvalidFile(path, "a moment of its optimiser is not a plain tensor")
        if not _has_same_type(moments.get("step", 0.0), 0.0) or moments.get("step", 0.0) < 0:
            raise InvalidFile(path, "its optimiser has taken an impossible number of steps")
        tensors = [moment for moment in every if moment.ndim]
        if shape is None or any(t.shape != shape for t in tensors):
            raise InvalidFile(path, "the moments of its optimiser do not fit this run's network")


def _has_same_type(saved: Any, own: Any) -> bool:
    """Return whether a setting of an optimiser has the type of this run's, with numbers that are finite."""
    if isinstance(own, tuple | list):
        return isinstance(saved, tuple | list) and len(saved) == len(own) and all(map(_has_same_type, saved, own))
    if own is None or isinstance(own, bool):  # such as `fused`, which depends on the machine
        return saved is None or isinstance(saved, bool)
    if isinstance(saved, Tensor):
        return _is_plain(saved) and saved.ndim == 0 and not saved.is_complex() and bool(saved.isfinite())
    return isinstance(saved, int | float) and not isinstance(saved, bool) and math.isfinite(saved)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has values of its own, and is neither sparse nor quantised."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return False
    reach = 1  # elements that the dimensions so far take in memory
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride < reach:  # two elements share memory
            return False
        reach += (size - 1) * stride
    return True
