"""Measure how much of the bare step's speed the whole loop keeps, and how fast other libraries would feed it.

    python benchmarks/throughput.py --operations --out results/throughput-h200.json
    python benchmarks/throughput.py --device cpu --workloads views-96 tiny --out results/throughput-cpu.json

Measured for each workload in one process: the step alone on fixed views; the whole loop with store and views; the views
alone; and the same step fed by torchvision and PIL from decoded pixels through a DataLoader with all cores, by kornia
on the device, and by lightly's transforms in the DataLoader. kornia and lightly are skipped if they are not installed
or the views are not SimCLR's. Ratios are within one run. `--operations` adds the time of each operation. The objectives
have the shape of each method's work; they are for timing, not for training.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, get_args

import torch
from operations import time_operations
from peers import Kornia, is_available, make_lightly_views, make_pil_loader
from record import read_earlier, write_rows
from torch import Tensor
from torch.utils.data import DataLoader
from workloads import WORKLOADS

from vitling.data.store import Store
from vitling.papers.measure import FixedViewsTrainer, Workload, make_store, make_trainer, time_steps
from vitling.training.compilation import Compile
from vitling.training.pace import WARMUP_STEPS, synchronise
from vitling.training.rundir import describe_environment
from vitling.training.trainer import Trainer
from vitling.views import Views

STEPS, BATCHES = 40, 8


class FedTrainer(FixedViewsTrainer):
    """Trainer with views from another source, copied to fixed memory so that the step can replay its CUDA graph."""

    incoming: Iterator[list[Tensor]]

    def get_views(self, part):
        fresh = (view.to(self.store.device, non_blocking=True) for view in next(self.incoming))
        groups = self.objective.plan.groups
        pixels = [torch.cat(list(islice(fresh, group.count))).to(self.precision.dtype) for group in groups]
        if self.ready is None:
            self.ready = [Views(fed, group.count) for fed, group in zip(pixels, groups)]
        else:
            for view, fed in zip(self.ready, pixels):
                view.pixels.copy_(fed)
        return self.ready


def time_views(trainer: Trainer, steps: int, batch: int) -> float:
    loaded = next(iter(trainer.feed.batches(0, 0)))

    def render(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                if trainer.prefetcher:
                    for part in loaded.micro_batches:
                        part.views = None
                    trainer.prefetcher.prepare(loaded)
                for part in loaded.micro_batches:
                    trainer.get_views(part)

    render(WARMUP_STEPS)
    synchronise(trainer.store.device)
    started = time.perf_counter()
    render(steps)
    synchronise(trainer.store.device)
    return steps * batch / (time.perf_counter() - started)


def measure(
    name: str, device: torch.device, workers: int, compile: Compile, with_peers: bool, steps: int
) -> dict[str, Any]:
    work = WORKLOADS[name]
    images = work.batch * BATCHES
    store = make_store(images, work.plan.store_side(images), device)
    crops = work.plan.crops
    row: dict[str, Any] = {"workload": name, "backbone": work.backbone, "batch": work.batch, "crops": crops}
    row["store"] = store.size
    row |= {"steps": steps, "compile": compile, "commit": describe_environment()["commit"]}
    views_only = name.startswith("views")
    if not views_only:
        began = time.perf_counter()
        row["step_alone"] = time_steps(make_trainer(FixedViewsTrainer, work, store, compile), steps, work.batch)
        row["seconds_before"] = time.perf_counter() - began - steps * work.batch / row["step_alone"]
        _reset(device)
        whole = make_trainer(Trainer, work, store, compile)
        row["whole_loop"] = time_steps(whole, steps, work.batch)
        row["ratio"] = row["whole_loop"] / row["step_alone"]
        row["crops_per_second"] = row["whole_loop"] * crops
        if device.type == "cuda":
            row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    else:
        whole = make_trainer(Trainer, work, store, compile)
    row["views_alone"] = time_views(whole, steps, work.batch)
    if not views_only:
        row["views_share_of_step"] = row["whole_loop"] / row["views_alone"]
    if with_peers:
        for peer, source in _make_peers(work, store, workers, steps + 2 * WARMUP_STEPS + 1).items():
            if views_only:
                row[f"{peer}_alone"] = _time_source(source, steps, work.batch)
                row[f"views_over_{peer}"] = row["views_alone"] / row[f"{peer}_alone"]
            else:
                row[f"{peer}_fed"] = _time_fed(
                    make_trainer(FedTrainer, work, store, compile), source, steps, work.batch
                )
                row[f"over_{peer}"] = row["whole_loop"] / row[f"{peer}_fed"]
    _reset(device)
    return row


def _make_peers(work: Workload, store: Store, workers: int, batches: int) -> dict[str, Iterable[list[Tensor]]]:
    peers: dict[str, Iterable[list[Tensor]]] = {"pil": make_pil_loader(work, store, workers, batches)}
    if is_available("lightly", work):
        peers["lightly"] = make_pil_loader(work, store, workers, batches, make_lightly_views)
    if is_available("kornia", work):
        peers["kornia"] = Kornia(work, store)
    return peers


def _time_fed(fed: FedTrainer, source: Iterable[list[Tensor]], steps: int, batch: int) -> float:
    """Time steps without the batches that workers prefetched during compilation."""
    fed.incoming = iter(source)
    time_steps(fed, 1, batch)
    if isinstance(source, DataLoader):
        for _ in range(source.num_workers * (source.prefetch_factor or 0)):
            next(fed.incoming)
    return time_steps(fed, steps, batch)


def _time_source(source: Iterable[list[Tensor]], steps: int, batch: int) -> float:
    incoming = iter(source)
    for _ in range(WARMUP_STEPS):
        next(incoming)
    started = time.perf_counter()
    for _ in range(steps):
        next(incoming)
    return steps * batch / (time.perf_counter() - started)


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _read_earlier_rows(out: str | None, workloads: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read rows of other workloads and operations that an earlier call measured on the same machine."""
    found = read_earlier(out)
    return [row for row in found.get("rows", []) if row["workload"] not in workloads], found.get("operations", [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["idmm", "idmm-64", "simclr", "supervised", "dino"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--no-peers", action="store_true", help="leave out PIL, lightly and kornia")
    parser.add_argument("--compile", choices=get_args(Compile), default="on", help="on GPUs; see --loop.compile")
    parser.add_argument("--operations", action="store_true", help="also time each operation")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows, operations = _read_earlier_rows(options.out, options.workloads)
    compile = options.compile if device.type == "cuda" else "off"

    def write() -> None:
        # the file may hold rows of several calls; record the one call that would measure all of them
        command = f"python benchmarks/throughput.py --workloads {' '.join(row['workload'] for row in rows)}"
        command += f" --compile {options.compile}" if options.compile != "on" else ""
        command += " --operations" if operations else ""
        write_rows(options.out, "Throughput of training, images per second", command, rows, operations=operations)

    for name in options.workloads:
        rows.append(measure(name, device, options.workers, compile, not options.no_peers, options.steps))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        write()
    if options.operations:
        batch, size = (256, 224) if device.type == "cuda" else (64, 96)
        operations = []
        for row in time_operations(device, compile != "off", batch, size, options.steps):
            operations.append(row)
            write()


if __name__ == "__main__":
    main()
