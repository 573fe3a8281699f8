"""The host's part of view_batch: which images, which draws, and who is mixed with whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitling.keys import make_key, make_rng
from vitling.views.config import Group, Plan
from vitling.views.draws import Draws, columns, seeds_of
from vitling.views.renderer import Indices, Renderer, Views, boxes_of


@dataclass(frozen=True)
class BatchKey:
    """Where a batch stands in the run. `ids` are draw ids over the GLOBAL batch: instance id + N * repetition, so
    that an image that a balanced sampler takes twice in an epoch looks different each time."""

    seed: int
    epoch: int
    step: int  # of the epoch
    ids: np.ndarray
    instances: int  # N


class ViewBatch:
    """The views of the positions `local` of a global batch: first ask for `instances`, then `draw` from their pixels.

    Mixing partners are drawn over the whole batch. A partner that another process (or another slice of an
    accumulated batch) holds is simply drawn here too: stateless draws make it the same picture.

    `indices` is the host's part: integers that say which images are rendered and mixed with which. The `Renderer`
    needs nothing else from the host, so its work can be captured in a CUDA graph.
    """

    def __init__(self, plan: Plan, key: BatchKey, local: np.ndarray):
        self.plan, self.key, self.local = plan, key, local
        self._partners = [self._partner_elements(g, group) for g, group in enumerate(plan.groups)]
        mixed_in = [partner % len(key.ids) for partner in self._partners if partner is not None]
        self._needed = _padded(np.unique(np.concatenate([local, *mixed_in])), len(key.ids))

    @property
    def instances(self) -> np.ndarray:
        """Ids of the images whose pixels `draw` wants, in this order."""
        return self.key.ids[self._needed] % self.key.instances

    @property
    def own_instances(self) -> np.ndarray:
        return self.key.ids[self.local] % self.key.instances

    @property
    def groups(self) -> tuple[Group, ...]:
        """With the mixing of this epoch."""
        return tuple(replace(group, mix=group.mix.in_epoch(self.key.epoch)) for group in self.plan.groups)

    def render(self, pixels: Tensor, aspect: Tensor, renderer: Renderer) -> list[Views]:
        """One `Views` a group. `pixels` is uint8 [len(instances), C, S, S]."""
        order = [tuple(_to(part, pixels.device) for part in parts) for parts in self.indices()]
        return renderer.render(self.groups, order, pixels, aspect)

    def indices(self) -> list[Indices[np.ndarray]]:
        """For each group, int64: the seeds of its views of all needed images; which of those are the batch's own, if
        not all; and if they are mixed, with which, whose instance ids those are, and the seeds of the mixing."""
        return [self._order(g, group) for g, group in enumerate(self.plan.groups)]

    def boxes(self, aspect: Tensor) -> list[Tensor]:
        """[count * B, 4] a group: where the views of `instances` are cut from, in fractions of the image."""
        cut = []
        for group, parts in zip(self.plan.groups, self.indices()):
            draws = Draws.from_seeds(_to(parts[0], aspect.device), columns(aspect.device))
            cut.append(boxes_of(draws, group.policy, aspect.repeat(group.count)))
        return cut

    def _order(self, index: int, group: Group) -> Indices[np.ndarray]:
        first_view = sum(g.count for g in self.plan.groups[:index])
        keys = [make_key("view", self.key.seed, self.key.epoch, first_view + v) for v in range(group.count)]
        seeds = seeds_of(keys, self.key.ids[self._needed])
        own = self._rows(self._elements(group))
        partner = self._partners[index]
        if partner is None:
            everyone = len(own) == len(seeds) and bool((own == np.arange(len(own))).all())
            return (seeds,) if everyone else (seeds, own)
        mixed_in = self.key.ids[partner % len(self.key.ids)] % self.key.instances
        if group.mix.per == "batch":
            where = ("mix", self.key.seed, self.key.epoch, self.key.step, first_view)
            keys = [make_key(*where, *([part] if part else [])) for part in range(group.mix.parts)]
            mixing = np.array(keys)[self._parts(group)[self._elements(group)]]
        else:
            mixing = seeds[own]
        return seeds, own, self._rows(partner), mixed_in, mixing

    def _partner_elements(self, index: int, group: Group) -> np.ndarray | None:
        """For each local element (view-major over the global batch) the element that is mixed in."""
        if not group.mix.on:
            return None
        generator = make_rng("partner", self.key.seed, self.key.epoch, self.key.step, index)
        part_of = self._parts(group)
        partners = np.empty(len(part_of), np.int64)
        for part in range(group.mix.parts):
            members = np.flatnonzero(part_of == part)
            partners[members] = members[generator.permutation(len(members))]
        return partners[self._elements(group)]

    def _parts(self, group: Group) -> np.ndarray:
        """Of every element of the group, over the global batch: the part of the batch that it is mixed in."""
        batch = len(self.key.ids)
        return np.tile(np.arange(batch) * group.mix.parts // batch, group.count)

    def _elements(self, group: Group) -> np.ndarray:
        return (np.arange(group.count)[:, None] * len(self.key.ids) + self.local[None]).ravel()

    def _rows(self, elements: np.ndarray) -> np.ndarray:
        """Where an element lies among the drawn images."""
        view, position = np.divmod(elements, len(self.key.ids))
        return view * len(self._needed) + np.searchsorted(self._needed, position)


def _padded(positions: np.ndarray, batch: int) -> np.ndarray:
    """To a multiple of an eighth of the batch, by the last again. How many partners other processes hold is a matter of
    chance, and every other number would be compiled anew."""
    eighth = -(-batch // 8)
    missing = min(-len(positions) % eighth, batch - len(positions))
    return np.pad(positions, (0, missing), mode="edge")


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
