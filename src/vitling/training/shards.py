"""Parameters of which each process holds some of the rows: whole in checkpoints, and in the norms of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitling.objectives.classifiers import shard_rows
from vitling.objectives.objective import Objective
from vitling.training.processes import Processes

Change = Callable[[Tensor, int], Tensor]


class Shards:
    """Where no parameter is sharded, everything is left as it is."""

    def __init__(self, objective: Objective, optimiser: torch.optim.Optimizer, processes: Processes):
        self.processes, self.rows = processes, objective.sharded()
        of = {p: self.rows[name] for name, p in objective.named_parameters() if name in self.rows}
        self.parameters = set(of)
        order = (p for group in optimiser.param_groups for p in group["params"])
        self.in_optimiser = {i: of[p] for i, p in enumerate(order) if p in of}

    def norms(self, parameters: list[nn.Parameter], norms: Tensor) -> Tensor:
        """Of the whole gradients, from those of the parts."""
        if not self.parameters:
            return norms
        parts = torch.tensor([p in self.parameters for p in parameters], device=norms.device)
        squares = torch.where(parts, norms**2, 0.0)
        dist.all_reduce(squares)
        return torch.where(parts, squares.sqrt(), norms)

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """What the loop saves, with whole tensors in the main process. All processes have to take part."""
        return self._changed(state, self._join) if self.rows else state

    def part(self, state: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint holds, with the rows of this process."""
        return self._changed(state, self._cut) if self.rows else state

    def _changed(self, state: dict[str, Any], change: Change) -> dict[str, Any]:
        def by_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: change(t, self.rows[name]) if name in self.rows else t for name, t in tensors.items()}

        def moments(index: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
            rows = self.in_optimiser.get(index)
            return {k: change(t, rows) if rows is not None and t.ndim else t for k, t in values.items()}

        optimiser, average, best = state["optimiser"], state["average"], state["best"]
        return {
            **state,
            "objective": by_name(state["objective"]),
            "optimiser": {**optimiser, "state": {i: moments(i, v) for i, v in optimiser["state"].items()}},
            "average": average and {**average, "shadow": by_name(average["shadow"])},
            "best": best and {**best, "weights": by_name(best["weights"])},
        }

    def _cut(self, whole: Tensor, rows: int) -> Tensor:
        own = shard_rows(rows, self.processes.rank, self.processes.world)
        return whole[own.start : own.stop].clone()  # a view would keep the whole in memory

    def _join(self, part: Tensor, rows: int) -> Tensor:
        """One process after the other, so that no device has to hold the whole."""
        rank, world, device = self.processes.rank, self.processes.world, self.processes.device
        whole = part.new_empty(rows, *part.shape[1:], device="cpu") if self.processes.main else part
        for source in range(world):
            held = shard_rows(rows, source, world)
            passing = part.detach().to(device).contiguous() if source == rank else None
            if passing is None:
                passing = part.new_empty(len(held), *part.shape[1:], device=device)
            dist.broadcast(passing, src=source)
            if self.processes.main:
                whole[held.start : held.stop] = passing.cpu()
        return whole
