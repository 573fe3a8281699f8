"""What EsViT's region loss costs: a compiled training step with the view loss alone and with both, time and memory.

python benchmarks/esvit.py --out results/esvit-regions-h200.json
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from record import write_rows

from vitling.objectives import EsViT, EsViTConfig, dino_plan
from vitling.recipes.studies.overhead import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batches", nargs="+", type=int, default=[128])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--prototypes", type=int, default=65_536)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    alone = EsViTConfig(prototypes=options.prototypes, view_weight=1.0, region_weight=0.0)
    configs = {
        "without": alone,
        "regions": EsViTConfig(prototypes=options.prototypes),
        "sinkhorn": EsViTConfig(prototypes=options.prototypes, match="sinkhorn"),
    }
    objectives = {name: _maker(config) for name, config in configs.items()}
    plan, device, rows = dino_plan(alone, options.size), torch.device(options.device), []
    for batch in options.batches:
        row = compare(options.backbone, batch, options.size, plan, objectives, device)
        rows.append(row | {"prototypes": options.prototypes})
        memory = {name: f"{gb:.2f} GB" for name, gb in row["peak_gb"].items()}
        print(batch, {name: f"{share:+.2%}" for name, share in row["overhead"].items()}, memory, flush=True)
        command = f"python benchmarks/esvit.py --backbone {options.backbone} --size {options.size}"
        command += f" --batches {' '.join(map(str, options.batches))} --prototypes {options.prototypes}"
        what = "What the region loss of EsViT adds to a training step with the view loss"
        write_rows(options.out, what, command, rows)


def _maker(config: EsViTConfig) -> Any:
    return lambda backbone, plan, images: EsViT(backbone, plan, config)


if __name__ == "__main__":
    main()
