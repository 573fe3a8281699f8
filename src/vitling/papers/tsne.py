"""t-SNE and nearest neighbours of features before and after fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitling.errors import UserError
from vitling.files import atomic_write, write_json
from vitling.loading import read_record
from vitling.papers.stages import FinetuneTask, StageRun, open_test_images
from vitling.papers.study import RunContext
from vitling.records import Environment, TaskResult

if TYPE_CHECKING:
    import numpy as np

    from vitling.data.dataset import Dataset
    from vitling.evaluation.model import Model

NEIGHBOURS = 5


@dataclass(frozen=True)
class TsneTask:
    """Compare features of the test images of the largest classes before and after fine-tuning.

    Each network sees them at its own size. Without pre-training, "before" is the network with random weights that
    fine-tuning starts from. The figure is the leave-one-out k-NN accuracy before, in percent. Coordinates are written
    to tsne.npz in the run's folder.
    """

    task: FinetuneTask
    classes: int = 10

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.task.settings, "tsne.classes": self.classes, "tsne.neighbours": NEIGHBOURS}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        answer = context.out / "result.json"
        if answer.exists():
            return read_record(answer, TaskResult)
        inner = replace(context, out=context.out / "trained")
        trained = self.task(inner)
        write_json(context.out / "environment.json", read_record(inner.out / "environment.json", Environment))
        images = self._select_images(context)
        before, after = (_compute_features(model, images) for model in self._load_models(inner))
        _save(context.out / "tsne.npz", images, before, after)
        figures = {"value": _measure_knn(before, images), "after": _measure_knn(after, images)}
        given = {**trained, "top1": trained["value"], "looked_at": len(images), **figures}
        write_json(answer, given)
        return given

    def stages(self, context: RunContext) -> list[StageRun]:
        return self.task.stages(context)

    def _select_images(self, context: RunContext) -> Dataset:
        import numpy as np

        test = open_test_images(context, f"t-SNE of {self.classes} classes", self.task.finetune.data)
        if test.labels is None or test.labels.ndim != 1:
            raise UserError(f"{test.name}: t-SNE by class needs one label per image.")
        counts = np.bincount(test.labels, minlength=len(test.class_names))
        largest = np.argsort(-counts, kind="stable")[: self.classes]
        return test.take(np.flatnonzero(np.isin(test.labels, largest)))

    def _load_models(self, context: RunContext) -> tuple[Model, Model]:
        from vitling.backbones.backbone import create
        from vitling.evaluation.bundle import load
        from vitling.evaluation.model import Model

        *first, second = self.task.stages(context)
        after = load(second.out)
        if first:
            return load(first[-1].out), after
        meta, config = after.meta, second.config
        fresh = create(config.backbone or "", meta.size, meta.channels, seed=config.seed)
        return Model(fresh, None, meta, after.device), after


def _compute_features(model: Model, images: Dataset) -> np.ndarray:
    from vitling.evaluation.inputs import list_dataset_sources

    found = model.embed_sources(list_dataset_sources(images))
    if found.errors:
        name, reason = next(iter(found.errors.items()))
        raise UserError(f"{len(found.errors)} test images cannot be read; the first is {name}: {reason}.")
    return found.vectors


def _measure_knn(features: np.ndarray, images: Dataset) -> float:
    from torch import from_numpy

    from vitling.evaluation.knn import knn_scores

    bank, labels = from_numpy(features), from_numpy(images.labels)
    neighbours = min(NEIGHBOURS, len(bank) - 1)
    scores = knn_scores(bank, labels, None, labels, [neighbours], len(images.class_names))
    return round(100 * scores[neighbours], 4)


def _project(features: np.ndarray) -> np.ndarray:
    """Project to two dimensions by cosine distance, which for unit vectors orders like the Euclidean one."""
    import numpy as np

    from vitling.evaluation.projection import compute_tsne

    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return compute_tsne(unit.astype(np.float64))


def _save(path: Path, images: Dataset, before: np.ndarray, after: np.ndarray) -> None:
    import numpy as np

    with atomic_write(path) as file:
        np.savez(
            file,
            before=_project(before).astype(np.float32),
            after=_project(after).astype(np.float32),
            labels=np.asarray(images.labels),
            class_names=np.array(images.class_names),
            keys=np.array(images.keys),
        )
