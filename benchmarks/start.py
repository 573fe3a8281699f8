"""Measure how long a training takes from the command to its full speed, and what that speed is.

    python benchmarks/start.py DATA --out results/start-h200.json

Each row is a process of its own: `vitling pretrain` (IDMM) or `train --method supervised` with one mode of
--loop.compile, with an empty cache and then with the cache that the run before it filled. "seconds" counts from the
start of the process until the pace has been measured, imports and decoding included; "images_per_second" is that pace.
The run is ended there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import format_command, hash_data, write_rows

STAGES = {"idmm": ["pretrain", "--method", "idmm"], "supervised": ["train", "--method", "supervised", "--val", "none"]}
PACE = re.compile(r"([\d,]+) images/s, \d+ s left to train")
MINUTES = 30  # so long that every mode can be measured; the run ends after its first epochs


def measure(data: str, stage: str, mode: str, backbone: str, cache: Path, folder: Path) -> dict[str, Any]:
    """Start a training, wait until it has logged its pace, and end it."""
    command = [sys.executable, "-m", "vitling", *STAGES[stage], data, "--out", str(folder / "run"), "--overwrite"]
    command += ["--backbone", backbone, "--minutes", str(MINUTES), "--loop.compile", mode, "--no-report"]
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
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    command, hashes = format_command("start", options), hash_data(options.data)
    for stage in options.stages:
        for mode in options.modes:
            with tempfile.TemporaryDirectory() as folder:
                for cache in ("empty", "filled"):
                    found = measure(options.data, stage, mode, options.backbone, Path(folder) / "cache", Path(folder))
                    rows.append({"stage": stage, "compile": mode, "cache": cache, **found})
                    print(rows[-1], flush=True)
                    write_rows(options.out, "seconds to full speed", command, rows, data_hashes=hashes)


if __name__ == "__main__":
    main()
