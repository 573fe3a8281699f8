"""`vitling explain`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitling.commands.flags import Run
from vitling.commands.results import format_percent
from vitling.console import Log, echo
from vitling.errors import UserError
from vitling.evaluation.config import Weights
from vitling.evaluation.intervals import format_bounds
from vitling.formatting import format_count
from vitling.ranges import SEED


def explain(
    run: Run,
    image: Annotated[str, Positional, arg(metavar="IMAGE")],
    image2: Annotated[str | None, Positional, arg(metavar="[IMAGE2]", help_behavior_hint="")] = None,
    out: Annotated[str, arg(metavar="DIR")] = "explained",
    query: str = "object",
    grey: Literal["paper", "released"] = "paper",
    seed: Annotated[int, SEED] = 0,
    weights: Weights = "last",
) -> None:
    """Draw attention maps and matching regions of two views.

    The second view is IMAGE2, or else the mirrored image. If IMAGE is a folder, measure how many regions of its images
    are matched correctly in their mirrored views.

    Args:
        run: A run directory or a model folder.
        image: An image, or a folder of images.
        image2: A second image. By default the first one, mirrored and with changed colours.
        out: Folder for the pictures and explained.json.
        query: Region whose attention is drawn: object, background, or a row and column such as 3,5.
            The object is the region most similar to the whole image, the background the least similar one.
        grey: How often the mirrored view turns grey: paper, one in five; released, always, as in EsViT's code.
        seed: Random seed of the colour changes.
        weights: Weights of the last epoch, or of the best epoch on validation.
    """
    from vitling.evaluation.explain import explain as draw

    found = draw(run, image, image2, out, query, grey, seed, weights)
    _print_explained(found)
    echo(f"Saved to {out}")
    if reason := found.get("no_attention"):
        Log().warning(f"{reason} Only the matched regions were drawn.")
    if reason := found.get("wrong_query"):
        raise UserError(f"{reason} Only the matched regions were drawn.")


def _print_explained(found: dict[str, Any]) -> None:
    pairs, attention = found["correspondence"], found.get("attention")
    if "accuracy" in pairs:
        images = format_count(pairs["images"], "image") if "images" in pairs else "the image"
        sure = f" (95 %: {format_bounds(*pairs['interval'])})" if pairs.get("interval") else ""
        accuracy = f"{format_percent(pairs['accuracy'])}{sure}"
        score = f"{accuracy} of the regions are matched correctly, with a mean error of {pairs['distance']:.1f} px"
        echo(f"Mirrored view of {images}: {score}.")
        for name, reason in pairs.get("unread", {}).items():
            echo(f"Skipped: {name}: {reason}.")
    if attention:
        row, column = attention["query"]
        redundant = f"{attention['redundant']} redundant (correlation above {attention['redundant_above']})"
        echo(f"Attention from row {row}, column {column}: {len(attention['heads'])} heads, {redundant}.")
