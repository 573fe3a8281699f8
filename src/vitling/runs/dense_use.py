"""`vitling evaluate` and `vitling predict` for detectors and segmentation networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.split import AnnotatedSplit
from vitling.errors import UserError
from vitling.evaluation.inputs import find_images
from vitling.files import atomic_write, check_writable, write_file, write_json
from vitling.loading import convert, read_record
from vitling.runs.dense_bundle import load_dense
from vitling.runs.dense_evaluation import evaluate_store
from vitling.runs.dense_images import describe_problems, match_store
from vitling.runs.dense_model import BATCH, DenseModel, DensePrediction
from vitling.runs.drawing import encode_class_map
from vitling.runs.evaluate import decode_split, format_command, make_opening_recorder, warn_if_trained_on
from vitling.runs.origins import find_run
from vitling.settings.evaluation import EvaluationConfig
from vitling.training.processes import choose_device

DETECTIONS, CLASSES, MASKS = "detections.json", "classes.json", "masks"


def evaluate_dense(config: EvaluationConfig, folder: Path) -> dict[str, Any]:
    """Compute the metrics of one split (`auto`: test, else val, else train); also written to `out` as JSON."""
    _check_flags(config)
    if config.out:
        check_writable(config.out)
    model, log = load_dense(folder, choose_device(config.device)), Log()
    annotations = _choose_annotations(config)
    splits = open_annotated(
        config.source,
        model.meta.task,
        annotations,
        model.meta.data,
        class_names=model.class_names,
        needs_train=False,
        with_masks=model.meta.masks or model.meta.task == "segment",
    )
    split, annotated = _choose_split(splits, config.split, config.source)
    if split == "test":
        make_opening_recorder(config.run)(format_command(config))
    for note in annotated.notes:
        log.warning(note)
    if annotated.problems:
        log.warning(describe_problems(split, annotated))
    warn_if_trained_on(config, split, log)
    store = decode_split(model, annotated.dataset, split, model.meta.data, config.allow_bad, log)
    with log.progress("Evaluating", len(store)) as progress:
        scores = evaluate_store(model, store, match_store(annotated, store), progress)
    about = {"model": config.run, "weights": config.weights, "data": config.source, "split": split}
    result = {**about, **scores.full, "data_hashes": {split: store.content_hash}}
    if config.out:
        write_json(Path(config.out), result)
    return result


def _check_flags(config: EvaluationConfig) -> None:
    flags = {
        "--with": config.probes,
        "--coverage": config.coverage,
        "--mistakes": config.mistakes,
        "--size": config.size,
    }
    if wrong := [flag for flag, value in flags.items() if value not in (None, ())]:
        raise UserError(f"{wrong[0]} is for classifiers; {config.run} detects or segments. Leave it out.")


def _choose_annotations(config: EvaluationConfig) -> AnnotationConfig:
    """Read annotations as the flags say, or else as the run did."""
    folder = find_run(config.run)
    if config.annotations != AnnotationConfig() or folder is None:
        return config.annotations
    saved = read_record(folder / "config.json", dict[str, Any]).get("annotations", {})
    return convert(saved, AnnotationConfig, folder / "config.json")


def _choose_split(splits: dict[str, AnnotatedSplit | None], wanted: str, source: str) -> tuple[str, AnnotatedSplit]:
    names = ("test", "val", "train") if wanted == "auto" else (wanted,)
    found = next(((name, split) for name in names if (split := splits[name]) is not None and len(split)), None)
    if found is None:
        available = ", ".join(name for name, split in splits.items() if split is not None)
        raise UserError(f"{source} has no {names[0]} split; it has {available or 'none'}.")
    return found


def predict_dense(folder: Path, inputs: Sequence[str], out: str | None, min_score: float) -> list[Path]:
    """Predict files, folders and globs; write pictures with the predictions drawn, and the predictions themselves.

    Returns the pictures. Detections are written as COCO results, class maps as PNG files whose pixels are the classes.
    """
    if not out:
        raise UserError("No output directory given. Pass --out DIR for the pictures and the predictions.")
    if not inputs:
        raise UserError("No images given. Name files, folders or globs: vitling predict RUN IMAGES ... --out DIR")
    target = Path(out)
    if target.is_file():
        raise UserError(f"--out {out} is a file. Pass a directory.")
    model, images = load_dense(folder, choose_device("auto")), find_images(inputs)
    names, listed, errors = _name_files(images), list[dict[str, Any]](), list[str | None]()
    pictures = [target / f"{name}.jpg" for name in names]
    if same := {path.resolve() for path in pictures} & {Path(image).resolve() for image in images}:
        raise UserError(f"--out {out} would replace {min(same)}. Pass a different directory.")
    is_earlier = any((target / name).exists() for name in (CLASSES, DETECTIONS))
    if not is_earlier and (taken := next((path for path in pictures if path.exists()), None)):
        raise UserError(f"--out {out} would replace {taken}, which vitling did not write. Pass a different directory.")
    with Log().progress("Predicting", len(images)) as progress:
        for start in range(0, len(images), BATCH):
            for prediction in model.predict(images[start : start + BATCH]):
                listed += _write(target, names[len(errors)], prediction, len(errors), min_score)
                errors.append(prediction.error)
            progress(len(errors))
    if all(errors):
        raise UserError(f"None of the images could be read. {images[0]}: {errors[0]}.")
    _write_lists(target, model, listed)
    best = max((row["score"] for row in listed), default=None)
    if model.meta.task == "detect" and (best is None or best < min_score):
        highest = "" if best is None else f"; the highest is {best:.2f}. Try --min-score {best / 2:.2g}"
        Log().warning(f"No detection has a score of {min_score} or more{highest}.")
    return [picture for picture, error in zip(pictures, errors) if not error]


def _write(out: Path, name: str, found: DensePrediction, number: int, min_score: float) -> list[dict[str, Any]]:
    """Write the files of one image; return its detections as COCO results."""
    if found.error:
        Log().warning(f"{found.source} is skipped: {found.error}.")
        return []
    with atomic_write(out / f"{name}.jpg") as file:
        found.draw(min_score).save(file, "JPEG", quality=90)
    if found.classes is not None:
        with atomic_write(out / MASKS / f"{name}.png") as file:
            encode_class_map(found.classes, len(found.class_names)).save(file, "PNG")
    return [] if found.detections is None else list_results(found, number)


def list_results(found: DensePrediction, number: int) -> list[dict[str, Any]]:
    """List the detections of one image as COCO results, with the names of the file and of the class."""
    detections = found.detections
    assert detections is not None
    rows = []
    for k in range(len(detections)):
        left, top, right, bottom = (round(float(side), 2) for side in detections.boxes[k])
        c = int(detections.classes[k])
        row: dict[str, Any] = {
            "image_id": number,
            "file": found.source,
            "category_id": c,
            "category": found.class_names[c],
            "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
            "score": round(float(detections.scores[k]), 5),
        }
        rows.append(row | ({} if detections.masks is None else {"segmentation": detections.masks[k]}))
    return rows


def _write_lists(out: Path, model: DenseModel, listed: list[dict[str, Any]]) -> None:
    if model.meta.task == "segment":
        write_json(out / CLASSES, dict(enumerate(model.class_names)))
        return
    write_file(out / DETECTIONS, json.dumps(listed) + "\n")


def _name_files(images: Sequence[Path]) -> list[str]:
    """Name the outputs after the images; a repeated name gets a number."""
    names: dict[str, None] = {}
    for path in images:
        name, number = path.stem, 2
        while name in names:
            name, number = f"{path.stem}-{number}", number + 1
        names[name] = None
    return list(names)
