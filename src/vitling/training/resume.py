"""Resume: collect weights, optimiser and position for a checkpoint, restore them, or continue another run."""

from __future__ import annotations

from typing import Any

from vitling.errors import UserError
from vitling.training.continuing import list_parameter_names, load_weights, merge_moments
from vitling.training.optim import load_optimiser
from vitling.training.trainer import Trainer

State = dict[str, Any]


def collect_state(trainer: Trainer) -> State:
    return {
        "step": trainer.done,
        "length": {"epochs": trainer.epochs, "shift": trainer.shift} if trainer.length_changed else None,
        "data": trainer.store.identity,
        "accumulate": trainer.feed.accumulate,
        "objective": trainer.objective.state_dict(),
        "optimiser": trainer.optimiser.state_dict(),
        "parameters": list_parameter_names(trainer.objective, trainer.optimiser),
        "per_epoch": trainer.per_epoch,
        "batch_sizes": trainer.feed.sizes,
        "scaler": trainer.scaler.state_dict(),
        "average": trainer.ema.state_dict() if trainer.ema else None,
    }


def restore(trainer: Trainer, state: State) -> None:
    """Restore a run from its own checkpoint."""
    advice = "Put them back, or start again with --overwrite or a different --out."
    _check_images(trainer, state, "this run was started with", advice)
    trainer.feed.sizes = state.get("batch_sizes", trainer.feed.sizes)  # a compiled run may go on uncompiled
    if state["per_epoch"] != trainer.per_epoch:  # only in checkpoints without batch sizes
        raise UserError(
            f"This run was started with {state['per_epoch']} steps per epoch and would now have {trainer.per_epoch}. "
            "Resume it on the device and with the version of vitling that it was started with, or start again with "
            "--overwrite."
        )
    trainer.objective.load_state_dict(state["objective"])
    load_optimiser(trainer.optimiser, state["optimiser"])
    _restore_position(trainer, state)
    if length := state.get("length"):
        trainer.epochs, trainer.shift = length["epochs"], length["shift"]


def continue_from(trainer: Trainer, state: State) -> str:
    """Start from another run's weights, moments and step, so that schedules continue. Return what is new here."""
    _check_images(trainer, state, "that run was trained on", "Use the same DATA, --val and --seed.")
    if state["per_epoch"] != trainer.per_epoch:
        raise UserError(
            f"That run had {state['per_epoch']} steps per epoch, and this one has {trainer.per_epoch}. Pass the same "
            "--batch, --loop.drop-last and --loop.epoch-part, and --loop.even on or off: only compiled runs have whole "
            "batches by default."
        )
    if state["step"] >= trainer.steps:
        raise UserError(
            f"That run stopped at step {state['step']}, and this one ends at step {trainer.steps}. Raise --epochs."
        )
    if _list_kinds(state["optimiser"]) != _list_kinds(trainer.optimiser.state_dict()):
        raise UserError("That run had a different optimiser. Pass the same --optim.name.")
    new = load_weights(trainer.objective, state["objective"])
    names = list_parameter_names(trainer.objective, trainer.optimiser)
    load_optimiser(trainer.optimiser, merge_moments(trainer.optimiser, names, state))
    _restore_position(trainer, state)
    return ", ".join(dict.fromkeys(_largest_new_module(name, state["objective"]) for name in new)) or "nothing"


def _list_kinds(optimiser: State) -> set[str]:
    """List the settings that tell AdamW, SGD and Muon apart."""
    return {"betas", "momentum", "matrices"} & {name for group in optimiser["param_groups"] for name in group}


def _largest_new_module(name: str, before: State) -> str:
    """Return the largest module in `name` that is entirely new: teacher.regions if teacher existed before."""
    parts = name.split(".")
    prefixes = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return next(prefix for prefix in prefixes if not any(f"{old}.".startswith(f"{prefix}.") for old in before))


def _restore_position(trainer: Trainer, state: State) -> None:
    trainer.done, trainer.feed.accumulate = state["step"], state["accumulate"]
    trainer.scaler.load_state_dict(state["scaler"])
    if trainer.ema and state["average"]:
        trainer.ema.load_state_dict(state["average"])


def _check_images(trainer: Trainer, state: State, whose: str, advice: str) -> None:
    if state["data"] != trainer.store.identity:
        raise UserError(f"The training images differ from those {whose}, so it cannot be resumed exactly. {advice}")
