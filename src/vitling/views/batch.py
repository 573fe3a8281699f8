"""The host's part of rendering: which images a batch needs, their seeds, and who is mixed with whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitling.keys import make_key, make_rng
from vitling.views.draws import Draws, columns, make_seeds
from vitling.views.plan import Group, Plan
from vitling.views.renderer import Indices, Normaliser, Renderer, Views, draw_boxes

if TYPE_CHECKING:
    from vitling.data.store import Store


@dataclass(frozen=True)
class BatchKey:
    """Everything that determines the random draws of a GLOBAL batch.

    `ids` are draw ids: instance id + instances * repetition, so an image that a balanced sampler takes twice in an
    epoch looks different each time.
    """

    seed: int
    epoch: int
    step: int  # within the epoch
    ids: np.ndarray
    instances: int  # images in the dataset


class ViewBatch:
    """The views of the positions `local` of a global batch: fetch the pixels of `instances`, then `render` them.

    Mixing partners are drawn over the whole batch. A partner that another process (or another slice of an accumulated
    batch) holds is rendered here too; because draws are stateless, it is the same picture.

    `indices` is the host's part: integers that say which images are rendered and mixed with which. The `Renderer`
    needs nothing else from the host, so its work can be captured in a CUDA graph.
    """

    def __init__(self, plan: Plan, key: BatchKey, local: np.ndarray):
        self.plan, self.key, self.local = plan, key, local
        self._partners = [self._draw_partners(g, group) for g, group in enumerate(plan.groups)]
        mixed_in = [partner % len(key.ids) for partner in self._partners if partner is not None]
        self._needed = _pad(np.unique(np.concatenate([local, *mixed_in])), len(key.ids))

    @property
    def instances(self) -> np.ndarray:
        """Ids of the images whose pixels `render` expects, in this order."""
        return self.key.ids[self._needed] % self.key.instances

    @property
    def own_instances(self) -> np.ndarray:
        """Ids of the images at the positions `local`, without mixing partners."""
        return self.key.ids[self.local] % self.key.instances

    @property
    def groups(self) -> tuple[Group, ...]:
        """The plan's groups with the mixing of this epoch."""
        return tuple(replace(group, mix=group.mix.at_epoch(self.key.epoch)) for group in self.plan.groups)

    def render(self, pixels: Tensor, aspect: Tensor, renderer: Renderer) -> list[Views]:
        """Render one `Views` per group. `pixels` is uint8 [len(instances), C, S, S]."""
        indices = [tuple(_to(array, pixels.device) for array in arrays) for arrays in self.indices()]
        return renderer.render(self.groups, indices, pixels, aspect)

    def indices(self) -> list[Indices[np.ndarray]]:
        """List int64 arrays for each group.

        Always: the seeds of its views of all needed images. If those are more than the batch's own, or mixed: the rows
        of its own. If mixed: the rows of the partners, the partners' instance ids, and the seeds of the mixing.
        """
        return [self._group_indices(g, group) for g, group in enumerate(self.plan.groups)]

    def boxes(self, aspect: Tensor) -> list[Tensor]:
        """Draw the crop boxes of all `instances` for each group, [count * B, 4] in fractions of the image."""
        boxes = []
        for group, (seeds, *_) in zip(self.plan.groups, self.indices()):
            draws = Draws.from_seeds(_to(seeds, aspect.device), columns(aspect.device))
            boxes.append(draw_boxes(draws, group.policy, aspect.repeat(group.count), group.size))
        return boxes

    def _group_indices(self, index: int, group: Group) -> Indices[np.ndarray]:
        key = self.key
        first_view = sum(g.count for g in self.plan.groups[:index])
        keys = [make_key("view", key.seed, key.epoch, first_view + v) for v in range(group.count)]
        seeds = make_seeds(keys, key.ids[self._needed])
        own = self._find_rows(self._local_elements(group))
        partner = self._partners[index]
        if partner is None:
            everyone = len(own) == len(seeds) and bool((own == np.arange(len(own))).all())
            return (seeds,) if everyone else (seeds, own)
        mixed_in = key.ids[partner % len(key.ids)] % key.instances
        if group.mix.per == "batch":
            name = ("mix", key.seed, key.epoch, key.step, first_view)
            keys = [make_key(*name, *([part] if part else [])) for part in range(group.mix.parts)]
            mixing = np.array(keys)[self._mix_parts(group)[self._local_elements(group)]]
        else:
            mixing = seeds[own]
        return seeds, own, self._find_rows(partner), mixed_in, mixing

    def _draw_partners(self, index: int, group: Group) -> np.ndarray | None:
        """Draw for each local element (view-major over the global batch) the element that is mixed in."""
        if not group.mix.on:
            return None
        rng = make_rng("partner", self.key.seed, self.key.epoch, self.key.step, index)
        part_of = self._mix_parts(group)
        partners = np.empty(len(part_of), np.int64)
        for part in range(group.mix.parts):
            members = np.flatnonzero(part_of == part)
            partners[members] = members[rng.permutation(len(members))]
        return partners[self._local_elements(group)]

    def _mix_parts(self, group: Group) -> np.ndarray:
        """Number the part of the global batch (`Mix.parts`) that each of the group's elements belongs to."""
        batch = len(self.key.ids)
        return np.tile(np.arange(batch) * group.mix.parts // batch, group.count)

    def _local_elements(self, group: Group) -> np.ndarray:
        return (np.arange(group.count)[:, None] * len(self.key.ids) + self.local[None]).ravel()

    def _find_rows(self, elements: np.ndarray) -> np.ndarray:
        """Convert elements of the global batch to rows of the rendered images."""
        view, position = np.divmod(elements, len(self.key.ids))
        return view * len(self._needed) + np.searchsorted(self._needed, position)


def render_batch(
    plan: Plan, store: Store, ids: np.ndarray, normalise: Normaliser, seed: int, epoch: int = 0
) -> list[Views]:
    """Render the plan's views of the images with `ids` as one batch, without compiling anything."""
    view_batch = ViewBatch(plan, BatchKey(seed, epoch, 0, ids, len(store)), np.arange(len(ids)))
    return view_batch.render(*store.fetch(view_batch.instances), Renderer(normalise))


def _pad(positions: np.ndarray, batch: int) -> np.ndarray:
    """Repeat the last position up to a multiple of an eighth of the batch.

    The number of partners that other processes hold is random, and each new number of images would be compiled again.
    """
    eighth = -(-batch // 8)
    missing = min(-len(positions) % eighth, batch - len(positions))
    return np.pad(positions, (0, missing), mode="edge")


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
