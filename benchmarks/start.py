"""Measure how long a training takes from the command to its full speed, and what that speed is.

    python benchmarks/start.py DATA --out results/start-h200.json
    python benchmarks/start.py DATA --modes on --inductor triton.autotune_pointwise=False

Each row is a process of its own: `vitling pretrain` (IDMM) or `train --method supervised` with one mode of
--loop.compile, with an empty cache and then with the cache that the run before it filled. "seconds" counts from the
start of the process until the pace has been measured, imports and decoding included; "images_per_second" is that pace.
The run is ended there. torch should have been installed with its bytecode, as pip does: without, every process compiles
that first. Every --inductor adds rows with these settings of torch's compiler beside those without; there
nothing is compiled in other processes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from record import format_command, hash_data, write_rows

STAGES = {"idmm": ["pretrain", "--method", "idmm"], "supervised": ["train", "--method", "supervised", "--val", "none"]}
PACE = re.compile(r"([\d,]+) images/s, \d+ s left to train")
# The processes that compile beside the run would not have these settings, so the run compiles all itself.
RUN = "; ".join(
    [
        "import torch._inductor.config as config",
        "{}",
        "import vitling.training.compile_ahead as ahead",
        "ahead._started = True",
        "from vitling.__main__ import main",
        "main()",
    ]
)
MINUTES = 30  # so long that every mode can be measured; the run ends after its first epochs


def measure(words: list[str], inductor: list[str], cache: Path) -> dict[str, Any]:
    """Start a training, wait until it has logged its pace, and end it."""
    settings = "; ".join(f"config.{setting}" for setting in inductor)
    start = ["-c", RUN.format(settings)] if inductor else ["-m", "vitling"]
    command = [sys.executable, *start, *words, "--minutes", str(MINUTES), "--overwrite", "--no-report"]
    began = time.perf_counter()
    environment = os.environ | {"VITLING_CACHE": str(cache)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # it would take the place of our cache
    lines = []
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line)
                if found := PACE.search(line):
                    seconds = time.perf_counter() - began
                    return {"seconds": seconds, "images_per_second": int(found[1].replace(",", ""))}
        finally:
            process.terminate()
    raise SystemExit(f"The run ended without a pace:\n{''.join(lines[-20:])}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--modes", nargs="+", default=["on", "blocks", "views", "off"])
    parser.add_argument("--backbone", default="pvt_v2_b0")
    parser.add_argument("--inductor", nargs="+", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    command, hashes = format_command("start", options, exclude="inductor"), hash_data(options.data)
    command += "".join(f" --inductor {' '.join(settings)}" for settings in options.inductor)
    for stage, mode, inductor in product(options.stages, options.modes, [[], *options.inductor]):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--out", f"{folder}/run", "--backbone", options.backbone, "--loop.compile", mode]
            for cache in ("empty", "filled"):
                found = measure([*STAGES[stage], options.data, *flags], inductor, Path(folder) / "cache")
                about = {"stage": stage, "compile": mode, "cache": cache}
                rows.append({**about, **({"inductor": " ".join(inductor)} if inductor else {}), **found})
                print(rows[-1], flush=True)
                write_rows(options.out, "seconds to full speed", command, rows, data_hashes=hashes)


if __name__ == "__main__":
    main()
