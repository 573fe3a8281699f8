"""The command line: which verbs there are, how their flags are read, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NoReturn

import tyro
from rich.console import Console

from vitling.commands.judging import compare, evaluate, explain, suite
from vitling.commands.looking import inspect, list_, reproduce, show_views
from vitling.commands.training import compare_methods, demo, finetune, pretrain, train
from vitling.commands.using import embed, export, predict
from vitling.console import is_main_process
from vitling.data.host import count_cores
from vitling.errors import DONE, INTERRUPTED, WRONG_INPUT, Interrupted, RunAborted, UserError
from vitling.papers import datasets as _  # noqa: F401  (registers the readers of the papers' data sets)
from vitling.papers.suite.config import SuiteConfig
from vitling.settings.config import ComparisonConfig, FinetuneConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.evaluation import EvaluationConfig
from vitling.settings.names import named_in

_VERBS: dict[str, Callable[..., None]] = {
    verb.__name__.rstrip("_").replace("_", "-"): verb
    for verb in (
        demo,
        inspect,
        train,
        pretrain,
        finetune,
        compare_methods,
        compare,
        evaluate,
        suite,
        predict,
        embed,
        export,
        explain,
        show_views,
        reproduce,
        list_,
    )
}
_CONFIGURED: dict[Callable[..., None], type] = {
    train: TrainConfig,
    pretrain: PretrainConfig,
    finetune: FinetuneConfig,
    compare_methods: ComparisonConfig,
    evaluate: EvaluationConfig,
    suite: SuiteConfig,
}
_QUICK = ("inspect", "compare", "reproduce", "list")  # they need no torch, or not at once


def main(argv: list[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """The exit code: 0 done, 2 wrong input, 3 stopped itself, 143 and 130 saved after SIGTERM and SIGINT."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _print(_help())
    if argv[0] == "--version":
        from vitling import __version__

        return _print(__version__)
    if argv[0] not in _VERBS:
        return _complain(f"There is no verb {argv[0]!r}.{_nearest(argv[0])} `vitling --help` lists them.", WRONG_INPUT)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads, which spin by default, crawl on busy CPUs
    if count_cores() < (
        os.cpu_count() or 1
    ):  # as in a container that may use the time of some alone, which torch cannot see
        os.environ.setdefault("OMP_NUM_THREADS", str(count_cores()))
    try:
        work = _parsed(argv[0], argv[1:])
        if argv[0] not in _QUICK:
            _load()
        work()
    except (UserError, RunAborted) as problem:
        return _complain(str(problem), problem.exit_code)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        return _complain("Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # `vitling ... | head`
        _discard_output()
    except OSError as problem:  # no permission, no space, a directory in the way
        where = f"{problem.filename}: " if problem.filename is not None else ""
        return _complain(f"{where}{problem.strerror or problem}.", WRONG_INPUT)
    except SystemExit as leave:  # tyro, after --help or a flag that it does not know
        return leave.code if isinstance(leave.code, int) else WRONG_INPUT
    return DONE


def _parsed(verb: str, argv: list[str]) -> Callable[[], None]:
    """The verb with its arguments, still to be called: tyro would take a ValueError of the work for one of its own."""
    function, markers = _VERBS[verb], (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    parse = partial(tyro.cli, args=argv, prog=f"vitling {verb}", config=markers)
    if function in _CONFIGURED:  # their flags are those of the config, without a prefix
        config = parse(_CONFIGURED[function])
        if isinstance(config, RunConfig):
            config.said = named_in(argv)
        return partial(function, config)

    @wraps(function)
    def later(*values: Any, **named: Any) -> Callable[[], None]:
        return partial(function, *values, **named)

    return parse(later)


def _load() -> None:
    """torch takes seconds to import: somebody who looks on is told what the command is at."""
    console = Console(stderr=True)
    if console.is_terminal and is_main_process():
        with console.status("Loading PyTorch"):
            import timm  # noqa: F401


def _print(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard_output()
    return DONE


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(map(len, _VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {_summary(verb)}" for name, verb in _VERBS.items())
    return (
        "vitling: a folder of images into a trained vision transformer\n\n"
        f"usage: vitling VERB ...\n\n{verbs}\n\n"
        "`vitling VERB --help` shows the flags of a verb. A first run:\n"
        "  vitling train images/ --out runs/first\n"
        "  vitling predict runs/first new-images/"
    )


def _summary(verb: Callable[..., None]) -> str:
    line = (verb.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[0].lower() + line[1:]


def _nearest(verb: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(verb, _VERBS, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _complain(message: str, code: int) -> int:
    print(f"Error: {message}", file=sys.stderr)
    return code
