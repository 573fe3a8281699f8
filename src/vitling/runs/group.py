"""Several runs in one folder (--seeds, compare-methods), with the request stored next to them for --resume.

--seeds trains one run per seed and gives their mean and standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from vitling.console import Log, is_main_process
from vitling.errors import InvalidFile, UserError
from vitling.evaluation.intervals import summarise_values, wilson_interval
from vitling.files import check_not_link, claim_folder, is_run, list_names, write_file, write_json
from vitling.loading import read_bytes, read_record
from vitling.metric_names import DENSE_METRICS
from vitling.ranges import check_ranges
from vitling.records import iterate_scores
from vitling.settings.config import Config, RunConfig
from vitling.settings.saved import load_config, resume_config
from vitling.settings.verbs import verb_of
from vitling.training.processes import init_processes

REQUEST, SEEDS = "request.json", "seeds.json"
BASELINES = "baselines"  # folder within a run, with those of --baselines


class StoredRequest(TypedDict):
    """request.json of a folder of several runs."""

    verb: str
    settings: dict[str, Any]


class SeedsResult(TypedDict):
    """seeds.json."""

    seeds: Annotated[list[int], Meta(min_length=1)]


def train_seeds(config: Config, train: Callable[[Config], dict[str, Any]]) -> dict[str, Any]:
    """Train in --out/seed0, seed1, ... and return what seeds.json contains.

    All runs hold out the same images: only the training is repeated.
    """
    if not config.out:
        raise UserError("No output directory given. Pass --out DIR, for example --out runs/first.")
    config = load_request(config, **({"seeds": config.seeds} if config.seeds > 1 else {}))  # the number may change
    check_ranges(config)
    out, log, results, summary = Path(config.out), Log(silent=not is_main_process()), [], {}
    if is_run(out):
        raise UserError(f"{out} is a run of one seed. Pass a different --out for several seeds.")
    with init_processes(config.loop.device), store_request(config) as count_run:
        for i in range(config.seeds):
            seed = config.seed + i
            log.info(f"Seed {seed}, {i + 1} of {config.seeds}.")
            own: dict[str, Any] = {"seed": seed, "seeds": 1, "split_seed": config.hold_out_seed()}
            check_not_link(out / f"seed{seed}")
            results.append(train(replace(config, **own, out=str(out / f"seed{seed}"))))
            count_run()
            summary = {"seeds": [result["seed"] for result in results], "scores": _summarise_all(results)}
            _warn_of_differences(results, log)
            if is_main_process():
                write_json(out / SEEDS, summary)
    return summary


def list_runs(path: str) -> list[Path]:
    """Return the run itself, or the runs of a folder that --seeds made."""
    folder = Path(path)
    if (folder / SEEDS).exists():
        return [folder / f"seed{seed}" for seed in read_record(folder / SEEDS, SeedsResult)["seeds"]]
    if (verb := read_verb(path)) == "compare-methods":
        raise UserError(f"{path} compares methods. Name one of its runs, such as {folder / 'idmm'}.")
    if verb:
        raise UserError(f"{path} holds several runs, and none has finished. Continue them with --resume.")
    require_run(path, folder)
    return [folder]


def require_run(name: str, folder: Path) -> None:
    """Raise UserError if a folder is not a run: why not, and what to pass instead."""
    if is_run(folder):
        return
    if not folder.exists():
        raise UserError(f"{name} does not exist.")
    if folder.name in ("model", "best") and is_run(folder.parent):
        raise UserError(f"{name} is a model folder. Pass the run, {folder.parent}.")
    raise UserError(
        f"{name} is not a run: it lacks config.json or environment.json. Pass a run, or a folder made with --seeds."
    )


def list_finished(path: str) -> list[Path]:
    """Return the run with its baselines, or the finished runs of a folder made with --seeds or by compare-methods."""
    if read_verb(path) != "compare-methods":
        return [*list_runs(path), *_list_results(Path(path) / BASELINES)]
    if found := _list_results(Path(path)):
        return found
    raise UserError(f"No run in {path} has finished. Continue them with --resume.")


def _list_results(folder: Path) -> list[Path]:
    return sorted(result.parent for result in folder.glob("*/result.json"))


def _warn_of_differences(results: list[dict[str, Any]], log: Log) -> None:
    if len(methods := {result.get("method") for result in results}) > 1:
        log.warning(f"The seeds use different methods: {' and '.join(sorted(map(str, methods)))}. Pass --method.")
    if len(sizes := {size for result in results if (size := result.get("evaluated_at", result.get("size")))}) > 1:
        log.warning(f"The seeds are evaluated at {' and '.join(map(str, sorted(sizes)))} px. Pass --test-size.")


def _summarise_all(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise each figure by weights, split and metric: "last test top1"."""
    values: dict[str, list[float]] = {}
    images: dict[str, int | None] = {}
    for result in results:
        for name, value, count in _list_figures(result):
            values.setdefault(name, []).append(value)
            images[name] = count
    return {name: _summarise(found, images[name]) for name, found in values.items() if len(found) == len(results)}


def _list_figures(result: dict[str, Any]) -> list[tuple[str, float, int | None]]:
    """List names and figures, with the number of images for accuracies: they have an interval."""
    keys = ("top1", "mean_per_class", "mean_average_precision", *DENSE_METRICS)
    labelled = [
        (f"{weights} {split} {key}", scores[key], scores["n"] if key == "top1" else None)
        for weights, split, scores in iterate_scores(result)
        for key in keys
        if key in scores
    ]
    labelled += [(name, value, None) for name, value in result["last"].items() if name.startswith("knn/")]
    return [row for row in labelled if isinstance(row[1], float | int) and math.isfinite(row[1])]  # defined ones


def _summarise(values: list[float], images: int | None) -> dict[str, Any]:
    """Summarise a figure of all seeds. The interval is that of the mean on so many images: all seeds have the same."""
    found = summarise_values(values)
    return found | ({} if images is None else {"images": images, "interval": wilson_interval(found["mean"], images)})


def resumes_group(config: RunConfig) -> bool:
    """Return whether --resume names a folder of several runs of the same command."""
    return config.resume and bool(config.out) and read_verb(config.out) == verb_of(config)


def load_request(config: Config, **changeable: Any) -> Config:
    """Return the stored request of a resumed group; raise UserError if settings not in `changeable` differ."""
    if not resumes_group(config):
        return config
    before = load_config(type(config), _read_request(config.out)["settings"], Path(config.out) / REQUEST)
    return resume_config(replace(config, **changeable), replace(before, **changeable))


@contextmanager
def store_request(config: RunConfig) -> Iterator[Callable[[], None]]:
    """Claim the folder and store the request while the runs train; yield a function to call after each of them.

    If the first run is rejected before it begins, the folder is left as it was.
    """
    if not is_main_process():
        yield lambda: None
        return
    out, done, rejected = Path(config.out), [], False
    _check_folder(config)
    release = claim_folder(out)
    before = read_bytes(out / REQUEST) if (out / REQUEST).exists() else None
    names = list_names(out)
    try:
        _check_folder(config)  # again: until the claim, another process may have used the folder
        write_json(out / REQUEST, {"verb": verb_of(config), "settings": asdict(config)})
        yield lambda: done.append(True)
    except UserError:
        rejected = not done and set(list_names(out)) <= {*names, REQUEST}
        if rejected and before is not None:
            write_file(out / REQUEST, before)
        elif rejected:
            (out / REQUEST).unlink(missing_ok=True)
        raise
    finally:
        release()
        if rejected and before is None:
            with suppress(OSError):  # something else is in it
                out.rmdir()


def require_resume_or_overwrite(config: RunConfig) -> None:
    """Raise UserError if --out is in use and neither --resume nor --overwrite was passed."""
    if not (config.resume or config.overwrite):
        raise UserError(f"{config.out} is not empty. Pass --resume, --overwrite, or a different --out.")


def read_verb(out: str) -> str:
    """Return the command that made a folder of several runs; "" for other folders."""
    return _read_request(out)["verb"] if (Path(out) / REQUEST).exists() else ""


def _read_request(out: str) -> dict[str, Any]:
    try:
        return read_record(Path(out) / REQUEST, StoredRequest)
    except InvalidFile as problem:
        raise UserError(f"{problem} Delete it, and pass all flags again.") from None


def _check_folder(config: RunConfig) -> None:
    before, verb = read_verb(config.out), verb_of(config)
    if before and before != verb:
        raise UserError(f"{config.out} holds runs of vitling {before}. Pass a different --out for vitling {verb}.")
    if before:
        require_resume_or_overwrite(config)
