"""What judges a trained network, or several."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitling.commands.flags import OptionalOut, Run, Weights
from vitling.errors import RunAborted, UserError
from vitling.papers.suite.config import SuiteConfig
from vitling.settings.evaluation import EvaluationConfig


def evaluate(config: EvaluationConfig) -> None:
    """How good a trained model, or a probe of its features, is on a data set."""
    from vitling.commands.summary import show_evaluation, show_probes

    if config.probes:
        from vitling.runs.probes import evaluate_frozen

        show_probes(evaluate_frozen(config))
    else:
        from vitling.runs.evaluate import evaluate as judge

        show_evaluation(judge(config))
    if config.out:
        print(f"Written: {config.out}")


def suite(config: SuiteConfig) -> None:
    """Evaluate frozen networks on the papers' data sets: those that are there."""
    from vitling.commands.summary import show_suite
    from vitling.papers.suite.suite import suite as run

    outcome = run(config)
    show_suite(outcome.summary)
    print(f"Written: {outcome.path}")
    if outcome.failed:
        raise RunAborted(f"{len(outcome.failed)} failed: {'; '.join(outcome.failed)}.")


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
    from vitling.commands.summary import show_differences
    from vitling.runs.compare import compare as side_by_side

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
    """What a network finds alike in two views of an image, and what its heads look at.

    The second view is the image mirrored, or IMAGE2. A folder as IMAGE: how well all its images are found again in
    their mirrored views.

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
    from vitling.commands.summary import show_explained
    from vitling.evaluation.explain import explain as draw

    found = draw(run, image, image2, out, query, grey, seed, weights)
    show_explained(found)
    print(f"Written: {out}")
    if why := found.get("no_attention"):
        raise UserError(f"{why} So there are only the pairs of regions.")
