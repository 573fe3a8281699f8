"""The training step: forward, backward and update, compiled and captured where it helps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitling.console import Log
from vitling.data.store import Store
from vitling.errors import RunAborted
from vitling.keys import make_key
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.shortage import explain_shortage, is_out_of_memory
from vitling.training import compilation, precision
from vitling.training.batch_norm import check_batch_norm, group_batch_norm, has_batch_norm
from vitling.training.compile_workers import wait_for_workers
from vitling.training.config import FitConfig
from vitling.training.feed import Feed, LoadedBatch, MicroBatch
from vitling.training.optim import EMA, WeightDecaySchedule, clip_gradients, make_optimiser, reset_step_counts, set_lr
from vitling.training.prefetch import ViewPrefetcher
from vitling.training.processes import Processes
from vitling.training.replay import Replay, Terms
from vitling.training.schedules import lr_schedule
from vitling.views.batch import BatchKey
from vitling.views.renderer import FunctionCache, Normaliser, Renderer, Views

PASSES_SPLIT_COMPARISONS = (
    "images are compared only within each micro-batch; reducing --size leads to fewer micro-batches"
)


class Trainer:
    """An objective with its optimiser and data; runs training steps one at a time."""

    def __init__(self, objective: Objective, store: Store, config: FitConfig, processes: Processes, log: Log):
        self.store, self.config, self.processes, self.log = store, config, processes, log
        precision.set_deterministic(config.loop.deterministic)
        self.precision = precision.choose_precision(config.loop, store.device)
        self.objective = objective.to(store.device)
        if config.loop.batch_norm_group is not None:
            group_batch_norm(objective, config.loop.batch_norm_group)
        elif processes.world > 1 and store.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(objective)
        objective.train()  # sets the mode of replaced modules too
        self.model = _wrap_parallel(objective, processes)
        self.optimiser = make_optimiser(objective, config.optim)
        final = config.optim.final_weight_decay
        self.decay = None if final is None else WeightDecaySchedule(self.optimiser, config.optim.weight_decay, final)
        self.parameters = list(objective.parameters())
        self.scaler = self.precision.scaler()
        self.ema = EMA(objective, config.optim.ema) if config.optim.ema else None
        self.lr = lr_schedule(config)
        self.feed = Feed(store, objective.plan, config, processes, least=2 if has_batch_norm(objective) else 1)
        self.source: Iterator[LoadedBatch] = iter(())
        self.next_batch: LoadedBatch | None = None
        self.epochs, self.done = config.epochs, 0
        self.shift = 0.0  # of the steps of the schedules; 0 unless the length was changed
        self._check()
        self.renderer = Renderer(Normaliser(store.mean, store.std), dtype=self.precision.dtype)
        self.prefetcher: ViewPrefetcher | None = None
        self.replay: Replay | None = None
        self.compiling, self.seconds_compiling = False, 0.0
        self.compiled_sizes: set[int] = set()
        self.is_cached = False  # whether the compiler's cache has all that whole batches need
        self.weights_may_have_changed = False  # in this step, which then cannot be repeated
        self._compile(compilation.choose_compile(config.loop, store.device, self.steps))

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return len(self.feed.sizes)

    @property
    def steps(self) -> int:
        return self.per_epoch * self.epochs

    def progress(self, step: int | None = None) -> Progress:
        """Return the position of a step in the schedules, by default of the next one."""
        step = self.done if step is None else step
        if not self.shift:
            return Progress(step, self.steps, self.config.epochs)
        return Progress(step + self.shift, self.steps + self.shift, self.config.epochs)

    @property
    def length_changed(self) -> bool:
        return self.epochs != self.config.epochs or self.shift != 0

    def change_length(self, epochs: int) -> None:
        """Set the number of epochs. The schedules continue from where they are, faster or slower."""
        fraction = self.progress().fraction
        self.epochs = epochs
        self.shift = (fraction * self.steps - self.done) / (1 - fraction)

    def _check(self) -> None:
        accumulate = self.feed.accumulate
        check_batch_norm(self.objective, min(self.feed.sizes), self.processes, accumulate, self.log.warning)
        if accumulate > 1 and self.objective.compares_images:
            self.log.warning(f"--optim.accumulate {accumulate}: {PASSES_SPLIT_COMPARISONS}.")

    # --- data ----------------------------------------------------------------------------------------------------

    def batches(self, epoch: int) -> Iterator[LoadedBatch]:
        """Yield the rest of an epoch. During each step `next_batch` is the next batch, even across epochs."""
        if self.next_batch is None or self.next_batch.key.epoch != epoch:
            self.source = self._load_from(epoch, self.done)
            self.next_batch = next(self.source, None)
        while self.next_batch and self.next_batch.key.epoch == epoch:
            loaded, self.next_batch = self.next_batch, next(self.source, None)
            yield loaded

    def _load_from(self, epoch: int, done: int) -> Iterator[LoadedBatch]:
        while epoch < self.epochs:
            yield from self.feed.batches(epoch, done)
            epoch += 1

    def get_views(self, micro: MicroBatch) -> list[Views]:
        """Return the prefetched views, or render them now."""
        ready = self.prefetcher.get_views(micro) if self.prefetcher else None
        return ready or micro.view_batch.render(micro.pixels, micro.aspect, self.renderer)

    def _prefetch(self) -> None:
        if self.prefetcher and self.next_batch and self._is_compiled(self.next_batch):
            self.prefetcher.prepare(self.next_batch)

    # --- one step ------------------------------------------------------------------------------------------------

    def step(self, loaded: LoadedBatch) -> Terms:
        """Take an optimiser step and return its loss terms, on the device and valid until the next step."""
        compiled = self._is_compiled(loaded)
        with nullcontext() if compiled or not self.compiling else compilation.force_eager():
            terms = self._compile_step(loaded) if self.compiles(loaded) else self._step_in_memory(loaded)
        self.done += 1
        return terms

    def _step_in_memory(self, loaded: LoadedBatch) -> Terms:
        """Take a step. If it runs out of memory, try again with smaller passes at the same effective batch."""
        while True:
            if loaded.accumulate != self.feed.accumulate:  # it was loaded before the passes were made smaller
                loaded = self.feed.load(loaded.key)
            try:
                return self._take_step(loaded.key, loaded.micro_batches)
            except (RuntimeError, MemoryError) as problem:
                if not is_out_of_memory(problem):
                    raise
                smallest = max(len(micro.view_batch.local) for micro in loaded.micro_batches) == 1
                if smallest or self.weights_may_have_changed or self.processes.world > 1:
                    advice = "" if smallest else " Or split each batch: --optim.accumulate 2."
                    raise RunAborted(f"{explain_shortage(problem)}{advice}") from problem
            self._double_passes()  # outside of `except`, which would keep the failed step's tensors alive

    def _double_passes(self) -> None:
        self.feed.accumulate *= 2
        passes = self.feed.accumulate
        self.log.warning(
            f"Out of memory: each batch of {self.config.batch} is now split into {passes} passes, at the same "
            f"effective batch. Pass --optim.accumulate {passes} to start this way."
            + (f" Note that {PASSES_SPLIT_COMPARISONS}." if self.objective.compares_images else "")
        )
        if self.replay:
            self.replay.forget()
        if self.prefetcher:
            self.prefetcher.forget()
            self.next_batch = None if self.next_batch is None else self.feed.load(self.next_batch.key)
        compilation.free_graphs()

    def find_not_finite(self) -> str | None:
        """Return the name of a weight, or of an average of one, that is not finite; None if all are."""
        named = {name: p.detach() for name, p in self.objective.named_parameters() if p.numel()}
        if self.ema:
            named |= {f"the average of {name}": value for name, value in self.ema.shadow.items() if value.numel()}
        finite = torch.stack([norm.float() for norm in torch._foreach_norm(list(named.values()))]).isfinite()
        return None if finite.all() else list(named)[int(finite.int().argmin())]

    def _take_step(self, key: BatchKey, micro_batches: list[MicroBatch]) -> Terms:
        progress = self.progress()
        self.weights_may_have_changed = False
        compilation.mark_step()
        precision.seed_layers(make_key("layers", self.config.seed, self.done, self.processes.rank), self.store.device)
        set_lr(self.optimiser, self.lr(progress))
        if self.decay:
            self.decay.set(self.lr(progress), progress.fraction)
        if not self.objective.training:  # train() visits every module, which takes longer than a small step
            self.model.train()
        self.objective.before_step(progress)
        reset_step_counts(self.optimiser, self.objective.newly_active(progress))
        if self.replay:
            self.replay.enter(self.objective.phase)
        first = self.get_views(micro_batches[0])
        replayable = len(micro_batches) == 1 and len(key.ids) in self.compiled_sizes
        terms = self._replay_step(first, micro_batches[0], progress) if replayable else None
        terms = terms or self._run_step(first, micro_batches, progress)
        if self.ema:
            self.ema.update()
        self.objective.after_step(progress)
        return terms

    def _run_step(self, first: list[Views], micro_batches: list[MicroBatch], progress: Progress) -> Terms:
        self.optimiser.zero_grad(set_to_none=True)
        terms: Terms = {}
        for i, micro in enumerate(micro_batches):
            inputs = torch.from_numpy(self._host_inputs(micro)).to(self.store.device, non_blocking=True)
            views, last = self.get_views(micro) if i else first, i == len(micro_batches) - 1
            for name, value in self._backward(views, inputs, micro, progress, last).items():
                terms[name] = terms.get(name, 0) + micro.weight * value
        self._prefetch()
        return {**terms, "grad_norm": self._update()}

    def _replay_step(self, views: list[Views], micro: MicroBatch, progress: Progress) -> Terms | None:
        """Replay what `_run_step` would do, or return None if there is no capture of it."""

        def learn(views: list[Views], inputs: Tensor) -> Terms:
            self.optimiser.zero_grad(set_to_none=True)
            return self._backward(views, inputs, micro, progress, synchronise=True)

        inputs = self._host_inputs(micro)
        capture = self.replay.get_capture(views, inputs, learn, self._update) if self.replay else None
        if capture is None:
            return None
        terms = capture.learn(inputs)
        self._prefetch()
        return {**terms, "grad_norm": capture.update()}

    def _host_inputs(self, micro: MicroBatch) -> np.ndarray:
        """Return the step's input from the host: the ids of its images, followed by its key."""
        return np.append(micro.view_batch.own_instances, make_key("step", self.config.seed, self.done))

    def _backward(
        self, views: list[Views], inputs: Tensor, micro: MicroBatch, progress: Progress, synchronise: bool
    ) -> Terms:
        parallel = isinstance(self.model, DistributedDataParallel)
        model: Any = self.model
        with model.no_sync() if parallel and not synchronise else nullcontext():
            terms = self._forward(views, inputs, micro, progress)
            total = self.objective.total(terms, progress)
            self.scaler.scale(total * micro.weight).backward()
        return {"loss": total.detach(), **{name: value.detach() for name, value in terms.items()}}

    def _forward(self, views: list[Views], inputs: Tensor, micro: MicroBatch, progress: Progress) -> Terms:
        with self.precision.autocast():
            labels, count = self.store.labels, micro.images_per_process
            return self.model(views, Batch(inputs[:-1], labels, key=inputs[-1], images_per_process=count), progress)

    def _update(self) -> Tensor:
        optim = self.config.optim
        self.weights_may_have_changed = True
        self.scaler.unscale_(self.optimiser)
        norm = clip_gradients(self.parameters, optim.clip, optim.clip_per)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return norm

    # --- compilation ---------------------------------------------------------------------------------------------

    def _compile(self, how: compilation.Compile) -> None:
        if how == "off":
            compilation.wait_for_warm_up()
            return
        self.compiling = True
        what = "the views" if how == "views" else "the network and the views"
        self.log.info(f"Compiling {what}: the first steps take up to a minute.")
        if self._can_capture():
            self.replay = Replay(self.store.device, self.log.warning)
        for network in self.objective.networks():
            compilation.compile_in_place(network, how, graphs=self.processes.world == 1 and not self.replay)
        self.renderer.functions = FunctionCache(compilation.compile_function)

    def _can_capture(self) -> bool:
        """Return whether whole steps can be captured: in fp16 the host checks every step for overflow, and DDP's
        gradient exchange is not capturable."""
        alone = self.store.device.type == "cuda" and self.processes.world == 1
        return alone and self.precision.name != "fp16" and self.objective.capturable

    def _is_compiled(self, loaded: LoadedBatch) -> bool:
        """Return whether this size is compiled; for the incomplete last batch of an epoch, only with enough epochs."""
        whole = len(loaded.key.ids) == self.feed.sizes[0]
        return self.compiling and (whole or self.config.epochs >= compilation.WORTH_ANOTHER_SHAPE)

    def compiles(self, loaded: LoadedBatch) -> bool:
        """Return whether the step with this batch compiles: the first with a batch of its size."""
        return self._is_compiled(loaded) and len(loaded.key.ids) not in self.compiled_sizes

    def _compile_step(self, loaded: LoadedBatch) -> Terms:
        """Take the first step with a batch of this size, which compiles it."""
        self.compiled_sizes.add(len(loaded.key.ids))
        began = time.perf_counter()
        compilation.wait_for_warm_up()
        if not self.is_cached:
            wait_for_workers()
        terms = compilation.compile_or_warn(lambda: self._step_in_memory(loaded), self._undo_compile, self.log.warning)
        self.seconds_compiling += time.perf_counter() - began
        if self.compiling and not self.prefetcher and self.store.device.type == "cuda":
            self.prefetcher = ViewPrefetcher(self.renderer, self.store.device, self.log.warning)
        return terms

    def run_uncompiled(self, loaded: LoadedBatch) -> None:
        """Run a forward pass without compiled code."""
        micro, progress = loaded.micro_batches[0], self.progress()
        inputs = torch.from_numpy(self._host_inputs(micro)).to(self.store.device)
        with compilation.force_eager():
            views = micro.view_batch.render(micro.pixels, micro.aspect, self.renderer)
            self.objective.before_step(progress)
            self._forward(views, inputs, micro, progress)

    def _undo_compile(self) -> None:
        for network in self.objective.networks():
            compilation.undo_compile(network)
        self.renderer.functions, self.prefetcher, self.replay, self.compiling = FunctionCache(), None, None, False


def _wrap_parallel(objective: Objective, processes: Processes) -> nn.Module:
    """Wrap the objective in DDP if there are several processes."""
    if processes.world == 1:
        return objective
    has_idle_parameters = objective.phases > 1
    return DistributedDataParallel(objective, broadcast_buffers=False, find_unused_parameters=has_idle_parameters)
