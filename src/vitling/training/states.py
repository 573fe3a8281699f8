"""What a checkpoint holds of a run, and how a run takes it up again: its own, or that of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitling.errors import UserError
from vitling.training.continuing import list_parameter_names, load_weights, merge_moments
from vitling.training.optim import load_optimiser
from vitling.training.result import Best

if TYPE_CHECKING:
    from vitling.training.loop import Trainer

State = dict[str, Any]


def collect_state(trainer: Trainer) -> State:
    best, average = trainer.best, trainer.average
    return {
        "step": trainer.done,
        "seconds": trainer.seconds,
        "data": trainer.store.identity,
        "accumulate": trainer.feed.accumulate,
        "objective": trainer.objective.state_dict(),
        "optimiser": trainer.optimiser.state_dict(),
        "parameters": list_parameter_names(trainer.objective, trainer.optimiser),
        "per_epoch": trainer.per_epoch,
        "scaler": trainer.scaler.state_dict(),
        "average": average.state_dict() if average else None,
        "best": {"epoch": best.epoch, "value": best.value, "weights": best.weights} if best else None,
        "last_metrics": trainer.last_metrics,
        "recorder": trainer.recorder.state_dict(),
    }


def restore(trainer: Trainer, state: State) -> None:
    """Where the run itself stood."""
    advice = "Put them back, or start again with --overwrite or another --out."
    _check_images(trainer, state, "this run was started with", advice)
    state = trainer.shards.slice_state(state)
    trainer.seconds_before = state.get("seconds", 0.0)
    trainer.objective.load_state_dict(state["objective"])
    load_optimiser(trainer.optimiser, state["optimiser"])
    _take_place(trainer, state)
    if best := state["best"]:
        trainer.best = Best(best["epoch"], best["value"], {k: v.cpu() for k, v in best["weights"].items()})
    trainer.last_metrics = state["last_metrics"]
    trainer.recorder.load_state_dict(state["recorder"])


def continue_from(trainer: Trainer, state: State) -> str:
    """Where another run stood, with its weights and moments: schedules continue. Gives what is new in this one."""
    _check_images(trainer, state, "that run was trained on", "Name the same DATA, with the same --val and --seed.")
    if state["per_epoch"] != trainer.per_epoch or state["step"] >= trainer.steps:
        raise UserError(
            f"That run stood at step {state['step']}, with {state['per_epoch']} steps an epoch. This one must have as "
            f"many an epoch and more in all; it has {trainer.per_epoch} and {trainer.steps}: --batch and --epochs."
        )
    new = load_weights(trainer.objective, state["objective"])
    names = list_parameter_names(trainer.objective, trainer.optimiser)
    load_optimiser(trainer.optimiser, merge_moments(trainer.optimiser, names, state))
    _take_place(trainer, state)
    return ", ".join(dict.fromkeys(_whole(name, state["objective"]) for name in new)) or "nothing"


def _whole(name: str, before: State) -> str:
    """The largest part with this name in it of which nothing was there before: teacher.regions, not teacher."""
    parts = name.split(".")
    prefixes = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return next(part for part in prefixes if not any(f"{old}.".startswith(f"{part}.") for old in before))


def _take_place(trainer: Trainer, state: State) -> None:
    trainer.done, trainer.feed.accumulate = state["step"], state["accumulate"]
    trainer.scaler.load_state_dict(state["scaler"])
    if trainer.average and state["average"]:
        trainer.average.load_state_dict(state["average"])


def _check_images(trainer: Trainer, state: State, whose: str, advice: str) -> None:
    if state["data"] != trainer.store.identity:
        raise UserError(f"The training images are not those that {whose}, so it cannot go on exactly. {advice}")
