"""t-SNE of every run of a study: one column per run, before fine-tuning above and after it below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitling.loading import read_npz
from vitling.papers.pictures import add_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 1.7  # inches of a panel
SEED = 0


def make_figure(results: dict[str, Any], runs: Path) -> Figure | None:
    """Draw the panels; return None if the coordinates of a measured run are missing."""
    import numpy as np
    from matplotlib.figure import Figure

    measured = {row["run"]: row for row in results["rows"] if "value" in row and row["seed"] == SEED}
    columns = {cell["run"]: cell["column"] for cell in results["cells"] if cell["run"] in measured}
    places = {run: runs / f"{run}-seed{SEED}" / "tsne.npz" for run in columns}
    if not places or not all(place.exists() for place in places.values()):
        return None
    made = Figure((0.35 + SIDE * len(columns), 2 * SIDE + 0.9))
    panels = made.subplots(2, len(columns), squeeze=False)
    for i, (run, title) in enumerate(columns.items()):
        arrays = read_npz(places[run])
        _, colours = np.unique(arrays["labels"], return_inverse=True)
        shown = (("before", "value"), ("after", "after"))
        for panel, (when, figure) in zip(panels[:, i], shown):
            x, y = arrays[when].T
            panel.scatter(x, y, 3, colours, linewidths=0, cmap="tab10", vmin=0, vmax=9, antialiased=False)
            panel.set_xlabel(f"5-NN {measured[run][figure]:.1f} %", fontsize=9, labelpad=2)
        panels[0, i].set_title(title, fontsize=10)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    for panel, when in zip(panels[:, 0], ("before fine-tuning", "after")):
        panel.set_ylabel(when, fontsize=9)
    lines = add_title(
        made, f"{results['study']}: {results['title']}, seed {SEED}; coloured by class. {results['source']}"
    )
    made.subplots_adjust(0.3 / made.get_figwidth(), 0.08, 0.99, 0.88 - 0.04 * lines, 0.06, 0.16)
    return made
