"""--seeds: one run per seed, their mean and standard deviation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.console import Log, is_main_process
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.ranges import check_ranges
from vitling.runs.group import VERBS, load_request, read_verb, store_request
from vitling.settings.config import ComparisonConfig, Config

FILE = "seeds.json"


def train_seeds(config: Config, train: Callable[[Config], dict[str, Any]]) -> dict[str, Any]:
    """Train in --out/seed0, seed1, ... and return what seeds.json contains.

    All runs hold out the same images: only the training is repeated.
    """
    from vitling.training.processes import init_processes

    if not config.out:
        raise UserError("No output directory given. Pass --out DIR, for example --out runs/first.")
    config = load_request(config, **({"seeds": config.seeds} if config.seeds > 1 else {}))  # the number may change
    check_ranges(config)
    out, log, results, summary = Path(config.out), Log(silent=not is_main_process()), [], {}
    if (out / "config.json").exists():
        raise UserError(f"{out} is a run of one seed. Pass a different --out for several seeds.")
    with init_processes(config.loop.device), store_request(config) as count_run:
        for i in range(config.seeds):
            seed = config.seed + i
            log.info(f"Seed {seed}, {i + 1} of {config.seeds}.")
            own: dict[str, Any] = {"seed": seed, "seeds": 1, "split_seed": config.hold_out_seed()}
            results.append(train(replace(config, **own, out=str(out / f"seed{seed}"))))
            count_run()
            summary = {"seeds": [result["seed"] for result in results], "scores": _summarise_all(results)}
            _warn_of_differences(results, log)
            if is_main_process():
                write_json(out / FILE, summary)
    return summary


def list_runs(path: str) -> list[Path]:
    """Return the run itself, or the runs of a folder that --seeds made."""
    folder = Path(path)
    if (folder / FILE).exists():
        return [folder / f"seed{seed}" for seed in read_json(folder / FILE)["seeds"]]
    if (verb := read_verb(path)) == VERBS[ComparisonConfig]:
        raise UserError(f"{path} compares methods. Name one of its runs, such as {folder / 'idmm'}.")
    if verb:
        raise UserError(f"{path} holds several runs, and none has finished. Continue them with --resume.")
    if not (folder / "config.json").exists():
        raise UserError(f"{path} is not a run: it has neither config.json nor {FILE}.")
    return [folder]


def _warn_of_differences(results: list[dict[str, Any]], log: Log) -> None:
    if len(methods := {result.get("method") for result in results}) > 1:
        log.warning(f"The seeds use different methods: {' and '.join(sorted(map(str, methods)))}. Pass --method.")
    if len(sizes := {size for result in results if (size := result.get("judged_at", result.get("size")))}) > 1:
        log.warning(f"The seeds are evaluated at {' and '.join(map(str, sorted(sizes)))} px. Pass --test-size.")


def _summarise_all(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise each figure by weights, split and metric: "last test top1"."""
    values: dict[str, list[float]] = {}
    for result in results:
        for name, value in _list_figures(result):
            values.setdefault(name, []).append(value)
    return {name: _summarise(found) for name, found in values.items() if len(found) == len(results)}


def _list_figures(result: dict[str, Any]) -> list[tuple[str, float]]:
    keys = ("top1", "mean_per_class", "mean_average_precision")
    pairs = [(w, split) for w in ("last", "best") for split in ("val", "test") if split in result.get(w, {})]
    labelled = [
        (f"{w} {split} {key}", result[w][split][key]) for w, split in pairs for key in keys if key in result[w][split]
    ]
    return labelled + [(name, value) for name, value in result["last"].items() if name.startswith("knn/")]


def _summarise(values: list[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "deviation": std, "values": values}
