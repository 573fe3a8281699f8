"""What EsViT costs, beside its paper: the region loss in time and memory (Table 9), the networks' throughput (Table 8).

    python benchmarks/esvit_cost.py --out results/esvit-cost-h200.json

Table 9: a compiled training step on ready views with the view loss alone, and with both; at the paper's batches and at
128. `--sinkhorn`, `--sampled` and `--place` add steps with optimal transport, with every second region down and across,
and with regions that are matched by their places.
Table 8: images of 224 px whose features a network makes in a second. The paper's own figures are of other machines: its
ratios compare, its megabytes and seconds do not.

It takes a while. Rows are written as they come, and those that are in the file already are not measured again: with
`--minutes M`, after which no further row is begun, it can be spread over several calls.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator
from typing import Any, get_args

import torch
from record import found_before, write_rows

from vitling.errors import RunAborted
from vitling.papers.region_cost import TABLE_8, TABLE_9, measure, measure_throughput
from vitling.training.precision import Compile
from vitling.training.rundir import describe_environment

BATCH = 128
SETTINGS = ("inference_batch", "size", "prototypes", "sinkhorn", "sampled", "place", "compile")
CHOICE = ("tables", "backbones", "batches")
Row = dict[str, Any]


def wanted(options: argparse.Namespace) -> Iterator[Row]:
    """What each row of the tables is of; `steps` are those beside the ones with the view loss."""
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


def has(row: Row, about: Row) -> bool:
    """Whether the row is what is wanted, or that and more steps."""
    alike = all(row.get(name) == value for name, value in about.items() if name != "steps")
    return alike and {*about.get("steps", ())} <= {*row.get("steps", ())}


def measured(about: Row, device: torch.device) -> Row:
    settings = {name: about[name] for name in ("backbone", "batch", "size", "compile")}
    if about["table"] == 8:
        return about | measure_throughput(**settings, device=device) | _published_pace(about["backbone"])
    found = measure(**settings, prototypes=about["prototypes"], device=device, further=about["steps"][1:])
    return about | found | _published_cost(about["backbone"], about["batch"])


def _published_pace(backbone: str) -> Row:
    return {"paper_images_per_second": TABLE_8[backbone]} if backbone in TABLE_8 else {}


def _published_cost(backbone: str, batch: int) -> Row:
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


def said(row: Row) -> str:
    """A line of print."""
    name = f"Table {row['table']}, {row['backbone']}, batch {row['batch']}:"
    if row["table"] == 8:
        paper = row.get("paper_images_per_second")
        return f"{name} {row['images_per_second']:,.0f} images/s" + (f" (paper {paper:,})" if paper else "")
    parts = []
    for kind, seconds in row["seconds"].items():
        figures = f"{1000 * seconds:.2f} ms{_times(row, 'time_ratio', kind)}"
        if row["peak_gb"][kind]:
            figures += f", {1000 * row['peak_gb'][kind]:,.0f} MB{_times(row, 'memory_ratio', kind)}"
        parts.append(f"{kind} {figures}")
    return f"{name} {'; '.join(parts)}"


def _times(row: Row, which: str, kind: str) -> str:
    if kind not in row[which]:
        return ""
    paper = row.get(f"paper_{which}", {}).get(kind)
    return f" ({row[which][kind]:.3f} times" + (f", paper {paper:.3f})" if paper else ")")


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", type=int, choices=(8, 9), default=[8, 9])
    parser.add_argument("--backbones", nargs="+", help="by default those of the tables")
    parser.add_argument("--batches", nargs="+", type=int, help="of Table 9; by default the paper's and 128")
    parser.add_argument("--inference-batch", type=int, default=BATCH, help="of Table 8")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--prototypes", type=int, default=65_536)
    parser.add_argument("--sinkhorn", action="store_true", help="also steps with optimal transport")
    parser.add_argument("--sampled", action="store_true", help="also steps with every second region down and across")
    parser.add_argument("--place", action="store_true", help="also steps with regions matched by place")
    parser.add_argument("--compile", choices=get_args(Compile), default="on", help="on GPUs; see --loop.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, help="begin no further row after so many")
    parser.add_argument("--out", help="write the rows as JSON")
    return parser.parse_args(argv)


def command_of(options: argparse.Namespace, rows: list[Row]) -> str:
    """Rows of several calls may stand together: one that names no rows gives them all, if they are of the tables."""
    settings = _flags(options, SETTINGS)
    whole = list(wanted(parsed([*settings, "--device", options.device])))
    named = all(any(has(row, about) for about in whole) for row in rows)
    choice = [] if named else _flags(options, CHOICE)
    return shlex.join(["python", "benchmarks/esvit_cost.py", *choice, *settings])


def _flags(options: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """Those that are not the defaults."""
    plain, words = parsed([]), []
    for name in names:
        value = getattr(options, name)
        if value != getattr(plain, name):
            given = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, given)]
    return words


def main(argv: list[str] | None = None) -> None:
    options, began = parsed(argv), time.monotonic()
    rows, table = found_before(options.out).get("rows", []), list(wanted(options))
    lacking = [about for about in table if not any(has(row, about) for row in rows)]
    print(f"{len(table) - len(lacking)} of {len(table)} rows are there already.", flush=True)
    for i, about in enumerate(lacking):
        if options.minutes is not None and time.monotonic() - began >= 60 * options.minutes:
            print(f"{options.minutes:g} minutes are spent; {len(lacking) - i} rows are left for another call.")
            break
        try:
            row = measured(about, torch.device(options.device)) | {"commit": describe_environment()["commit"]}
        except RunAborted as problem:
            print(problem, flush=True)
            continue
        print(said(row), flush=True)
        rows = [*(old for old in rows if not has(row, {name: old.get(name) for name in about})), row]
        write_rows(options.out, "What EsViT costs, beside its paper", command_of(options, rows), rows)


if __name__ == "__main__":
    main()
