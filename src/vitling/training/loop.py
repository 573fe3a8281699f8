"""The only loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from vitling.data.store import Store
from vitling.errors import Interrupted, RunAborted, UserError
from vitling.formatting import format_count
from vitling.keys import make_key
from vitling.objectives.moments import Moment, Watcher
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.training import precision as machine
from vitling.training import states
from vitling.training.ahead import Ahead
from vitling.training.batch_norm import check_batch_norm
from vitling.training.checkpoint import Checkpoints, explain_full_disk
from vitling.training.config import FitConfig
from vitling.training.continuing import load_checkpoint
from vitling.training.display import Display
from vitling.training.feed import Feed, LoadedBatch, MicroBatch
from vitling.training.optim import (
    EMA,
    WeightDecaySchedule,
    clip_gradients,
    make_optimiser,
    reset_step_counts,
    set_lr,
)
from vitling.training.processes import Processes
from vitling.training.recorder import Recorder, describe
from vitling.training.replay import Replay
from vitling.training.result import Best, FitResult
from vitling.training.rundir import RunDirectory
from vitling.training.schedules import lr_schedule
from vitling.training.shards import Shards
from vitling.training.signals import StopRequest, catch_signals
from vitling.views.batch import BatchKey
from vitling.views.renderer import FunctionCache, Normaliser, Renderer, Views

FEW_STEPS = 500
FEWER = "a smaller --size keeps more of them together than --optim.accumulate"


def fit(
    objective: Objective,
    store: Store,
    config: FitConfig,
    watchers: Sequence[Watcher] = (),
    *,
    run: RunDirectory,
    processes: Processes | None = None,
    start: Path | None = None,
) -> FitResult:
    """Trains from the run's last checkpoint, or from the start if it has none; that may be another run's checkpoint."""
    config.check()
    trainer = Trainer(objective, store, config, watchers, run, processes or Processes(0, 1, store.device))
    trainer.resume(start)
    if config.batch >= len(store) and trainer.steps < FEW_STEPS and not trainer.done:
        run.log.warning(
            f"--batch {config.batch} takes all {len(store):,} images at once: {format_count(trainer.steps, 'step')} in "
            "all, which teach little. A smaller --batch has more, and so have more --epochs."
        )
    trainer.began = time.perf_counter()
    with catch_signals() as asked, explain_full_disk(), Display(run.log, trainer.steps, trainer.done) as display:
        for epoch in range(trainer.done // trainer.per_epoch, config.epochs):
            for loaded in trainer.batches(epoch):
                trainer.step(loaded)
                display.step(trainer.done)
                trainer.finish_step(asked)
            trainer.finish_epoch(epoch, display, asked)
    if trainer.average:
        trainer.average.copy_to_live()
    return FitResult(
        trainer.last_metrics,
        trainer.best,
        trainer.done,
        trainer.seconds,
        trainer.seconds_compiling,
        trainer.recorder.best_pace,
        trainer.feed.accumulate,
    )


class Trainer:
    def __init__(
        self,
        objective: Objective,
        store: Store,
        config: FitConfig,
        watchers: Sequence[Watcher],
        run: RunDirectory,
        processes: Processes,
    ):
        self.store, self.config, self.watchers = store, config, watchers
        self.run, self.processes = run, processes
        machine.set_deterministic(config.loop.deterministic)
        self.precision = machine.choose_precision(config.loop, store.device)
        self.objective = objective.to(store.device)
        self.model = self._parallel(objective)
        self.optimiser = make_optimiser(objective, config.optim)
        final = config.optim.final_weight_decay
        self.decay = None if final is None else WeightDecaySchedule(self.optimiser, config.optim.weight_decay, final)
        self.shards = self._shards()
        self.parameters = list(objective.parameters())
        self.scaler = self.precision.scaler()
        self.average = EMA(objective, config.optim.ema) if config.optim.ema else None
        self.feed = Feed(store, objective.plan, config, processes)
        self.per_epoch = len(self.feed.sizes)
        self.steps, self.done = self.per_epoch * config.epochs, 0
        self.lr = lr_schedule(config)
        check_batch_norm(objective, min(self.feed.sizes), processes, self.feed.accumulate, run.log.warning)
        if self.feed.accumulate > 1 and objective.compares_images:
            run.log.warning(f"An image is compared with those of its pass alone: {FEWER}.")
        self.checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
        self.saved_at = time.monotonic()
        self.began, self.seconds_before, self.seconds_compiling = time.perf_counter(), 0.0, 0.0
        self.recorder = Recorder(processes, self.precision.name != "fp16")
        self.best: Best | None = None
        self.last_metrics: dict[str, float] = {}
        self.renderer = Renderer(Normaliser(store.mean, store.std), dtype=self.precision.dtype)
        self.ahead: Ahead | None = None
        self.replay: Replay | None = None
        self.source: Iterator[LoadedBatch] = iter(())
        self.upcoming: LoadedBatch | None = None
        how = machine.choose_compile(config.loop, store.device, self.steps)
        self.compiling = how != "off"
        self.compiled_sizes: set[int] = set()
        if self.compiling:
            what = "the views" if how == "views" else "the network and the views"
            run.log.info(f"Compiling {what}: the first steps take up to a minute.")
            if self._can_be_recorded():
                self.replay = Replay(store.device, run.log.warning)
            for network in objective.networks():
                machine.compile_in_place(network, how, graphs=processes.world == 1 and not self.replay)
            self.renderer.functions = FunctionCache(machine.compile_function)

    def _can_be_recorded(self) -> bool:
        """In fp16 the host asks at every step whether gradients are finite; DDP's exchange is not recorded."""
        alone = self.store.device.type == "cuda" and self.processes.world == 1
        return alone and self.precision.name != "fp16" and self.objective.capturable

    def _parallel(self, objective: Objective) -> torch.nn.Module:
        if self.processes.world == 1:
            return objective
        if self.store.device.type == "cuda":
            torch.nn.SyncBatchNorm.convert_sync_batchnorm(objective)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, list(objective.sharded()))
        resting = objective.phases > 1
        return DistributedDataParallel(objective, broadcast_buffers=False, find_unused_parameters=resting)

    def _shards(self) -> Shards:
        shards = Shards(self.objective, self.optimiser, self.processes)
        if shards.rows and self.precision.name == "fp16":
            raise UserError(
                "A sharded classifier needs --loop.precision bf16 or fp32: in fp16 each process decides for itself "
                "which steps overflowed, and they would drift apart."
            )
        return shards

    # --- one step ------------------------------------------------------------------------------------------------

    def step(self, loaded: LoadedBatch) -> None:
        compiled = self._is_compiled(loaded)
        with nullcontext() if compiled or not self.compiling else machine.force_eager():
            if compiled and len(loaded.key.ids) not in self.compiled_sizes:
                self.compiled_sizes.add(len(loaded.key.ids))
                began = time.perf_counter()
                machine.compile_or_warn(lambda: self._step_that_fits(loaded), self._undo_compile, self.run.log.warning)
                self.seconds_compiling += time.perf_counter() - began
                if self.compiling and not self.ahead and self.store.device.type == "cuda":
                    self.ahead = Ahead(self.renderer, self.store.device, self.run.log.warning)
            else:
                self._step_that_fits(loaded)
        self.done += 1

    def _is_compiled(self, loaded: LoadedBatch) -> bool:
        """The last, incomplete batch of an epoch has its own graphs where it comes often enough."""
        whole = len(loaded.key.ids) == self.feed.sizes[0]
        return self.compiling and (whole or self.config.epochs >= machine.WORTH_ANOTHER_SHAPE)

    def _undo_compile(self) -> None:
        for network in self.objective.networks():
            machine.undo_compile(network)
        self.renderer.functions, self.ahead, self.replay, self.compiling = FunctionCache(), None, None, False

    def _step_that_fits(self, loaded: LoadedBatch) -> None:
        """Out of memory is answered by more, smaller passes at the same effective batch."""
        while True:
            if loaded.accumulate != self.feed.accumulate:  # loaded ahead, before the answer
                loaded = self.feed.load(loaded.key)
            try:
                return self._one_step(loaded.key, loaded.micro_batches)
            except torch.OutOfMemoryError as problem:
                smallest = max(len(part.view_batch.local) for part in loaded.micro_batches) == 1
                if smallest or self.processes.world > 1:
                    advice = "Use a smaller --batch, a smaller --size, or --optim.accumulate 2."
                    raise RunAborted(f"Out of memory. {advice}") from problem
            self.feed.accumulate *= 2
            passes, compares = self.feed.accumulate, self.objective.compares_images
            self.run.log.warning(
                f"Out of memory: each batch of {self.config.batch} is now trained in {passes} passes, at the same "
                f"effective batch. --optim.accumulate {passes} starts so."
                + (f" But an image is compared with those of its pass alone: {FEWER}." if compares else "")
            )
            if self.replay:
                self.replay.forget()
            if self.ahead:
                self.ahead.forget()
                self.upcoming = None if self.upcoming is None else self.feed.load(self.upcoming.key)
            machine.free_memory()

    def _one_step(self, key: BatchKey, parts: list[MicroBatch]) -> None:
        progress = Progress(self.done, self.steps, self.config.epochs)
        machine.mark_step()
        machine.seed_layers(make_key("layers", self.config.seed, self.done, self.processes.rank), self.store.device)
        set_lr(self.optimiser, self.lr(progress))
        if self.decay:
            self.decay.set(self.lr(progress), progress.fraction)
        if not self.objective.training:  # asking every module takes longer than a small step
            self.model.train()
        self.objective.before_step(progress)
        reset_step_counts(self.optimiser, self.objective.newly_active(progress))
        if self.replay:
            self.replay.enter(self.objective.phase)
        first = self.get_views(parts[0])
        playable = len(parts) == 1 and len(key.ids) in self.compiled_sizes
        terms = (playable and self._played(first, parts[0], progress)) or self._taken(first, parts, progress)
        if self.average:
            self.average.update()
        self.objective.after_step(progress)
        self.recorder.add(self.done, key.epoch, len(key.ids), terms)

    def _taken(self, first: list[Views], parts: list[MicroBatch], progress: Progress) -> dict[str, Tensor]:
        self.optimiser.zero_grad(set_to_none=True)
        terms: dict[str, Tensor] = {}
        for i, part in enumerate(parts):
            numbers = torch.from_numpy(self._numbers(part)).to(self.store.device, non_blocking=True)
            views, last = self.get_views(part) if i else first, i == len(parts) - 1
            for name, value in self._backward(views, numbers, part, progress, last).items():
                terms[name] = terms.get(name, 0) + part.weight * value
        self._paint_ahead()
        return {**terms, "grad_norm": self._update()}

    def _played(self, views: list[Views], part: MicroBatch, progress: Progress) -> dict[str, Tensor] | None:
        """What `_taken` does, if there is a recording of it."""

        def learn(views: list[Views], numbers: Tensor) -> dict[str, Tensor]:
            self.optimiser.zero_grad(set_to_none=True)
            return self._backward(views, numbers, part, progress, synchronise=True)

        numbers = self._numbers(part)
        recording = self.replay.recording(views, numbers, learn, self._update) if self.replay else None
        if recording is None:
            return None
        terms = recording.learn(numbers)
        self._paint_ahead()
        return {**terms, "grad_norm": recording.update()}

    def _numbers(self, part: MicroBatch) -> np.ndarray:
        """What the host tells the step: the ids of its images, and behind them its key."""
        return np.append(part.view_batch.own_instances, make_key("step", self.config.seed, self.done))

    def _paint_ahead(self) -> None:
        if self.ahead and self.upcoming and self._is_compiled(self.upcoming):
            self.ahead.prepare(self.upcoming)

    def batches(self, epoch: int) -> Iterator[LoadedBatch]:
        """The rest of an epoch. While a batch is trained, `upcoming` is the next, be it of the next epoch."""
        if self.upcoming is None or self.upcoming.key.epoch != epoch:
            self.source = self._batches_from(epoch, self.done)
            self.upcoming = next(self.source, None)
        while self.upcoming and self.upcoming.key.epoch == epoch:
            loaded, self.upcoming = self.upcoming, next(self.source, None)
            yield loaded

    def _batches_from(self, epoch: int, done: int) -> Iterator[LoadedBatch]:
        for later in range(epoch, self.config.epochs):
            yield from self.feed.batches(later, done)

    def get_views(self, part: MicroBatch) -> list[Views]:
        ready = self.ahead.get_views(part) if self.ahead else None
        return ready or part.view_batch.render(part.pixels, part.aspect, self.renderer)

    def _backward(
        self, views: list[Views], numbers: Tensor, part: MicroBatch, progress: Progress, synchronise: bool
    ) -> dict[str, Tensor]:
        parallel = isinstance(self.model, DistributedDataParallel)
        model: Any = self.model
        with model.no_sync() if parallel and not synchronise else nullcontext():
            with self.precision.autocast():
                batch = Batch(numbers[:-1], self.store.labels, key=numbers[-1], held=part.held)
                terms = model(views, batch, progress)
            total = self.objective.total(terms, progress)
            self.scaler.scale(total * part.weight).backward()
        return {"loss": total.detach(), **{name: value.detach() for name, value in terms.items()}}

    def _update(self) -> Tensor:
        optim = self.config.optim
        self.scaler.unscale_(self.optimiser)
        norm = clip_gradients(self.parameters, optim.clip, optim.clip_per, self.shards.complete_norms)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return norm

    # --- between steps -------------------------------------------------------------------------------------------

    def finish_step(self, asked: StopRequest) -> None:
        """Within an epoch: a signal, and where epochs are long a line of metrics and a checkpoint."""
        if self.done % self.per_epoch == 0:
            return  # the end of the epoch sees to it
        line_due = self.per_epoch > self.config.loop.log_every and self.done % self.config.loop.log_every == 0
        if self.processes.world == 1 or line_due:
            self._obey(asked)
        if line_due:
            epoch = self.done // self.per_epoch
            pace = self._read()
            self.run.log_metrics(self._line("step", self.done, epoch + 1, {**self.recorder.means(epoch), **pace}))
            self._save_if_due(10 * self.config.checkpoint.every_seconds)

    def finish_epoch(self, epoch: int, display: Display, asked: StopRequest) -> None:
        """Watchers, lines of metrics, a checkpoint, a signal. Short epochs are read several at a time."""
        finished, last = epoch + 1, epoch + 1 == self.config.epochs
        due = [watcher for watcher in self.watchers if last or finished % watcher.every == 0]
        if due or last or len(self.recorder.rows) >= self.config.loop.log_every:
            pace = self._read()
            try:
                watched = self._watch(due, finished)
            except RunAborted:
                self._write_epochs(pace, {})  # how it came to this
                raise
            self._write_epochs(pace, watched)
            line = self._line("epoch", self.done, finished, self.last_metrics)
            display.metrics(self.done, describe(line, self.config.epochs), last)
        self._save_if_due(0 if last else self.config.checkpoint.every_seconds)
        self.recorder.restart_clock()
        if not last:
            self._obey(asked)

    def _write_epochs(self, pace: dict[str, float], watched: dict[str, float]) -> None:
        """A line for each epoch that has none yet; what the watchers say belongs to the newest."""
        finished = self.done // self.per_epoch
        for epoch in self.recorder.epochs_before(finished):
            self.last_metrics = {
                **self.recorder.means(epoch),
                **pace,
                **(watched if epoch + 1 == finished else {}),
            }
            self.run.log_metrics(self._line("epoch", (epoch + 1) * self.per_epoch, epoch + 1, self.last_metrics))
            self.recorder.forget(epoch)

    def _line(self, kind: str, step: int, epoch: int, numbers: dict[str, float]) -> dict[str, Any]:
        lr = self.lr(Progress(step - 1, self.steps, self.config.epochs))
        return {"kind": kind, "step": step, "epoch": epoch, "lr": lr, **numbers}

    def _read(self) -> dict[str, float]:
        def advice() -> str:
            kept = self.checkpoints.all()
            name = f"checkpoints/{kept[-1].name}" if kept else "none was written yet"
            return (
                f"The last good checkpoint: {name}. A lower --optim.lr or a longer --optim.warmup-epochs often helps."
            )

        waited, self.feed.waited = self.feed.waited, 0.0
        return self.recorder.read(advice, waited)

    def _watch(self, watchers: list[Watcher], finished: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if not watchers:
            return metrics
        with self.average.swap_in() if self.average else nullcontext():
            self.objective.eval()
            terms = self.recorder.means(finished - 1)
            moment = Moment(self.objective, finished, self.config.epochs, self.done, terms)
            for watcher in watchers:
                metrics.update(watcher(moment))
            value = metrics.get(self.config.best or "")
            if value is not None and (self.best is None or value > self.best.value):
                weights = {k: v.detach().cpu().clone() for k, v in self.objective.state_dict().items()}
                self.best = Best(finished, value, weights)
        return metrics

    def _obey(self, asked: StopRequest) -> None:
        code = self.processes.any(asked.code)
        if code:
            self._save()
            raise Interrupted(f"Stopped at step {self.done} of {self.steps}; continue with --resume.", code)

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save_if_due(self, seconds: float) -> None:
        due = time.monotonic() - self.saved_at >= seconds
        if self.processes.any(int(due)):
            self._save()

    def _save(self) -> None:
        self._write_epochs(self._read(), {})  # also the check that what is saved is finite
        state = self.shards.gather_state(states.collect_state(self))
        if self.run.writes:
            self.checkpoints.save(self.done, state)
        self.saved_at = time.monotonic()

    def resume(self, start: Path | None = None) -> None:
        state = self.checkpoints.load_latest(self.store.device, self.run.log.warning)
        if state is not None:
            states.restore(self, state)
            self.run.drop_metrics_after(self.done)
            self.run.log.info(f"Resuming at step {self.done} of {self.steps}.")
            return
        if self.run.drop_metrics_after(-1) and not start:
            self.run.log.warning("No checkpoint can be read; the run starts again at its first step.")
        if start:
            new = states.continue_from(self, load_checkpoint(start, self.store.device, self.run.log.warning))
            self.run.log.info(f"Continuing at step {self.done} of {self.steps}; new in this run: {new}.")
