"""Measure the cost of EsViT beside its paper: time and memory of the region loss (Table 9), throughput (Table 8).

    python benchmarks/esvit_cost.py --out results/esvit-cost-h200.json

Table 9: a compiled training step on fixed views with the view loss alone and with both losses, at the paper's batch
sizes and at 128. `--sinkhorn`, `--sampled` and `--place` add steps with optimal transport, with every second region
down and across, and with regions matched by place.

Table 8: images of 224 px per second in feature extraction. The paper used other machines, so only ratios compare.

Rows are written as they are measured and not repeated by later calls; with `--minutes M` no row is started after M
minutes, so the tables can be measured in several calls.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator
from typing import Any, get_args

import torch
from record import read_earlier, write_rows

from vitling.errors import RunAborted
from vitling.papers.costs import TABLE_9, measure_regions, measure_throughput
from vitling.papers.figures import read_figures
from vitling.training.compilation import Compile
from vitling.training.rundir import describe_environment

BATCH = 128
TABLE_8 = read_figures("esvit-t8")  # by backbone
SETTINGS = ("inference_batch", "size", "prototypes", "sinkhorn", "sampled", "place", "compile")
CHOICE = ("tables", "backbones", "batches")
Row = dict[str, Any]


def list_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the settings of each row; `steps` are measured in addition to the step with the view loss."""
    compiled = options.compile if torch.device(options.device).type == "cuda" else "off"
    shared = {"size": options.size, "compile": compiled}
    if 8 in options.tables:
        for backbone in options.backbones or TABLE_8:
            yield {"table": 8, "backbone": backbone, "batch": options.inference_batch, **shared}
    if 9 in options.tables:
        steps = ["both", *(name for name in ("sinkhorn", "sampled", "place") if getattr(options, name))]
        shared |= {"prototypes": options.prototypes, "steps": steps}
        for backbone in options.backbones or dict.fromkeys(name for name, _ in TABLE_9):
            for batch in options.batches or [*(batch for name, batch in TABLE_9 if name == backbone), BATCH]:
                yield {"table": 9, "backbone": backbone, "batch": batch, **shared}


def matches(row: Row, about: Row) -> bool:
    """Return whether a row has these settings, and at least these steps."""
    same = all(row.get(name) == value for name, value in about.items() if name != "steps")
    return same and {*about.get("steps", ())} <= {*row.get("steps", ())}


def measure_row(about: Row, device: torch.device) -> Row:
    settings = {name: about[name] for name in ("backbone", "batch", "size", "compile")}
    if about["table"] == 8:
        return about | measure_throughput(**settings, device=device) | _get_paper_throughput(about["backbone"])
    found = measure_regions(**settings, prototypes=about["prototypes"], device=device, further=about["steps"][1:])
    return about | found | _get_paper_cost(about["backbone"], about["batch"])


def _get_paper_throughput(backbone: str) -> Row:
    return {"paper_images_per_second": TABLE_8[backbone]} if backbone in TABLE_8 else {}


def _get_paper_cost(backbone: str, batch: int) -> Row:
    if (backbone, batch) not in TABLE_9:
        return {}
    paper = TABLE_9[backbone, batch]
    sides = {"view": paper.view, "both": paper.both}
    return {
        "paper_seconds": {name: seconds for name, (_, seconds) in sides.items()},
        "paper_mb": {name: memory for name, (memory, _) in sides.items()},
        "paper_time_ratio": {"both": paper.ratio["time"]},
        "paper_memory_ratio": {"both": paper.ratio["memory"]},
    }


def format_row(row: Row) -> str:
    name = f"Table {row['table']}, {row['backbone']}, batch {row['batch']}:"
    if row["table"] == 8:
        paper = row.get("paper_images_per_second")
        return f"{name} {row['images_per_second']:,.0f} images/s" + (f" (paper {paper:,})" if paper else "")
    parts = []
    for kind, seconds in row["seconds"].items():
        figures = f"{1000 * seconds:.2f} ms{_format_ratio(row, 'time_ratio', kind)}"
        if row["peak_gb"][kind]:
            figures += f", {1000 * row['peak_gb'][kind]:,.0f} MB{_format_ratio(row, 'memory_ratio', kind)}"
        parts.append(f"{kind} {figures}")
    return f"{name} {'; '.join(parts)}"


def _format_ratio(row: Row, which: str, kind: str) -> str:
    if kind not in row[which]:
        return ""
    paper = row.get(f"paper_{which}", {}).get(kind)
    return f" ({row[which][kind]:.3f} times" + (f", paper {paper:.3f})" if paper else ")")


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", type=int, choices=(8, 9), default=[8, 9])
    parser.add_argument("--backbones", nargs="+", help="default: those of the tables")
    parser.add_argument("--batches", nargs="+", type=int, help="for Table 9; default: the paper's and 128")
    parser.add_argument("--inference-batch", type=int, default=BATCH, help="for Table 8")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--prototypes", type=int, default=65_536)
    parser.add_argument("--sinkhorn", action="store_true", help="also measure optimal transport")
    parser.add_argument("--sampled", action="store_true", help="also measure every second region down and across")
    parser.add_argument("--place", action="store_true", help="also measure regions matched by place")
    parser.add_argument("--compile", choices=get_args(Compile), default="on", help="on GPUs; see --loop.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, help="start no row after this many minutes")
    parser.add_argument("--out", help="write the rows as JSON")
    return parser.parse_args(argv)


def build_command(options: argparse.Namespace, rows: list[Row]) -> str:
    """Return one command for the rows of all calls: without a choice of rows if all are in the tables."""
    settings = _format_flags(options, SETTINGS)
    whole = list(list_rows(parse_options([*settings, "--device", options.device])))
    in_tables = all(any(matches(row, about) for about in whole) for row in rows)
    choice = [] if in_tables else _format_flags(options, CHOICE)
    return shlex.join(["python", "benchmarks/esvit_cost.py", *choice, *settings])


def _format_flags(options: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """Format the flags that differ from their defaults."""
    defaults, words = parse_options([]), []
    for name in names:
        value = getattr(options, name)
        if value != getattr(defaults, name):
            given = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, given)]
    return words


def main(argv: list[str] | None = None) -> None:
    options, began = parse_options(argv), time.monotonic()
    rows, table = read_earlier(options.out).get("rows", []), list(list_rows(options))
    missing = [about for about in table if not any(matches(row, about) for row in rows)]
    print(f"{len(table) - len(missing)} of {len(table)} rows were measured earlier.", flush=True)
    for i, about in enumerate(missing):
        if options.minutes is not None and time.monotonic() - began >= 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over; {len(missing) - i} rows are left for another call.")
            break
        try:
            row = measure_row(about, torch.device(options.device)) | {"commit": describe_environment()["commit"]}
        except RunAborted as problem:
            print(problem, flush=True)
            continue
        print(format_row(row), flush=True)
        rows = [*(old for old in rows if not matches(row, {name: old.get(name) for name in about})), row]
        write_rows(options.out, "Cost of EsViT beside its paper", build_command(options, rows), rows)


if __name__ == "__main__":
    main()
