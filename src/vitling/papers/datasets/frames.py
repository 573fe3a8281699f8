"""`frames:DATA`: the images of annotated data, without their boxes and masks, for pre-training."""

from __future__ import annotations

from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.open import find_task, open_annotated
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError


def read_frames(path: str) -> Source:
    """Read the images of all splits; masks, which are image files too, are left out."""
    task = find_task(path, AnnotationConfig()) or "segment"
    found = open_annotated(path, task, needs_train=False, with_masks=False)
    splits = {name: split.dataset for name, split in found.items() if split is not None}
    if not splits:
        raise UserError(f"frames:{path} has no annotated images.")
    return Source(
        next(iter(splits.values())).name,
        {name: SourceSplit(list(one.keys), one.reader, one.rows) for name, one in splits.items()},
    )
