"""The verbs. Each is one call into the library; torch is imported only when there is work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, NoReturn

from vitling.errors import DONE, INTERRUPTED, WRONG_INPUT, Interrupted, StoppedItself, UserError

SUMMARIES = {
    "demo": "the whole pipeline on the embedded digits, on the CPU, in two minutes",
    "inspect": "what is in a data set: counts, sizes, bad files, duplicates, leakage",
    "train": "train a network on your images",
    "evaluate": "how good a trained model is on a data set",
    "predict": "answers for images, folders, globs: table, CSV or JSON",
    "embed": "features of images as npz or parquet",
    "export": "a trained model as timm reads it (safetensors), or as ONNX",
    "list": "backbones: the tested networks",
}


def main(argv: list[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """The exit code: 0 done, 2 wrong input, 3 stopped itself, 143 and 130 saved after SIGTERM and SIGINT."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return DONE
    if argv[0] == "--version":
        from vitling import __version__

        print(__version__)
        return DONE
    if argv[0] not in SUMMARIES:
        return _complain(f"There is no verb {argv[0]!r}.{_nearest(argv[0])} `vitling --help` lists them.", WRONG_INPUT)
    try:
        _VERBS[argv[0]](argv[1:])
    except (UserError, StoppedItself) as problem:
        return _complain(str(problem), problem.exit_code)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        return _complain("Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # `vitling ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _parse(what: Any, verb: str, argv: list[str]) -> Any:
    import tyro

    return tyro.cli(what, args=argv, prog=f"vitling {verb}", description=None)


def _train(argv: list[str]) -> None:
    from vitling.recipes.config import TrainConfig

    config = _parse(TrainConfig, "train", argv)
    from vitling.recipes.train import train

    _show_result(train(config), config.out)


def _demo(argv: list[str]) -> None:
    def demo(out: str = "runs/demo", epochs: int = 40, seed: int = 0, overwrite: bool = False) -> None:
        """The whole pipeline on scikit-learn's 1,797 digits.

        Args:
            out: Directory of the run.
            epochs: Passes over the 1,350 training digits.
            seed: Another one gives another run.
            overwrite: Delete an earlier demo in --out.
        """
        from vitling.recipes.demo import demo as train_digits

        _show_result(train_digits(out, epochs, overwrite, seed), out)

    _parse(demo, "demo", argv)


def _inspect(argv: list[str]) -> None:
    from tyro.conf import Positional

    from vitling.data.config import DataConfig

    def inspect(source: Positional[str], out: str = "inspection.json", data: DataConfig = DataConfig()) -> None:  # noqa: B008
        """What is in a data set.

        Args:
            source: Your images: a folder, a CSV, a Parquet file, a tar, an npz.
            out: Where the findings are written as JSON.
            data: How the images are read.
        """
        from rich.console import Console

        from vitling.console import Log
        from vitling.data.inspection import inspect as look
        from vitling.files import write_json

        with Log().bar("Looking at the images", 0) as progress:
            found = look(source, data, on_progress=progress)
        found.render(Console())
        write_json(out, found.to_json())
        print(f"Written: {out}")

    _parse(inspect, "inspect", argv)


def _evaluate(argv: list[str]) -> None:
    from tyro.conf import Positional

    def evaluate(
        model: Positional[str],
        source: Positional[str],
        split: Literal["auto", "train", "val", "test"] = "auto",
        weights: Literal["last", "best"] = "last",
        out: str | None = None,
        allow_bad: bool = False,
        device: str = "auto",
    ) -> None:
        """How good a trained model is on a data set.

        Args:
            model: A run directory or a model folder.
            source: The data set.
            split: Which of its splits; auto takes test, else val, else everything.
            weights: Of the last epoch, or of the best on validation.
            out: Write everything, the confusion matrix too, as JSON.
            allow_bad: Go on although more than 1 % of the files cannot be read.
            device: auto, cpu, cuda.
        """
        from rich.console import Console

        from vitling.recipes.evaluate import evaluate as judge
        from vitling.recipes.summary import class_table, evaluation_table

        result = judge(model, source, split, weights, device, allow_bad, out)
        Console().print(evaluation_table(result), class_table(result["per_class"]))
        if out:
            print(f"Written: {out}")

    _parse(evaluate, "evaluate", argv)


def _predict(argv: list[str]) -> None:
    from tyro.conf import Positional, arg

    def predict(
        model: Positional[str],
        images: Positional[Annotated[tuple[str, ...], arg(metavar="IMAGES")]],
        top: int = 5,
        abstain: float | None = None,
        format: Literal["table", "csv", "json"] = "table",
        out: str | None = None,
        weights: Literal["last", "best"] = "last",
    ) -> None:
        """Answers for images, folders and globs.

        Args:
            model: A run directory or a model folder.
            images: Files, folders, globs.
            top: How many classes to name for each image.
            abstain: Below this probability the answer is (unsure).
            format: Table, CSV or JSON.
            out: A file instead of the terminal.
            weights: Of the last epoch, or of the best on validation.
        """
        from vitling.evaluation.predict import predict as answer

        answer(model, images, top, abstain, format, out, weights)

    _parse(predict, "predict", argv)


def _embed(argv: list[str]) -> None:
    from tyro.conf import Positional, arg

    def embed(
        model: Positional[str], images: Positional[Annotated[tuple[str, ...], arg(metavar="DATA")]], out: str
    ) -> None:
        """Features of a data set or of images.

        Args:
            model: A run directory or a model folder.
            images: A data set, or files and globs.
            out: A file that ends in .npz or .parquet.
        """
        from vitling.evaluation.embed import embed as write

        for name, reason in write(model, list(images), out).items():
            print(f"{name}: {reason}", file=sys.stderr)
        print(f"Written: {out}")

    _parse(embed, "embed", argv)


def _export(argv: list[str]) -> None:
    from tyro.conf import Positional

    def export(
        model: Positional[str],
        out: str,
        format: Literal["timm", "onnx"] = "timm",
        weights: Literal["last", "best"] = "last",
    ) -> None:
        """A trained model for other tools.

        Args:
            model: A run directory or a model folder.
            out: A folder (timm) or a file that ends in .onnx.
            format: timm: safetensors and config.json; onnx: one file, checked against torch.
            weights: Of the last epoch, or of the best on validation.
        """
        from vitling.evaluation.export import export as write

        difference = write(model, out, format, weights)
        print(f"Written: {out} (largest difference from torch: {difference:.1e})")

    _parse(export, "export", argv)


def _list(argv: list[str]) -> None:
    from tyro.conf import Positional

    def show(what: Positional[Literal["backbones"]]) -> None:
        """What there is.

        Args:
            what: backbones: the tested networks, with parameters and grid.
        """
        from rich.console import Console
        from rich.table import Table

        from vitling.backbones.names import table

        shown = Table("name", "parameters (no head)", "size", "grid", "width")
        for entry in table():
            grid = f"{entry.grid} x {entry.grid}"
            shown.add_row(entry.name, f"{entry.parameters:,}", str(entry.size), grid, str(entry.dim))
        Console().print(shown)

    _parse(show, "list", argv)


_VERBS: dict[str, Callable[[list[str]], None]] = {
    "demo": _demo,
    "inspect": _inspect,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "embed": _embed,
    "export": _export,
    "list": _list,
}


def _show_result(result: dict[str, Any], out: str) -> None:
    if int(os.environ.get("RANK", "0")) > 0:
        return
    from rich.console import Console

    from vitling.recipes.summary import result_table

    Console().print(result_table(result))
    print(f"Written: {out} (model/ to use, result.json, metrics.jsonl, log.txt)")


def _help() -> str:
    width = max(map(len, SUMMARIES))
    verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in SUMMARIES.items())
    return (
        "vitling: a folder of images into a trained vision transformer\n\n"
        f"usage: vitling VERB ...\n\n{verbs}\n\n"
        "`vitling VERB --help` shows the flags of a verb. A first run:\n"
        "  vitling train images/ --out runs/first\n"
        "  vitling predict runs/first new-images/"
    )


def _nearest(verb: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(verb, SUMMARIES, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _complain(message: str, code: int) -> int:
    print(f"Error: {message}", file=sys.stderr)
    return code
