"""The verbs. Each is one call into the library; torch is imported only when there is work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial, wraps
from typing import Annotated, Any, Literal, NoReturn

import tyro
from tyro.conf import Positional, arg

from vitling.data.config import DataConfig
from vitling.errors import DONE, INTERRUPTED, WRONG_INPUT, Interrupted, StoppedItself, UserError
from vitling.evaluation.config import Probe, ProbesConfig
from vitling.recipes.config import ComparisonConfig, FinetuneConfig, PretrainConfig, TrainConfig
from vitling.recipes.suite_config import SuiteConfig

# Metavars for the help; everything else about a flag is in its verb's signature and docstring.
Data = Annotated[str, Positional, arg(metavar="DATA")]
Run = Annotated[str, Positional, arg(metavar="RUN")]
Images = Annotated[tuple[str, ...], Positional, arg(metavar="IMAGES ...", help_behavior_hint="(required)")]
Out = Annotated[str, arg(metavar="PATH")]
OptionalOut = Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")]
Weights = Literal["last", "best"]


def demo(
    out: Out = "runs/demo",
    epochs: int = 200,
    pretrain_epochs: int = 64,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """What pre-training without labels gives on the embedded digits, on the CPU, in under three minutes.

    Scikit-learn's 1,797 digits: real scans, 8 x 8 pixels. A random start against IDMM, both with 100 labels.

    Args:
        out: Directory of the runs.
        epochs: Passes over the 100 labelled digits.
        pretrain_epochs: Passes over all 1,498 training digits, without labels.
        seed: Another one draws other labels and gives other runs.
        resume: Continue the demo in --out where it was stopped.
        overwrite: Delete an earlier demo in --out.
    """
    from vitling.recipes.demo import demo as digits
    from vitling.recipes.summary import show_demo

    show_demo(digits(out, epochs, pretrain_epochs, seed, resume, overwrite), out)


def inspect(
    data_set: Data,
    out: Out = "inspection.json",
    store_loss: Annotated[int | None, arg(metavar="PX", help_behavior_hint="")] = None,
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """What is in a data set: counts, sizes, bad files, duplicates, leakage.

    DATA is what `vitling train` takes.

    Args:
        data_set: Your images: a folder, a CSV, a Parquet file, a tar, an npz.
        out: Where the findings are written, as JSON.
        store_loss: Also measure what views of this size lose by the pixel store, for several sizes of the store.
        data: How the images are read.
    """
    from rich.console import Console

    from vitling.console import Log
    from vitling.data.inspection import inspect as look
    from vitling.files import check_writable, write_json

    check_writable(out)
    if store_loss is not None and store_loss < 8:
        raise UserError(f"--store-loss {store_loss}: the size of the views in pixels, such as 224.")
    with Log().bar("Looking at the images") as progress:
        found = look(data_set, data, on_progress=progress)
    found.render(Console())
    findings = found.to_json()
    if store_loss is not None:
        from vitling.recipes.store_loss import store_loss as measure
        from vitling.recipes.summary import show_store_loss

        losses = measure(data_set, store_loss, config=data)
        show_store_loss(losses, store_loss)
        findings["store_loss"] = [asdict(loss) for loss in losses]
    write_json(out, findings)
    print(f"Written: {out}")


def train(config: TrainConfig) -> None:
    """Train a network on your images, from scratch: first on the images alone, then on their labels."""
    from vitling.recipes.train import train as run

    if not _over_seeds(config, run):
        _show_result(run(config), config.out)


def pretrain(config: PretrainConfig) -> None:
    """Pre-train a network on your images; only --method supervised and supcon use labels."""
    from vitling.recipes.pretrain import pretrain as run
    from vitling.recipes.summary import show_pretraining

    if _over_seeds(config, run):
        return
    result = run(config)
    if int(os.environ.get("RANK", "0")) == 0:
        show_pretraining(result, config)


def finetune(config: FinetuneConfig) -> None:
    """Fine-tune a pre-trained network on your labelled images."""
    from vitling.recipes.finetune import finetune as run

    if not _over_seeds(config, run):
        _show_result(run(config), config.out)


def compare_methods(config: ComparisonConfig) -> None:
    """Give each method of pre-training the same time on your images, side by side."""
    from vitling.recipes.compare_methods import compare_methods as run
    from vitling.recipes.summary import show_comparison

    result = run(config)
    if int(os.environ.get("RANK", "0")) == 0:
        show_comparison(result, config.out)


def compare(
    runs: Annotated[tuple[str, ...], Positional, arg(metavar="RUN RUN ...", help_behavior_hint="(required)")],
    split: Literal["auto", "val", "test"] = "auto",
    weights: Weights = "last",
    out: OptionalOut = None,
) -> None:
    """Which run is better, and whether the difference is real.

    A RUN is a run directory, or a folder that --seeds made: its runs count as one, with a mean and a deviation.

    Args:
        runs: Two or more, trained on the same classes.
        split: The images to compare by; auto takes test where all have it, else val.
        weights: Of the last epoch, or of the best on validation.
        out: Write the comparison as JSON.
    """
    from vitling.recipes.compare import compare as side_by_side
    from vitling.recipes.summary import show_differences

    show_differences(side_by_side(runs, split, weights, out))
    if out:
        print(f"Written: {out}")


def evaluate(
    run: Run,
    data_set: Data,
    split: Literal["auto", "train", "val", "test"] = "auto",
    weights: Weights = "last",
    out: OptionalOut = None,
    allow_bad: bool = False,
    device: str = "auto",
    with_: Annotated[
        tuple[Probe, ...], arg(name="with", metavar="{knn,linear,logistic,few-shot} ...", help_behavior_hint="")
    ] = (),
    probes: Annotated[ProbesConfig, arg(name="")] = ProbesConfig(),  # noqa: B008
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """How good a trained model, or a probe of its features, is on a data set.

    Without --with the model's own answers are judged. With it, classifiers are trained on its features: any classes
    will do, and the model need not have learnt any.

    Args:
        run: A run directory or a model folder.
        data_set: Labelled images; without --with the class names must be those of the model.
        split: Which of the data's splits; auto takes test, else val, else everything (with --with: images held out).
        weights: Of the last epoch, or of the best on validation.
        out: Write everything, the confusion matrix too, as JSON.
        allow_bad: Go on although more than 1 % of the files cannot be read.
        device: auto, cpu, cuda.
        with_: Probes of the frozen features, trained on train, chosen on validation, judged on the split.
        probes: What the probes of --with are told.
        data: How the images are read; channels and bits are the model's.
    """
    from vitling.recipes.summary import show_evaluation, show_probes

    if with_:
        from vitling.recipes.probes import evaluate_frozen

        probed = tuple(dict.fromkeys(with_))
        show_probes(evaluate_frozen(run, data_set, probed, split, weights, device, allow_bad, out, data, probes))
    elif probes != ProbesConfig():
        raise UserError("--metric, --val, --seed, --knn, --linear, --logistic and --few-shot belong to --with PROBES.")
    else:
        from vitling.recipes.evaluate import evaluate as judge

        show_evaluation(judge(run, data_set, split, weights, device, allow_bad, out, data))
    if out:
        print(f"Written: {out}")


def suite(config: SuiteConfig) -> None:
    """Evaluate frozen networks on the papers' data sets: those that are there."""
    from vitling.recipes.suite import suite as run
    from vitling.recipes.summary import show_suite

    outcome = run(config)
    show_suite(outcome.summary)
    print(f"Written: {outcome.path}")
    if outcome.failed:
        raise StoppedItself(f"{len(outcome.failed)} failed: {'; '.join(outcome.failed)}.")


def predict(
    run: Run,
    images: Images,
    top: int = 5,
    abstain: Annotated[float | None, arg(help_behavior_hint="")] = None,
    format: Literal["table", "csv", "json"] = "table",
    out: OptionalOut = None,
    weights: Weights = "last",
) -> None:
    """Answers for images, folders, globs: table, CSV or JSON.

    Args:
        run: A run directory or a model folder.
        images: Files, folders, globs.
        top: How many classes to name for each image.
        abstain: Below this probability the answer is (unsure).
        format: Table, CSV or JSON.
        out: A file instead of the terminal.
        weights: Of the last epoch, or of the best on validation.
    """
    from vitling.evaluation.predict import predict as answer

    answer(run, images, top, abstain, format, out, weights)
    if out:
        print(f"Written: {out}")


def embed(
    run: Run,
    images: Images,
    out: Out,
    weights: Weights = "last",
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """Features of images, or of a whole data set, as npz or parquet.

    Args:
        run: A run directory or a model folder.
        images: One data set (all its splits, with labels), or files and globs.
        out: A file that ends in .npz or .parquet.
        weights: Of the last epoch, or of the best on validation.
        data: How the images are read; channels and bits are the model's.
    """
    from vitling.evaluation.embed import embed as write
    from vitling.recipes.evaluate import log_of_openings

    for name, reason in write(run, images, out, weights, log_of_openings(run), data).items():
        print(f"Left out: {name}: {reason}", file=sys.stderr)
    print(f"Written: {out}")


def export(run: Run, out: Out, format: Literal["timm", "onnx"] = "timm", weights: Weights = "last") -> None:
    """A trained model as timm reads it (safetensors), or as ONNX.

    Args:
        run: A run directory or a model folder.
        out: A folder (timm) or a file that ends in .onnx.
        format: timm: safetensors and config.json; onnx: one file, checked against torch.
        weights: Of the last epoch, or of the best on validation.
    """
    from vitling.evaluation.export import export as write

    difference = write(run, out, format, weights)
    print(f"Written: {out} (largest difference from torch on random images: {difference:.1e})")


def explain(
    run: Run,
    image: Annotated[str, Positional, arg(metavar="IMAGE")],
    image2: Annotated[str | None, Positional, arg(metavar="[IMAGE2]", help_behavior_hint="")] = None,
    out: Annotated[str, arg(metavar="DIR")] = "explained",
    query: str = "object",
    grey: Literal["paper", "released"] = "paper",
    seed: int = 0,
    weights: Weights = "last",
) -> None:
    """What a network finds alike in an image and its mirrored view, or a second image, and what its heads look at.

    A folder as IMAGE: how well all its images are found again in their mirrored views.

    Args:
        run: A run directory or a model folder.
        image: An image, or a folder of them.
        image2: A second image; without it, the first one mirrored and recoloured.
        out: Folder of the pictures and of explained.json.
        query: Where the heads look from: object (the region most like the whole image), background (the least),
            or row and column, such as 3,5.
        grey: How the mirrored view loses its colours: paper, one in five; released, always, as in EsViT's code.
        seed: Another one recolours differently.
        weights: Of the last epoch, or of the best on validation.
    """
    from vitling.evaluation.explain import explain as draw
    from vitling.recipes.summary import show_explained

    show_explained(draw(run, image, image2, out, query, grey, seed, weights))
    print(f"Written: {out}")


def list_(
    what: Annotated[
        Literal["methods", "backbones", "datasets", "policies", "recipes", "tables"],
        Positional,
        arg(metavar="{methods,backbones,datasets,policies,recipes,tables}"),
    ],
) -> None:
    """What there is: methods, backbones, datasets, policies, recipes, tables.

    Args:
        what: methods: of pre-training. backbones: the tested networks, with parameters and grid. datasets: the papers',
            and where they come from. policies: the papers' views. recipes: runs as functions. tables: what `vitling
            reproduce` can run, and the data that it wants.
    """
    from rich.console import Console

    from vitling.recipes import summary

    tables = {
        "methods": summary.method_table,
        "backbones": summary.backbone_table,
        "datasets": summary.dataset_table,
        "policies": summary.policy_table,
        "recipes": summary.recipe_table,
        "tables": summary.study_table,
    }
    Console().print(tables[what]())


def reproduce(
    name: Annotated[str, Positional, arg(metavar="NAME")],
    data: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    seeds: int = 1,
    only: Annotated[tuple[str, ...], arg(metavar="PART ...", help_behavior_hint="")] = (),
    minutes: Annotated[float | None, arg(metavar="M", help_behavior_hint="")] = None,
    epochs: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    runs_out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="(default: runs/NAME)")] = None,
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="(default: results/NAME.json)")] = None,
) -> None:
    """A table of a paper: run what is missing, print ours beside the paper's.

    What is in results/NAME.json or has finished in --runs-out is not run again; what was interrupted goes on.

    Args:
        name: `vitling list tables` shows them.
        data: Folder of the data sets: DIR/flowers102/train/ and test/, or DIR/flowers102-train.tar and -test.tar.
        seeds: Runs of each entry.
        only: Only runs with one of these in their name.
        minutes: Start no further run after so many minutes.
        epochs: A trial of so many epochs; its results are kept apart.
        runs_out: Where the run directories go.
        out: Where the results are written.
    """
    from vitling.recipes.studies import find
    from vitling.recipes.studies.reproduce import reproduce as run_study
    from vitling.recipes.summary import show_study

    outcome = run_study(find(name), data, seeds, only, minutes, epochs, runs_out, out)
    show_study(outcome.results)
    if outcome.path.exists():
        print(f"Written: {outcome.path}" + (f" and {outcome.picture}" if outcome.picture else ""))
    if outcome.failed:
        raise StoppedItself(f"{len(outcome.failed)} of the runs failed: {'; '.join(outcome.failed)}.")


def show_views(
    data_set: Data,
    policy: str = "supervised",
    out: Out = "views.png",
    images: int = 6,
    draws: int = 8,
    boxes: bool = False,
    size: Annotated[int | None, arg(metavar="PX", help_behavior_hint="(default: the policy's own)")] = None,
    seed: int = 0,
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """A picture of what the network sees: each image beside its random views.

    DATA is what `vitling train` takes.

    Args:
        data_set: Your images.
        policy: `vitling list policies` shows them.
        out: The picture, .png, .jpg or .webp.
        images: Rows: images spread over the data set.
        draws: Columns: views of each.
        boxes: Draw on the original where the views were cut out.
        size: Pixels of the (global) views.
        seed: Another one draws other views.
        data: How the images are read.
    """
    from vitling.files import check_writable
    from vitling.recipes.show_views import show_views as draw

    check_writable(out)
    print(f"Written: {draw(data_set, policy, out, images, draws, boxes, size, seed, data)}")


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
    suite: SuiteConfig,
}


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
    try:
        _parsed(argv[0], argv[1:])()
    except (UserError, StoppedItself) as problem:
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
        return partial(function, parse(_CONFIGURED[function]))

    @wraps(function)
    def later(*values: Any, **named: Any) -> Callable[[], None]:
        return partial(function, *values, **named)

    return parse(later)


def _over_seeds(config: Any, run: Callable[[Any], dict[str, Any]]) -> bool:
    """Whether --seeds asked for several runs, which then are done."""
    if config.seeds == 1:
        return False
    from vitling.recipes.seeds import over_seeds
    from vitling.recipes.summary import show_seeds

    scores = over_seeds(config, run)
    if int(os.environ.get("RANK", "0")) == 0:
        show_seeds(scores, config.out)
    return True


def _print(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard_output()
    return DONE


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_result(result: dict[str, Any], out: str) -> None:
    if int(os.environ.get("RANK", "0")) > 0:
        return
    from vitling.recipes.summary import show_run

    show_run(result, out)


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
