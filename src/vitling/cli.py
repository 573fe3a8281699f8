"""The command line: parse the flags of a command, call it, and turn errors into exit codes."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NoReturn

import tyro

from vitling.commands.flag_checks import check_flags
from vitling.commands.short_help import format_short_help
from vitling.commands.verbs import VERBS
from vitling.console import Console, echo, is_main_process
from vitling.data.cache import redirect_cache
from vitling.data.host import count_cores
from vitling.errors import (
    ABORTED,
    DONE,
    INTERRUPTED,
    WRONG_INPUT,
    Interrupted,
    RunAborted,
    UserError,
    reveal_interruptions,
)
from vitling.papers.datasets import register_readers
from vitling.settings.config import RunConfig
from vitling.settings.names import settings_in
from vitling.shortage import explain_shortage
from vitling.startup import mark_start
from vitling.version import __version__

_WITHOUT_TORCH = ("inspect", "compare", "reproduce", "list")  # they import it late or not at all


def main(argv: list[str] | None = None) -> NoReturn:
    mark_start()
    threading.excepthook = _print_thread_error
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """Run a command and return its exit code.

    0: done; 2: wrong input; 3: the run aborted; 143 and 130: saved after SIGTERM and SIGINT.
    """
    if sys.stdout is None or sys.stderr is None:  # closed, as some daemons start commands
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _print(_format_help())
    if argv[0] == "--version":
        return _print(__version__)
    if argv[0] == "_precompile" and len(argv) == 3:
        return _precompile(*argv[1:])
    if argv == ["_compile"]:
        return _compile()
    if argv[0] not in VERBS:
        return _fail(f"There is no command {argv[0]!r}.{_suggest(argv[0])} `vitling --help` lists all.", WRONG_INPUT)
    if _is_cwd_deleted():  # libraries of torch would end the process
        return _fail("The current directory no longer exists. Change to another one.", WRONG_INPUT)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal's encoding lacks
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads, torch's default, crawl on busy CPUs
    if count_cores() < (os.cpu_count() or 1):  # torch does not see the CPU limit of a container
        os.environ.setdefault("OMP_NUM_THREADS", str(count_cores()))
    try:
        if {"-h", "--help"} & set(argv[1:]):
            return _print(format_short_help(argv[0], VERBS[argv[0]]))
        work = _parse(argv[0], argv[1:])
        register_readers()
        redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")  # torch would make a folder in the temporary one
        redirect_cache("MPLCONFIGDIR", "matplotlib")  # and matplotlib in the home directory
        if argv[0] not in _WITHOUT_TORCH and "--watch" not in argv:
            _load_torch(work)
        with reveal_interruptions():
            work()
    except (UserError, RunAborted) as problem:
        return _fail(str(problem), problem.exit_code)
    except Interrupted as stop:
        echo(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        return _fail("Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # `vitling ... | head`
        _discard_output()
    except (OSError, MemoryError, RuntimeError) as problem:
        if reason := explain_shortage(problem):
            return _fail(reason, ABORTED)
        if str(problem).startswith("Symlink loop"):  # raised by Path.resolve
            return _fail(f"{problem}.", WRONG_INPUT)
        if not isinstance(problem, OSError):  # no permission, a directory in the way
            raise
        where = f"{problem.filename}: " if problem.filename is not None else ""
        return _fail(f"{where}{problem.strerror or problem}.", WRONG_INPUT)
    except SystemExit as leave:  # raised by tyro after --help or an unknown flag
        return leave.code if isinstance(leave.code, int) else WRONG_INPUT
    return DONE


def _is_cwd_deleted() -> bool:
    """Return whether the current directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _parse(verb: str, argv: list[str]) -> partial:
    """Bind a command to its arguments. It is called later: tyro would report its ValueErrors as wrong flags."""
    function = VERBS[verb]
    argv = ["--help" if word == "--help-all" else word for word in argv]
    check_flags(argv, function)

    def mark(value: Any) -> Any:
        return replace(value, explicit=settings_in(argv)) if isinstance(value, RunConfig) else value

    @wraps(function)
    def bind(*values: Any, **named: Any) -> partial:
        return partial(function, *map(mark, values), **{name: mark(value) for name, value in named.items()})

    markers = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    return tyro.cli(bind, args=argv, prog=f"vitling {verb}", config=markers)


def _precompile(config: str, memory: str) -> int:
    """Run the hidden command that `train` starts alongside its first stage."""
    from vitling.runs.precompile import run_in_background

    register_readers()
    run_in_background(config, memory)
    return DONE


def _compile() -> int:
    """Run the hidden command that trainings start, for the parts that they compile side by side."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA cannot be used in processes forked after its start
    from vitling.training.compile_server import run_server

    run_server()
    return DONE


def _load_torch(work: partial) -> None:
    """Import torch, which takes seconds, while a terminal shows what the command is waiting for. If the command trains
    and may compile, start the compiler's servers and workers before the other imports: they need seconds too."""
    console = Console(stderr=True)
    shown = console.is_terminal and is_main_process()
    config = next((value for value in (*work.args, *work.keywords.values()) if isinstance(value, RunConfig)), None)
    with console.status("Loading PyTorch") if shown else nullcontext():
        if config and not config.explain and config.loop.compile != "off" and config.loop.device != "cpu":
            if config.loop.compile in ("auto", "on"):
                from vitling.training.compile_server import start_servers

                start_servers()
            from vitling.training.compile_workers import start_workers

            start_workers()
        if shown:
            import timm  # noqa: F401


def _print_thread_error(error: threading.ExceptHookArgs) -> None:
    """Print an error that ended a thread, unless it is a shortage, which the main thread meets as well."""
    if error.exc_value is None or explain_shortage(error.exc_value) is None:
        threading.__excepthook__(error)


def _print(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard_output()
    except OSError as problem:
        return _fail(explain_shortage(problem) or f"{problem.strerror}.", ABORTED)
    return DONE


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _format_help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {_summary(verb)}" for name, verb in VERBS.items())
    return (
        "vitling: train a vision transformer on a folder of images, from scratch\n\n"
        f"usage: vitling COMMAND ...\n\n{verbs}\n\n"
        "`vitling COMMAND --help` shows the flags of a command. To begin:\n"
        "  vitling train images/ --out runs/first\n"
        "  vitling predict runs/first new-images/"
    )


def _summary(verb: Callable[..., None]) -> str:
    line = (verb.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[0].lower() + line[1:]


def _suggest(verb: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(verb, VERBS, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _fail(message: str, code: int) -> int:
    """Print the error in one line; names in it may contain line breaks."""
    echo(f"Error: {message}".replace("\n", "\\n"), file=sys.stderr)
    return code
