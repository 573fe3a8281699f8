"""What judges a trained network, or several."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitling.data.config import DataConfig
from vitling.errors import StoppedItself, UserError
from vitling.evaluation.config import Probe, ProbesConfig
from vitling.recipes.suite_config import SuiteConfig
from vitling.verbs.flags import Data, OptionalOut, Run, Weights


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
