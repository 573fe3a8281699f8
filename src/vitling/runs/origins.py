"""Origins of weights: the run they come from, what it was trained on, and whether it used labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from vitling.errors import InvalidFile, UserError
from vitling.files import is_run
from vitling.loading import read_json
from vitling.methods import METHODS
from vitling.settings.config import PretrainConfig, RunConfig, TrainConfig
from vitling.settings.dense import DenseConfig
from vitling.settings.saved import load_config
from vitling.settings.stages import PRETRAIN_FOLDER
from vitling.settings.verbs import CONFIGS

_MAX_RUNS = 100  # that started from each other


def find_run(model_path: str) -> Path | None:
    """Return the run directory of a run or of its model/ or best/, or None."""
    if "\0" in model_path:  # from a config.json; no path has one
        return None
    path = Path(model_path)
    return next(filter(is_run, (path, path.resolve().parent)), None)


def is_same_data(one: str, other: str) -> bool:
    """Return whether two names of data mean the same, whatever their val. A copy elsewhere is not recognised."""
    first, second = strip_val(one)[0], strip_val(other)[0]
    return first == second or ("\0" not in first + second and Path(first).resolve() == Path(second).resolve())


def strip_val(source: str) -> tuple[str, str]:
    """Split the name of the data into itself without the option `val`, and the value of that."""
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    val = options.pop("val", "")
    return f"{name}?{urlencode(options)}" if options else name, val


def read_settings(run: Path) -> RunConfig:
    """Read the settings of a run; raise UserError for anything else."""
    path = run / "config.json"
    if not is_run(run):
        raise UserError(
            f"{run} is not a run. Name the directory of one; to make one for unchecked images, "
            f"vitling pretrain {run} --out runs/features"
        )
    values = read_json(path)
    kind = CONFIGS.get(values.get("verb", "") if isinstance(values, dict) else "")
    if kind is None or issubclass(kind, DenseConfig):
        raise UserError(f"{run} is not a run of train, pretrain or finetune.")
    return load_config(kind, values, path)


def find_label_free(run: Path, source: str, required: bool) -> Path | None:
    """Return the run whose weights were trained without labels of `source`: the first stage, or what finetune started
    from."""
    for origin, settings in _list_origins(run, with_stages=True):
        if _ignores_labels(settings) and not knows_labels(str(origin), source):
            return origin
    if required:
        raise UserError(
            f"The weights of {origin} were trained on the labels and have memorised the wrong ones. Pass --folds 5, "
            "which trains them again without each fifth of the images, or a run of `vitling pretrain`."
        )
    return None


def knows_labels(start: str | None, source: str) -> bool:
    """Return whether weights come from a run that learned the labels of `source`, or that itself started from one.

    Weights files without a run beside them are taken for weights of other data.
    """
    origins = _list_origins(find_run(start) if start else None)
    return any(not _ignores_labels(settings) and is_same_data(settings.source, source) for _, settings in origins)


def _list_origins(run: Path | None, with_stages: bool = False) -> Iterator[tuple[Path, RunConfig]]:
    """Yield a run and those it started from, the newest first; raise InvalidFile for a ring, as no training makes it.

    `with_stages`: go from the second stage of `train` to its first.
    """
    seen: list[Path] = []
    while run is not None:
        if run.resolve() in seen or len(seen) == _MAX_RUNS:
            problem = f"its chain of runs has a ring, or more than {_MAX_RUNS} runs"
            raise InvalidFile(run / "config.json", problem, "from_")
        seen.append(run.resolve())
        settings = read_settings(run)
        yield run, settings
        has_stage = with_stages and isinstance(settings, TrainConfig) and is_run(run / PRETRAIN_FOLDER)
        run = run / PRETRAIN_FOLDER if has_stage else _find_start(settings)


def _ignores_labels(settings: RunConfig) -> bool:
    return isinstance(settings, PretrainConfig) and METHODS[settings.method].labels == "ignored"


def _find_start(settings: RunConfig) -> Path | None:
    """Return the run that a run started from; None if it started from random weights or from a file."""
    named = settings.continue_from if isinstance(settings, PretrainConfig) else None
    start = named or settings.from_
    return find_run(start) if start else None
