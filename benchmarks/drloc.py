"""Measure the overhead of DRLoc: a compiled training step with and without it, for any networks and variants.

    python benchmarks/drloc.py --out results/drloc-overhead-h200.json

`vitling reproduce drloc-supp-t14` measures the paper's three networks the same way.
"""

from __future__ import annotations

import argparse

import torch
from record import write_rows

from vitling.papers.costs import measure_drloc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=["swin_tiny_patch4_window7_224", "cvt_13", "t2t_vit_14"])
    parser.add_argument("--variants", nargs="+", default=["l1"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    rows = []
    for backbone in options.backbones:
        row = measure_drloc(backbone, options.batch, options.size, options.variants, torch.device(options.device))
        rows.append(row)
        print(backbone, {name: f"{share:+.2%}" for name, share in row["overhead"].items()}, row["peak_gb"], flush=True)
        command = f"python benchmarks/drloc.py --backbones {' '.join(row['backbone'] for row in rows)}"
        command += f" --variants {' '.join(options.variants)} --batch {options.batch} --size {options.size}"
        write_rows(options.out, "Overhead of DRLoc in a training step", command, rows)


if __name__ == "__main__":
    main()
