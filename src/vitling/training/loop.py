"""The only loop: `fit` trains an objective, logs, calls watchers, saves checkpoints and resumes from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from vitling.data.store import Store
from vitling.errors import Interrupted, RunAborted
from vitling.formatting import format_count
from vitling.objectives.moments import Moment, Watcher
from vitling.objectives.objective import Objective
from vitling.shortage import stop_on_shortage
from vitling.training.checkpoint import Checkpoints
from vitling.training.checkpoint_content import check_content
from vitling.training.config import FitConfig
from vitling.training.continuing import load_checkpoint
from vitling.training.deadline import Deadline
from vitling.training.display import Display
from vitling.training.feed import LoadedBatch
from vitling.training.processes import Processes
from vitling.training.recorder import Recorder, describe
from vitling.training.replay import Terms
from vitling.training.result import Best, FitResult
from vitling.training.resume import State, collect_state, continue_from, restore
from vitling.training.rundir import RunDirectory
from vitling.training.signals import StopRequest, catch_signals
from vitling.training.trainer import Trainer

FEW_STEPS = 500  # fewer steps than this in a run of one batch per epoch deserve a warning


def fit(
    objective: Objective,
    store: Store,
    config: FitConfig,
    watchers: Sequence[Watcher] = (),
    *,
    run: RunDirectory,
    processes: Processes | None = None,
    start: Path | None = None,
    deadline: Deadline | None = None,
) -> FitResult:
    """Train from the run's latest checkpoint if it has one, else from `start`, another run's checkpoint, else from
    scratch. With a `deadline`, the number of epochs follows the pace."""
    config.check()
    trainer = Trainer(objective, store, config, processes or Processes(0, 1, store.device), run.log)
    loop = Loop(trainer, watchers, run, deadline)
    loop.resume(start)
    loop.warn_if_few_steps()
    loop.began = time.perf_counter()
    with catch_signals() as stop, stop_on_shortage(), Display(run.log, trainer.steps, trainer.done) as display:
        while trainer.done < trainer.steps:
            epoch = trainer.done // trainer.per_epoch
            for loaded in trainer.batches(epoch):
                loop.record(loaded, loop.step(loaded, stop))
                display.step(trainer.done)
                loop.finish_step(display, stop)
            loop.finish_epoch(epoch, display, stop)
        loop.stop_if_requested(stop)
    if trainer.ema:
        trainer.ema.copy_to_live()
    return FitResult(
        metrics=loop.last_metrics,
        best=loop.best,
        epochs=trainer.epochs,
        steps=trainer.done,
        seconds=loop.seconds,
        seconds_compiling=trainer.seconds_compiling,
        images_per_second=loop.recorder.best_pace,
        accumulate=trainer.feed.accumulate,
    )


class Loop:
    """Work between the steps: metrics, watchers, checkpoints and signals."""

    def __init__(
        self, trainer: Trainer, watchers: Sequence[Watcher], run: RunDirectory, deadline: Deadline | None = None
    ):
        self.trainer, self.watchers, self.run, self.deadline = trainer, watchers, run, deadline
        self.config, self.processes = trainer.config, trainer.processes
        self.recorder = Recorder(self.processes, checks_gradients=trainer.precision.name != "fp16")
        self.checkpoints = Checkpoints(run.checkpoints, self.config.checkpoint.keep)
        self.saved_at, self.saved_step = time.monotonic(), -1
        self.began, self.seconds_before = time.perf_counter(), 0.0
        self.best: Best | None = None
        self.last_metrics: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def warn_if_few_steps(self) -> None:
        images, steps = len(self.trainer.store), self.trainer.steps
        if self.config.batch >= images and steps < FEW_STEPS and not self.trainer.done:
            self.run.log.warning(
                f"--batch {self.config.batch} takes all {images:,} images at once: {format_count(steps, 'step')} in "
                "all, too few to learn from. Lower --batch or raise --epochs."
            )

    def step(self, loaded: LoadedBatch, stop: StopRequest) -> Terms:
        """Train a batch. Compiling takes minutes, so a signal ends it at once, and the step is repeated on resume."""
        if not self.trainer.compiles(loaded):
            return self.trainer.step(loaded)
        self.stop_if_requested(stop)
        done = self.trainer.done
        with stop.raise_at_once(f"Stopped while compiling, after step {done}; continue with --resume."):
            return self.trainer.step(loaded)

    # --- metrics and watchers --------------------------------------------------------------------------------------

    def record(self, loaded: LoadedBatch, terms: Terms) -> None:
        self.recorder.add(self.trainer.done - 1, loaded.key.epoch, len(loaded.key.ids), terms)

    def finish_step(self, display: Display, stop: StopRequest) -> None:
        """Within an epoch, obey signals and the deadline, and in long epochs log metrics and save."""
        done, per_epoch, log_every = self.trainer.done, self.trainer.per_epoch, self.config.loop.log_every
        if done % per_epoch == 0:
            return  # finish_epoch does all this
        self._follow_pace(display)
        line_due = per_epoch > log_every and done % log_every == 0
        if self.processes.world == 1 or line_due:
            self.stop_if_requested(stop)
        if line_due:
            epoch = done // per_epoch
            pace = self._read()
            self.run.log_metrics(self._line("step", done, epoch + 1, {**self.recorder.means(epoch), **pace}))
            self._save_if_due(10 * self.config.checkpoint.every_seconds)

    def finish_epoch(self, epoch: int, display: Display, stop: StopRequest) -> None:
        """Call watchers, log metrics, save, and obey signals and the deadline. Short epochs are logged several at a
        time."""
        finished, last = epoch + 1, epoch + 1 == self.trainer.epochs
        due = [watcher for watcher in self.watchers if last or self._is_due(watcher, finished)]
        if due or last or len(self.recorder.rows) >= self.config.loop.log_every:
            pace = self._read()
            self._check_weights()
            try:
                watched = self._watch(due, finished)
            except RunAborted:
                self._log_epochs(pace, {})  # the metrics that made a watcher stop the run
                raise
            self._log_epochs(pace, watched)
            line = self._line("epoch", self.trainer.done, finished, self.last_metrics)
            display.metrics(self.trainer.done, describe(line, self.trainer.epochs), last, line)
        self._follow_pace(display)  # before a checkpoint, which contains the length
        self._save_if_due(0 if last else self.config.checkpoint.every_seconds)
        self.recorder.restart_clock()
        self.stop_if_requested(stop)

    def _is_due(self, watcher: Watcher, finished: int) -> bool:
        """Return whether a watcher is due. A change of length leaves the number of calls per run about the same."""
        return finished % max(1, round(watcher.every * self.trainer.epochs / self.config.epochs)) == 0

    def _follow_pace(self, display: Display) -> None:
        """Change the number of epochs if the run would miss its deadline by far."""
        trainer, before = self.trainer, self.trainer.epochs
        epochs = self.deadline.choose_epochs(trainer) if self.deadline else None
        if epochs is not None:
            self._log_epochs(self._read(), {})  # with their own learning rates
            trainer.change_length(epochs)
            done = {"step": trainer.done, "epoch": -(-trainer.done // trainer.per_epoch), "epochs": epochs}
            self.run.log_metrics({"kind": "length", **done})
            display.change_length(trainer.steps)
            self.run.log.info(f"At the present pace, {format_count(epochs, 'epoch')} fit instead of {before:,}.")

    def _read(self) -> dict[str, float]:
        waited, self.trainer.feed.waited = self.trainer.feed.waited, 0.0
        return self.recorder.read(self._advise, waited)

    def _check_weights(self) -> None:
        """Abort if an update has left weights that are not finite, which the loss shows only one step later."""
        bad = self.trainer.find_not_finite()
        if self.processes.any(int(bad is not None)):
            raise RunAborted(
                f"After step {self.trainer.done}: {bad or 'a weight'} is not finite. {self._advise(self.trainer.done)}"
            )

    def _advise(self, step: int) -> str:
        if step == 0:
            is_exact = self.trainer.precision.name == "fp32"
            advice = "Check the images and the weights it starts from" if is_exact else "Try --loop.precision fp32"
            return f"No update has been made, so the learning rate is not the cause. {advice}."
        kept = self.checkpoints.all()
        name = f"checkpoints/{kept[-1].name}" if kept else "none yet"
        return f"Last good checkpoint: {name}. Try a lower --optim.lr or a longer --optim.warmup-epochs."

    def _watch(self, watchers: list[Watcher], finished: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if not watchers:
            return metrics
        objective = self.trainer.objective
        with self.trainer.ema.swap_in() if self.trainer.ema else nullcontext():
            objective.eval()
            terms = self.recorder.means(finished - 1)
            moment = Moment(objective, finished, self.trainer.epochs, self.trainer.done, terms)
            for watcher in watchers:
                metrics.update(watcher(moment))
            value = metrics.get(self.config.best or "")
            if value is not None and (self.best is None or value > self.best.value):
                weights = {k: v.detach().cpu().clone() for k, v in objective.state_dict().items()}
                self.best = Best(finished, value, weights)
        return metrics

    def _log_epochs(self, pace: dict[str, float], watched: dict[str, float]) -> None:
        """Log a line for each epoch that has none yet; the watchers' metrics belong to the newest."""
        per_epoch, finished = self.trainer.per_epoch, self.trainer.done // self.trainer.per_epoch
        for epoch in self.recorder.epochs_before(finished):
            newest = watched if epoch + 1 == finished else {}
            self.last_metrics = {**self.recorder.means(epoch), **pace, **newest}
            self.run.log_metrics(self._line("epoch", (epoch + 1) * per_epoch, epoch + 1, self.last_metrics))
            self.recorder.forget(epoch)

    def _line(self, kind: str, step: int, epoch: int, numbers: dict[str, float]) -> dict[str, Any]:
        lr = self.trainer.lr(self.trainer.progress(step - 1))
        return {"kind": kind, "step": step, "epoch": epoch, "lr": lr, **numbers}

    # --- checkpoints and signals -----------------------------------------------------------------------------------

    def resume(self, start: Path | None = None) -> None:
        trainer, log = self.trainer, self.run.log
        state = self.checkpoints.load_latest(trainer.store.device, log.warning, partial(check_content, trainer))
        if state is not None:
            restore(trainer, state)
            self._load_state(state)
            self.saved_step = trainer.done
            self.run.drop_metrics_after(trainer.done)
            log.info(f"Resuming at step {trainer.done} of {trainer.steps}.")
            return
        if self.run.drop_metrics_after(-1) and not start:
            log.warning("No checkpoint can be read; the run starts again at its first step.")
        if start:
            new = continue_from(trainer, load_checkpoint(start, trainer.store.device, log.warning))
            log.info(f"Continuing at step {trainer.done} of {trainer.steps}; new in this run: {new}.")

    def _save_if_due(self, seconds: float) -> None:
        due = time.monotonic() - self.saved_at >= seconds
        if self.processes.any(int(due)):
            self._save()

    def _save(self) -> None:
        self._log_epochs(self._read(), {})
        self._check_weights()
        state = collect_state(self.trainer) | self._collect_state()
        if self.run.writes:
            self.run.sync_metrics()
            self.checkpoints.save(self.trainer.done, state)
        self.saved_at, self.saved_step = time.monotonic(), self.trainer.done

    def stop_if_requested(self, stop: StopRequest) -> None:
        """Save, unless this step is saved already, and raise Interrupted if a signal has arrived."""
        code = self.processes.any(stop.code)
        if code:
            if self.saved_step != self.trainer.done:
                self._save()
            stop.code = 0  # obeyed
            done, steps = self.trainer.done, self.trainer.steps
            raise Interrupted(f"Stopped at step {done} of {steps}; continue with --resume.", code)

    def _collect_state(self) -> State:
        return {
            "seconds": self.seconds,
            "best": vars(self.best) if self.best else None,
            "last_metrics": self.last_metrics,
            "recorder": self.recorder.state_dict(),
        }

    def _load_state(self, state: State) -> None:
        self.seconds_before = state.get("seconds", 0.0)
        if best := state["best"]:
            self.best = Best(best["epoch"], best["value"], {k: v.cpu() for k, v in best["weights"].items()})
        self.last_metrics = state["last_metrics"]
        self.recorder.load_state_dict(state["recorder"])
