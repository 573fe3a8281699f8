"""`vitling inspect`."""

from __future__ import annotations

from vitling.commands.flags import Data, Labels, Out
from vitling.console import Console, echo
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.config import DataConfig


def inspect(
    data_set: Data,
    out: Out = "inspection.json",
    labels: Labels = None,
    data: DataConfig = DataConfig(),  # noqa: B008
    annotations: AnnotationConfig = AnnotationConfig(),  # noqa: B008
) -> None:
    """Find unreadable files, duplicates and leakage in a dataset.

    It also counts images, classes and sizes. DATA is anything that `vitling train`, `detect` or `segment` accepts.

    Args:
        data_set: Your images: a folder, a CSV, a Parquet file, a tar, an npz.
        out: File for the findings, as JSON.
        labels: Corrected labels to inspect the data with: a CSV with the columns path and label.
        data: How images are read.
        annotations: How boxes and masks are read.
    """
    from vitling.console import Log
    from vitling.data.inspection import inspect as inspect_images
    from vitling.data.inspection_tables import print_inspection
    from vitling.files import check_writable, write_json

    check_writable(out)
    with Log().progress("Reading the images") as progress:
        found = inspect_images(data_set, data, on_progress=progress, labels=labels, settings=annotations)
    print_inspection(found, Console())
    write_json(out, found.to_json())
    echo(f"Saved to {out}")
