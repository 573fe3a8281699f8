"""Pictures of correspondences (EsViT, Fig. 5 and 9) and of attention heads (Fig. 6 and 10)."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from PIL import Image, ImageColor

from vitling.backbones.position import Grid
from vitling.evaluation.attention_maps import MASS, RankedHeads
from vitling.evaluation.correspondence import Matches
from vitling.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_BYTES = 480_000  # largest size of a picture
YELLOW, ORANGE, BLUE, RED, WHITE = "#ffe119", "#ff7f0e", "#1f77ff", "#e6194b", "#ffffff"


def draw_correspondences(
    views: list[np.ndarray],
    matches: Matches,
    nearest: list[tuple[Grid, Grid]],
    errors: np.ndarray | None,
    names: tuple[str, str],
    out: Path,
) -> None:
    """Draw two views [H, W, 3] side by side, with numbered lines between the matches, the most similar first.

    `nearest`: for each view, the regions most similar to its own and to the other view's global feature. `errors`: the
    error of each match in pixels, if the correct match is known.
    """
    from matplotlib.figure import Figure

    height, width = views[0].shape[:2]
    gap = width // 16
    figure = Figure(figsize=(10, 10 * height / (2 * width + gap) + 1.0), dpi=100, layout="constrained")
    axes = figure.subplots()
    for i, (view, name) in enumerate(zip(views, names)):
        left = i * (width + gap)
        axes.imshow(view, extent=(left, left + width, height, 0), interpolation="bilinear")
        axes.text(left + width / 2, -0.01 * height, name, ha="center", va="bottom", fontsize=11)
    cell = np.array([height / matches.grid[0], width / matches.grid[1]])
    _draw_lines(axes, matches, cell, width + gap, errors)
    for i, (own, other) in enumerate(nearest):
        marks = (own, "o", BLUE, 18), (other, "^", RED, 11)  # sizes differ so that both are visible
        for place, marker, colour, size in marks:
            y, x = (np.array(place) + 0.5) * cell + (0, i * (width + gap))
            axes.plot(x, y, marker, color=colour, mec="white", mew=1.5, ms=size, zorder=4, alpha=0.9)
    axes.set(xlim=(0, 2 * width + gap), ylim=(height, -0.06 * height))
    axes.axis("off")
    figure.suptitle(_make_title(errors), fontsize=12)
    save_picture(figure, out)


def _draw_lines(axes: Any, matches: Matches, cell: np.ndarray, right: int, errors: np.ndarray | None) -> None:
    from matplotlib.patheffects import withStroke

    outline = [withStroke(linewidth=2.5, foreground="black")]
    pairs = [
        np.stack([part[0].cpu().numpy() for part in matches.locate(regions)], axis=1)
        for regions in (matches.first, matches.second)
    ]
    crowd: dict[tuple, int] = {}
    for rank, (a, b) in enumerate(zip(*pairs), start=1):
        (y, x), (found_y, found_x) = (a + 0.5) * cell, (b + 0.5) * cell
        colour = WHITE if errors is None else YELLOW if errors[rank - 1] == 0 else ORANGE
        axes.plot([x, right + found_x], [y, found_y], "o", color=colour, ms=5, mec="black", mew=0.6, zorder=3)
        bend = f"arc3,rad={0.03 * (rank % 5 - 2):.2f}"  # bend lines differently, or those of one row would overlap
        line = {"arrowstyle": "-", "connectionstyle": bend, "color": colour, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (right + found_x, found_y), (x, y), arrowprops=line, zorder=2)
        for start, across, down in ((0, x, y), (right, found_x, found_y)):
            nth = crowd.get((start, across, down), 0)  # several matches may share a region
            crowd[(start, across, down)] = nth + 1
            side = -1 if across > 0.7 * cell[1] * matches.grid[1] else 1  # keep the number inside the view
            axes.annotate(
                str(rank),
                (start + across, down),
                (side * (5 + 15 * (nth % 4)), 5 + 13 * (nth // 4)),
                ha="left" if side > 0 else "right",
                textcoords="offset points",
                color=colour,
                fontsize=11,
                fontweight="bold",
                path_effects=outline,
                zorder=5,
            )


def _make_title(errors: np.ndarray | None) -> str:
    marks = "Regions most similar to the global feature of this view (blue dot) and of the other (red triangle)"
    if errors is None:
        return f"The most similar pairs of regions\n{marks}"
    right = int((errors == 0).sum())
    return f"{right} of {len(errors)} pairs correct (yellow), mean error {errors.mean():.0f} px\n{marks}"


def draw_heads(view: np.ndarray, heads: RankedHeads, grid: Grid, masks: bool, out: Path) -> None:
    """Draw every head's mask over the image, or its whole map; the query is the blue dot."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    count = len(heads.maps)
    columns = min(6, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(5.0, 1.75 * columns), 1.95 * rows + 0.7), dpi=120, layout="constrained")
    redundant, max_bits = heads.redundant(), np.log2(heads.maps[0].numel())
    what = f"Regions with {MASS:.0%} of the attention" if masks else "Attention"
    grey = "; grey names: redundant" if redundant.any() else ""
    figure.suptitle(
        fill(f"{what} of each head, seen from the blue dot{grey}", width=max(60, 15 * columns)), fontsize=10
    )
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    height, width = view.shape[:2]
    shown = heads.masks() if masks else heads.maps * heads.maps[0].numel()
    scale = PowerNorm(0.5, vmin=0, vmax=max(2.0, float(shown.max())))  # shared, so that uniform heads look uniform
    for i, axis in enumerate(axes):
        axis.axis("off")
        if i >= count:
            continue
        spread = F.interpolate(shown[i][None, None].float().cpu(), size=(height, width), mode="nearest")[0, 0].numpy()
        if masks:
            axis.imshow(_tint(view, spread))
        else:
            image = axis.imshow(spread, cmap="viridis", norm=scale)
        y, x = (np.array(heads.query) + 0.5) * (height / grid[0], width / grid[1])
        axis.plot(x, y, "o", color=BLUE, mec="white", mew=1.2, ms=8)
        axis.set_title(
            f"head {int(heads.order[i])}: {float(heads.entropy[i]):.2f} of {max_bits:.2f} bits",
            fontsize=8,
            color="grey" if redundant[i] else "black",
        )
    if not masks:
        bar = figure.colorbar(image, ax=axes.tolist(), shrink=0.8, aspect=12)
        bar.set_label("times uniform attention", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    save_picture(figure, out)


def _tint(view: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Tint the mask red and darken the rest."""
    red = np.array([255, 30, 30])
    tinted = np.where(mask[..., None] > 0, 0.5 * view + 0.5 * red, 0.75 * view)
    return tinted.astype(np.uint8)


def draw_entropies(heads: RankedHeads, out: Path) -> None:
    """Plot the entropy of each head next to that of a uniform map."""
    from matplotlib.figure import Figure

    entropy = heads.entropy.cpu().numpy()
    redundant = heads.redundant().numpy()
    max_bits = np.log2(heads.maps[0].numel())
    figure = Figure(figsize=(max(5.0, 0.32 * len(entropy) + 1.5), 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(entropy))
    axes.plot(places, entropy, color="lightgrey", lw=1, zorder=1)
    axes.scatter(places, entropy, s=45, color=np.where(redundant, "darkgrey", BLUE), zorder=2)
    axes.axhline(max_bits, color="black", lw=1, ls="--")
    axes.text(len(entropy) - 0.5, max_bits, f"uniform: {max_bits:.2f}", ha="right", va="bottom", fontsize=9)
    room = max(0.1, 0.15 * (max_bits - entropy.min()))
    axes.set(xlabel="head", ylabel="entropy (bits)", ylim=(entropy.min() - room, max_bits + room), xticks=places)
    axes.set_xlim(-0.5, len(entropy) - 0.5)
    axes.set_xticklabels([str(int(head)) for head in heads.order], fontsize=8)
    grey = " (grey)" if redundant.any() else ""
    axes.set_title(f"{int(redundant.sum())} of {len(entropy)} heads redundant{grey}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, out)


def save_picture(figure: Figure, out: Path) -> None:
    """Save as PNG; reduce colours, then the size, until the file is below `MAX_BYTES`."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # that the font lacks; the warning prints it raw
        figure.savefig(buffer, format="png")
    picture = Image.open(buffer).convert("RGB")
    encoded = io.BytesIO()
    picture.save(encoded, "PNG", optimize=True)
    while encoded.tell() > MAX_BYTES:
        encoded = io.BytesIO()
        few = picture.quantize(palette=_make_palette(picture), dither=Image.Dither.FLOYDSTEINBERG)
        few.save(encoded, "PNG", optimize=True)
        if encoded.tell() <= MAX_BYTES:
            break
        picture = picture.resize((picture.width * 4 // 5, picture.height * 4 // 5), Image.Resampling.LANCZOS)
    write_file(out, encoded.getvalue())


def _make_palette(picture: Image.Image) -> Image.Image:
    """Make a palette of the picture's colours and those of the marks, which are rare and would be lost."""
    drawn = [channel for colour in (YELLOW, ORANGE, BLUE, RED, WHITE) for channel in ImageColor.getrgb(colour)]
    colours = 256 - len(drawn) // 3
    own = (picture.quantize(colours).getpalette() or [])[: 3 * colours]
    palette = Image.new("P", (1, 1))
    palette.putpalette(own + drawn)
    return palette
