"""`vitling evaluate`."""

from __future__ import annotations

from typing import Annotated, Any

from rich.table import Table

from vitling.commands.dense_results import print_dense_evaluation
from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import RESULT_METRICS, format_percent, make_class_table, select_metrics
from vitling.console import Console, echo, make_table
from vitling.evaluation.intervals import format_interval
from vitling.metric_names import BY_FLAG
from vitling.settings.evaluation import EvaluationConfig

_METRICS = (*RESULT_METRICS, "eleven_point_map", "roc_auc")  # too many columns for a table of runs


def evaluate(config: Annotated[EvaluationConfig, NO_PREFIX]) -> None:
    """Evaluate a model, or probes of its features, on a dataset.

    Without --with, the model's own predictions are evaluated.

    With --with, classifiers are trained on its frozen features. The data may have any classes, and the model need not
    have been trained on labels.
    """
    from vitling.runs.dense_bundle import find_dense

    if (folder := find_dense(config.run, config.weights)) is not None:
        from vitling.runs.dense_use import evaluate_dense

        print_dense_evaluation(evaluate_dense(config, folder))
    elif config.probes:
        from vitling.runs.probes import evaluate_probes

        _print_probes(evaluate_probes(config))
    else:
        from vitling.runs.evaluate import evaluate as evaluate_model

        _print_evaluation(evaluate_model(config))
    for path in filter(None, (config.out, config.mistakes)):
        echo(f"Saved to {path}")


def _print_evaluation(result: dict[str, Any]) -> None:
    echo(f"{result['split']} of {result['data']}: {result['n']:,} images, weights: {result['weights']}")
    if "prediction_sets" in result:
        echo(_describe_sets(result["prediction_sets"], result["n"]))
    class_table = make_class_table(result["per_class"], "recall", "recall", _format_class)
    Console().print(_metric_table(result), class_table)


def _describe_sets(found: dict[str, Any], n: int) -> str:
    interval = format_interval(found["covered"], n)
    return (
        f"Prediction sets for a coverage of {format_percent(found['coverage'])}: {format_percent(found['covered'])} of "
        f"the images have their class in the set (95 % interval {interval}). A set has {found['mean_size']:.2f} "
        f"classes on average; {format_percent(found['single'])} have one."
    )


def _metric_table(result: dict[str, Any]) -> Table:
    table = make_table(["metric"], ("value", "95 % interval"))
    for metric in select_metrics(len(result["per_class"]), _METRICS):
        if result.get(metric.key) is not None:
            value = result[metric.key]
            interval = format_interval(value, result["n"]) if metric.key in ("top1", "top5") else ""
            table.add_row(metric.display, metric.format(value), interval)
    return table


def _format_class(row: dict[str, Any]) -> dict[str, str]:
    recall, precision, f1 = (format_percent(row[key], 1) for key in ("recall", "precision", "f1"))
    interval = "" if row["recall"] is None else format_interval(row["recall"], row["n"])
    return {"images": f"{row['n']:,}", "recall": recall, "95 %": interval, "precision": precision, "f1": f1}


def _print_probes(result: dict[str, Any]) -> None:
    images = result["images"]
    echo(
        f"{result['split']} of {result['data']}: {images['evaluated']:,} images, {result['classes']} classes; probes "
        f"of frozen features, weights: {result['weights']}"
    )
    echo(
        f"Trained on train, chosen on {images['validation']:,} images ({result['chosen_on']}), then trained on all "
        f"{images['train'] + images['validation']:,}"
    )
    if any("chosen" in found for found in result["probes"].values()):
        Console().print(_probe_table(result))
    if curves := result["probes"].get("few-shot"):
        Console().print(_few_shot_table(curves, result["metric"]))


def _probe_table(result: dict[str, Any]) -> Table:
    """List the chosen setting of each probe; for k-NN also every other k, in brackets."""
    columns = ("validation", result["split"], *(["95 %"] if result["metric"] == "top1" else []))
    caption = f"{BY_FLAG[result['metric']].display}; nothing was chosen on {result['split']}"
    table = make_table(["probe", "chosen"], columns, caption)
    for name, found in result["probes"].items():
        if "chosen" not in found:
            continue
        ((setting, value),) = found["chosen"].items()
        chosen = f"{setting} {value:.4g}"
        each = {f"k {k}": scores for k, scores in found.get("each_k", {}).items()} or {chosen: found}
        for shown, scores in each.items():
            label = shown if shown == chosen else f"({shown})"
            values = [format_percent(scores["validation"]), format_percent(scores["value"])]
            if result["metric"] == "top1":
                values.append(format_interval(scores["value"], result["images"]["evaluated"]))
            table.add_row(name, label, *values)
    return table


def _few_shot_table(curves: dict[str, Any], metric: str) -> Table:
    classifiers = ("centroid", "logistic")
    caption = f"{BY_FLAG[metric].display}; mean and standard deviation of {curves['draws']} draws"
    table = make_table(["images per class"], classifiers, caption)
    for shots in curves["centroid"]:
        cells = (curves[classifier][shots] for classifier in classifiers)
        table.add_row(shots, *(_format_mean(cell["mean"], cell["std"]) for cell in cells))
    return table


def _format_mean(mean: float, std: float | None) -> str:
    return format_percent(mean) if std is None else f"{100 * mean:.2f} ± {100 * std:.2f} %"
