"""One run for each of several seeds: the mean, and how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.console import Log, is_main_process
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.runs.asked import VERBS, as_asked, verb_of, written_down
from vitling.settings.checks import check
from vitling.settings.config import ComparisonConfig, Config

FILE = "seeds.json"


def over_seeds(config: Config, run: Callable[[Config], dict[str, Any]]) -> dict[str, Any]:
    """Runs in --out/seed0, seed1, ... and gives what is also in --out/seeds.json. All hold out the same images: it is
    the training that is repeated."""
    from vitling.training.processes import init_processes

    if not config.out:
        raise UserError("Where should the runs go? Pass --out DIR, for example --out runs/first.")
    config = as_asked(config, **({"seeds": config.seeds} if config.seeds > 1 else {}))  # more, or fewer, than before
    check(config)
    out, log, results, found = Path(config.out), Log(silent=not is_main_process()), [], {}
    if (out / "config.json").exists():
        raise UserError(f"{out} is a run of one seed. Name another --out for several.")
    with init_processes(config.loop.device), written_down(config) as one_is_done:
        for i in range(config.seeds):
            seed = config.seed + i
            log.info(f"Seed {seed}, {i + 1} of {config.seeds}.")
            own: dict[str, Any] = {"seed": seed, "seeds": 1, "split_seed": config.held_out_by()}
            results.append(run(replace(config, **own, out=str(out / f"seed{seed}"))))
            one_is_done()
            found = {"seeds": [result["seed"] for result in results], "scores": _scores(results)}
            if len(methods := {result.get("method") for result in results}) > 1:
                log.warning(
                    f"The seeds are not trained alike: {' and '.join(sorted(map(str, methods)))}. Pass --method."
                )
            if len(sizes := {size for result in results if (size := result.get("judged_at", result.get("size")))}) > 1:
                at = " and ".join(map(str, sorted(sizes)))
                log.warning(f"The seeds are not judged alike: at {at} px. Pass --test-size.")
            if is_main_process():
                write_json(out / FILE, found)
    return found


def _scores(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By weights, split and metric: "last test top1"."""
    found: dict[str, list[float]] = {}
    for result in results:
        for name, value in _numbers(result):
            found.setdefault(name, []).append(value)
    return {name: _summary(values) for name, values in found.items() if len(values) == len(results)}


def _numbers(result: dict[str, Any]) -> list[tuple[str, float]]:
    shown = ("top1", "mean_per_class", "mean_average_precision")
    judged = [(w, split) for w in ("last", "best") for split in ("val", "test") if split in result.get(w, {})]
    labelled = [
        (f"{w} {split} {key}", result[w][split][key]) for w, split in judged for key in shown if key in result[w][split]
    ]
    watched = [(name, value) for name, value in result["last"].items() if name.startswith("knn/")]
    return labelled + watched


def _summary(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "deviation": deviation, "values": values}


def runs_of(path: str) -> list[Path]:
    """The run itself, or those of a folder that --seeds made."""
    folder = Path(path)
    if (folder / FILE).exists():
        return [folder / f"seed{seed}" for seed in read_json(folder / FILE)["seeds"]]
    if (verb := verb_of(path)) == VERBS[ComparisonConfig]:
        raise UserError(f"{path} compares methods: name the runs in it, such as {folder / 'idmm'}.")
    if verb:
        raise UserError(f"{path} is of several runs, and not one of them has finished: --resume goes on with them.")
    if not (folder / "config.json").exists():
        raise UserError(f"{path} is not a run: it has neither config.json nor {FILE}.")
    return [folder]
