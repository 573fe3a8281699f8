"""What a person reads at the end of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from vitling.formatting import describe_trial, format_count
from vitling.papers.suite.table import tables_of
from vitling.report.studies import filled, lines
from vitling.runs.compare import in_points

if TYPE_CHECKING:
    from vitling.commands.store_loss import Loss
    from vitling.settings.config import PretrainConfig
    from vitling.views.config import Plan

_NAMES = {
    "top1": "top-1",
    "top5": "top-5",
    "mean_per_class": "mean per class",
    "mean_average_precision": "mAP",
    "calibration_error": "calibration error",
}
_MORE = {"eleven_point_map": "mAP, 11 points", "roc_auc": "ROC-AUC"}  # of one evaluation, which has the room
_METRICS = {
    "top1": "top-1",
    "mean-per-class": "mean per class",
    "map": "mAP",
    "map-11-point": "mAP, 11 points",
    "roc-auc": "ROC-AUC",
}
_SHORT = {"mean_per_class": "per class", "calibration_error": "calib."}  # a table has to fit in 80 columns
FEW = 3  # epochs of a stage from which little is seen


def show_run(result: dict[str, Any], out: str) -> None:
    """How a run went, and what to do with it."""
    for name, stage in result.get("stages", {"": result}).items():
        print(
            f"{name or result['backbone']} at {stage['size']} px, {stage['images']:,} images, "
            f"{format_count(stage['epochs'], 'epoch')}, {stage['seconds']:.0f} s, "
            f"{stage['images_per_second']:,.0f} images/s"
        )
    if "classes" not in result:
        print(f"Written: {out}\n  model/ has the network; there were no labels to learn")
        print(f"To use it: vitling embed {shlex.quote(out)} IMAGES --out features.npz")
        return
    other_size = result.get("judged_at", result["size"]) != result["size"]
    if other_size:
        print(f"judged at {result['judged_at']} px (--test-size):")
    Console().print(result_table(result))
    if large := result.get("stages", {}).get("large"):
        if other_size:
            print(f"large, judged at {large['size']} px:")
        Console().print(result_table({**result, "best": {}, "last": large["last"], "epochs": large["epochs"]}))
    print(f"Written: {out}" + (", at the larger size large/ in it" if large else ""))
    print("  model/ has the weights of the last epoch" + (", best/ the best on val" if "best" in result else ""))
    if {"val", "test"} & result["last"].keys():
        print("  evaluation.json has every class and the confusion matrix")
    print(f"To use it: vitling predict {shlex.quote(out)} IMAGES")


def show_demo(results: dict[str, dict[str, Any]], out: str) -> None:
    """What the start was worth, in a table and in a sentence that claims no more."""
    Console().print(demo_table(results))
    random, pre, idmm = (results[name] for name in ("random", "pretrain", "idmm"))
    points = 100 * (idmm["last"]["test"]["top1"] - random["last"]["test"]["top1"])
    more = f"{abs(points):.1f} points {'more' if points >= 0 else 'less'}"
    print(
        f"Pre-trained by IDMM on {pre['images']:,} digits without labels, the network got {more} out of the same\n"
        f"{idmm['images']} labels than from a random start. One seed, and digits of 8 x 8 pixels: a demonstration.\n"
        "results/demo-digits.json has three seeds."
    )
    print(f"Written: {', '.join(str(Path(out) / name) for name in results)}")
    print("On your own images, both stages: vitling train DATA --out runs/first")
    print(f"To use this one: vitling predict {shlex.quote(str(Path(out) / 'idmm'))} IMAGES")


def demo_table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table("start")
    for column in ("labels", "steps", "seconds", "test top-1"):
        table.add_column(column, justify="right", no_wrap=True)
    before = results["pretrain"]["seconds"]
    for name, start, seconds in (
        ("random", "random", ""),
        ("idmm", f"IDMM on {results['pretrain']['images']:,} images", f"{before:.0f} + "),
        ("all-labels", "random", ""),
    ):
        result = results[name]
        seconds += f"{result['seconds']:.0f}"
        top1 = _percent(result["last"]["test"]["top1"])
        table.add_row(start, f"{result['images']:,}", f"{result['steps']:,}", seconds, top1)
    table.caption = f"{results['idmm']['last']['test']['n']} test digits; last epoch"
    return table


def show_pretraining(result: dict[str, Any], config: PretrainConfig) -> None:
    """How it went, and the command of the second stage."""
    print(
        f"{result['method']}: {result['backbone']} at {result['size']} px, {result['images']:,} images, "
        f"{format_count(result['epochs'], 'epoch')}, {result['seconds']:.0f} s, "
        f"{result['images_per_second']:,.0f} images/s, "
        f"loss {result['last'].get('loss', float('nan')):.3f}"
    )
    print(f"Written: {config.out}")
    where = shlex.quote(config.source) if config.source and result.get("labelled", True) else "LABELLED_DATA"
    print(f"The second stage: vitling finetune {where} --from {shlex.quote(config.out)} --out RUN")


def show_seeds(result: dict[str, Any], out: str) -> None:
    table = Table("score")
    for column in ("mean", "deviation", "seeds"):
        table.add_column(column, justify="right")
    for name, found in result["scores"].items():
        *what, metric = name.split()
        shown = " ".join((*what, _NAMES.get(metric, metric)))
        table.add_row(shown, _percent(found["mean"]), _percent(found["deviation"]), str(len(found["values"])))
    Console().print(table)
    print(f"Written: {out}, a run directory for each seed")


def show_differences(result: dict[str, Any]) -> None:
    table = Table(Column("run", overflow="fold"))
    for column in ("seeds", "mean", "deviation"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in result["runs"]:
        deviation = "" if row["deviation"] is None else _percent(row["deviation"])
        table.add_row(escape(row["run"]), str(len(row["values"])), _percent(row["mean"]), deviation)
    table.caption = f"{_NAMES[result['metric']]} on {result['images']:,} images of {result['split']}"
    Console().print(table)
    for found in result["differences"]:
        test = f" McNemar: p = {found['mcnemar_p']:.2g}." if "mcnemar_p" in found else ""
        print(found["in_words"] + test)


def show_comparison(result: dict[str, Any], out: str) -> None:
    Console().print(comparison_table(result))
    best = ranked(result["rows"])[0]
    if "value" not in best:
        print("Every method stopped; the reasons are above.")
        return
    if result["differences"]:
        print(told_apart(best, result["differences"]))
    if hurried := [row["method"] for row in result["rows"] if min(row.get("epochs", [FEW])) < FEW]:
        print(f"This says little: {', '.join(hurried)} had a stage of fewer than {FEW} epochs. Give more --minutes.")
    print(f"Written: {out}, a run directory for each method")
    flags = " ".join(filter(None, [f"--method {best['method']}", best.get("flags", ""), "--out RUN"]))
    print(f"To go on with it: vitling train {shlex.quote(result['data'])} {flags}")


def told_apart(best: dict[str, Any], differences: list[dict[str, Any]]) -> str:
    """What the held-out images say of the method that is ahead, and what they cannot say."""
    others = [f"{found['worse']} ({in_points(found['difference'], *found['interval'])})" for found in differences]
    close = [other for other, found in zip(others, differences) if not found["told_apart"]]
    if close:
        images, ahead = f"{best['images']:,} held-out images", f"{best['method']}, the first here,"
        said = f"{images} cannot tell {ahead} from {', '.join(close)}."
        if any(found["interval"][0] > 0 for found in differences if not found["told_apart"]):
            said += " Where there is no 0 in an interval, it may be luck by McNemar's exact test."
    else:
        said = f"{best['method']} is better than the others; the next is {others[0]}."
    return f"{said} One seed each: what another would give is not in this."


def comparison_table(result: dict[str, Any]) -> Table:
    table = Table("method")
    for column in ("k-NN", "fine-tuned", "epochs", "seconds"):
        table.add_column(column, justify="right")
    for row in ranked(result["rows"]):
        if "value" not in row:
            table.add_row(row["method"], "", "stopped", "", "")
            continue
        knn = _percent(row["knn"]) if "knn" in row else ""
        epochs, seconds = (" + ".join(f"{part:.0f}" for part in row[name]) for name in ("epochs", "seconds"))
        table.add_row(row["method"], knn, _percent(row["value"]), epochs, seconds)
    table.caption = "on held-out training images; one seed"
    return table


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best first, those that stopped last."""
    return sorted(rows, key=lambda row: -row.get("value", -1.0))


def show_evaluation(result: dict[str, Any]) -> None:
    print(f"{result['split']} of {result['data']}: {result['n']:,} images, weights: {result['weights']}")
    Console().print(evaluation_table(result), class_table(result["per_class"]))


def show_probes(result: dict[str, Any]) -> None:
    images = result["images"]
    print(
        f"{result['split']} of {result['data']}: {images['judged']:,} images, {result['classes']} classes; probes of "
        f"frozen features, weights: {result['weights']}"
    )
    print(
        f"Trained on train, chosen on {images['validation']:,} images ({result['chosen_on']}), then trained on all "
        f"{images['train'] + images['validation']:,}"
    )
    if any("chosen" in found for found in result["probes"].values()):
        Console().print(probe_table(result))
    if curves := result["probes"].get("few-shot"):
        Console().print(few_shot_table(curves, result["metric"]))


def probe_table(result: dict[str, Any]) -> Table:
    """The chosen of each probe; of k-NN every k, because they cost nothing, those not chosen in brackets."""
    table = Table("probe", "chosen")
    for column in ("validation", result["split"]):
        table.add_column(column, justify="right", no_wrap=True)
    for name, found in result["probes"].items():
        if "chosen" not in found:
            continue
        ((what, value),) = found["chosen"].items()
        chosen = f"{what} {value:.4g}"
        each = {f"k {k}": figures for k, figures in found.get("each_k", {}).items()} or {chosen: found}
        for setting, figures in each.items():
            marked = setting if setting == chosen else f"({setting})"
            table.add_row(name, marked, _percent(figures["validation"]), _percent(figures["value"]))
    table.caption = f"{_METRICS[result['metric']]}; nothing was chosen on {result['split']}"
    return table


def few_shot_table(curves: dict[str, Any], metric: str) -> Table:
    table = Table("images a class")
    for way in ("centroid", "logistic"):
        table.add_column(way, justify="right", no_wrap=True)
    for shots in curves["centroid"]:
        cells = (curves[way][shots] for way in ("centroid", "logistic"))
        table.add_row(shots, *(_with_spread(cell["mean"], cell["deviation"]) for cell in cells))
    table.caption = f"{_METRICS[metric]}; mean and deviation of {curves['draws']} draws"
    return table


def _with_spread(mean: float, deviation: float | None) -> str:
    return _percent(mean) if deviation is None else f"{100 * mean:.2f} ± {100 * deviation:.2f} %"


def show_explained(found: dict[str, Any]) -> None:
    pairs, heads = found["correspondence"], found.get("attention")
    if "accuracy" in pairs:
        of = format_count(pairs["images"], "image") if "images" in pairs else "the image"
        where = f"{_percent(pairs['accuracy'])} of the pairs right, {pairs['distance']:.1f} px off on average"
        print(f"Mirrored view of {of}: {where}.")
        for name, why in pairs.get("unread", {}).items():
            print(f"Left out: {name}: {why}.")
    if heads:
        place = f"row {heads['query'][0]}, column {heads['query'][1]}"
        alike = f"{heads['redundant']} redundant (correlated by more than {heads['redundant_above']})"
        print(f"Attention from {place}: {len(heads['heads'])} heads, {alike}.")


def show_store_loss(losses: list[Loss], plan: Plan) -> None:
    kinds = " and ".join(
        f"{group.size} px (scale {group.policy.scale[0]:g} to {group.policy.scale[1]:g})" for group in plan.groups
    )
    table = Table(title=f"Views of {kinds} out of the store, beside the files")
    for column in ("store", "PSNR", "worst in 20", "MB / 1,000 images"):
        table.add_column(column, justify="right", no_wrap=True)
    for loss in losses:
        size = f"{loss.size} px" + (" (chosen)" if loss.chosen else "")
        table.add_row(size, f"{loss.mean:.1f} dB", f"{loss.low:.1f} dB", f"{loss.megabytes:,.0f}")
    Console().print(table)


def result_table(result: dict[str, Any]) -> Table:
    """Last epoch and best on validation, both named."""
    rows = [
        (weights, split, result[weights])
        for weights in ("last", "best")
        for split in ("val", "test")
        if split in result.get(weights, {})
    ]
    metrics = [key for key in _worth_showing(result["classes"]) if any(key in row[split] for _, split, row in rows)]
    table = Table()
    for column in ("weights", "epoch", "split", "images", *(_SHORT.get(key, _NAMES[key]) for key in metrics)):
        table.add_column(column, justify="left" if column in ("weights", "split") else "right", no_wrap=True)
    for weights, split, judged in rows:
        name = "last" if weights == "last" else "best val"
        numbers = (_percent(judged[split][key]) if key in judged[split] else "" for key in metrics)
        table.add_row(name, str(judged["epoch"]), split, f"{judged[split]['n']:,}", *numbers)
    if not rows:
        table.add_row("last", str(result["epochs"]), "none held out", "")
    return table


def evaluation_table(result: dict[str, Any]) -> Table:
    table = Table("metric")
    table.add_column("value", justify="right")
    names = _NAMES | _MORE
    for key in (*_worth_showing(len(result["per_class"])), *_MORE):
        if result.get(key) is not None:
            table.add_row(names[key], _percent(result[key]))
    return table


def class_table(rows: list[dict[str, Any]], most: int = 20) -> Table:
    """The classes that are recognised worst, first."""
    worst = sorted(rows, key=lambda row: (row["recall"] is None, row["recall"] or 0.0))
    table = Table("class")
    for column in ("images", "recall", "precision", "f1"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in worst[:most]:
        numbers = ("" if row[key] is None else f"{row[key]:.1%}" for key in ("recall", "precision", "f1"))
        table.add_row(escape(row["class"]), f"{row['n']:,}", *numbers)
    if len(rows) > most:
        table.caption = f"the {most} of {len(rows)} classes with the lowest recall"
    return table


def show_study(results: dict[str, Any]) -> None:
    """Ours beside the paper's."""
    trial = describe_trial(results.get("trial"), ", ")
    print(f"{results['study']}: {results['title']} ({results['source']}); {results['unit']}{trial}")
    table = Table(Column("run", overflow="fold"))
    found = lines(results)
    columns = filled(found, {"ours": "ours", "paper": "paper", "gain": "gain", "paper_gain": "paper's"})
    for title in columns.values():
        table.add_column(title, justify="right", no_wrap=True)
    for line in found:
        table.add_row(line.run, *(getattr(line, name) for name in columns))
    Console().print(table)
    for line in found:  # below: a column of them would leave no room for the figures
        if line.note:
            print(f"{line.run}: {line.note}")


def show_suite(summary: dict[str, Any]) -> None:
    console = Console()
    for table in tables_of(summary, console):
        console.print(table)
    for row in summary["rows"]:
        for note in row["notes"]:
            print(f"* {row['data']}: {note}")


def _worth_showing(classes: int) -> list[str]:
    """Top-5 of five classes is always 100%."""
    return [key for key in _NAMES if key != "top5" or classes > 5]


def _percent(share: float) -> str:
    return f"{share:.2%}"
