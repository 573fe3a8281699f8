"""Parameters whose rows are sharded over processes: complete them in checkpoints and in gradient norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitling.objectives.classifiers import shard_rows
from vitling.objectives.objective import Objective
from vitling.training.processes import Processes

Convert = Callable[[Tensor, int], Tensor]


class Shards:
    """The sharded parameters of an objective. Without any, every method returns its input."""

    def __init__(self, objective: Objective, optimiser: torch.optim.Optimizer, processes: Processes):
        self.processes, self.rows = processes, objective.sharded_parameters()
        rows = {p: self.rows[name] for name, p in objective.named_parameters() if name in self.rows}
        self.parameters = set(rows)
        order = (p for group in optimiser.param_groups for p in group["params"])
        self.in_optimiser = {i: rows[p] for i, p in enumerate(order) if p in rows}

    def complete_norms(self, parameters: list[nn.Parameter], norms: Tensor) -> Tensor:
        """Replace the norms of gradient shards by the norms of the whole gradients."""
        if not self.parameters:
            return norms
        sharded = torch.tensor([p in self.parameters for p in parameters], device=norms.device)
        squares = torch.where(sharded, norms**2, 0.0)
        dist.all_reduce(squares)
        return torch.where(sharded, squares.sqrt(), norms)

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the loop's state with whole tensors in the main process. All processes must call this."""
        return self._convert(state, self._gather) if self.rows else state

    def slice_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's state with this process's rows only."""
        return self._convert(state, self._slice) if self.rows else state

    def _convert(self, state: dict[str, Any], convert: Convert) -> dict[str, Any]:
        def by_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: convert(t, self.rows[name]) if name in self.rows else t for name, t in tensors.items()}

        def moments(index: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
            rows = self.in_optimiser.get(index)
            return {k: convert(t, rows) if rows is not None and t.ndim else t for k, t in values.items()}

        optimiser, average, best = state["optimiser"], state["average"], state["best"]
        return {
            **state,
            "objective": by_name(state["objective"]),
            "optimiser": {**optimiser, "state": {i: moments(i, v) for i, v in optimiser["state"].items()}},
            "average": average and {**average, "shadow": by_name(average["shadow"])},
            "best": best and {**best, "weights": by_name(best["weights"])},
        }

    def _slice(self, whole: Tensor, rows: int) -> Tensor:
        own = shard_rows(rows, self.processes.rank, self.processes.world)
        return whole[own.start : own.stop].clone()  # a view would keep the whole tensor in memory

    def _gather(self, shard: Tensor, rows: int) -> Tensor:
        """Collect one process's rows after the other, so that no device has to hold the whole tensor."""
        rank, world, device = self.processes.rank, self.processes.world, self.processes.device
        whole = shard.new_empty(rows, *shard.shape[1:], device="cpu") if self.processes.is_main else shard
        for source in range(world):
            held = shard_rows(rows, source, world)
            passing = shard.detach().to(device).contiguous() if source == rank else None
            if passing is None:
                passing = shard.new_empty(len(held), *shard.shape[1:], device=device)
            dist.broadcast(passing, src=source)
            if self.processes.is_main:
                whole[held.start : held.stop] = passing.cpu()
        return whole
