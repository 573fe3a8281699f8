"""How much of the model's own speed the whole loop keeps, and what PIL in worker processes would give.

    python benchmarks/throughput.py --operations --out results/throughput-h200.json
    python benchmarks/throughput.py --device cpu --workloads views-96 tiny --out results/throughput-cpu.json

For each workload, in one process: the step alone on ready views; the whole loop with store and views; the views alone;
the same step fed by torchvision and PIL from decoded pixels through a DataLoader with all cores; and fed by kornia on
the device and by lightly's transforms in the DataLoader, where they are installed and the views are SimCLR's. Ratios
are within the run. `--operations` adds the time of each operation. The objectives are stand-ins with the shape of the
method's work: they are for timing, not for training.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, get_args

import torch
from operations import operation_times
from peers import Kornia, as_lightly, installed, pil_loader
from record import found_before, write_rows
from torch import Tensor
from torch.utils.data import DataLoader
from workloads import WORKLOADS

from vitling.data.store import Store
from vitling.papers.measure import FixedViewsTrainer, Workload, make_store, make_trainer, time_steps
from vitling.training.loop import Trainer
from vitling.training.pace import WARMUP_STEPS, synchronise
from vitling.training.precision import Compile
from vitling.training.rundir import describe_environment
from vitling.views import Views

STEPS, BATCHES = 40, 8


class Fed(FixedViewsTrainer):
    """The same step, its views from elsewhere: brought to where the first ones lie, so that the step can be played."""

    incoming: Iterator[list[Tensor]]

    def get_views(self, part):
        fresh = (view.to(self.store.device, non_blocking=True) for view in next(self.incoming))
        groups = self.objective.plan.groups
        pixels = [torch.cat(list(islice(fresh, group.count))).to(self.precision.dtype) for group in groups]
        if self.ready is None:
            self.ready = [Views(some, group.count) for some, group in zip(pixels, groups)]
        else:
            for view, some in zip(self.ready, pixels):
                view.pixels.copy_(some)
        return self.ready


def views_pace(trainer: Trainer, steps: int, batch: int) -> float:
    loaded = next(iter(trainer.feed.batches(0, 0)))

    def some(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                if trainer.ahead:
                    for part in loaded.micro_batches:
                        part.views = None
                    trainer.ahead.prepare(loaded)
                for part in loaded.micro_batches:
                    trainer.get_views(part)

    some(WARMUP_STEPS)
    synchronise(trainer.store.device)
    started = time.perf_counter()
    some(steps)
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
    row["views_alone"] = views_pace(whole, steps, work.batch)
    if not views_only:
        row["views_share_of_step"] = row["whole_loop"] / row["views_alone"]
    if with_peers:
        for peer, source in _peers(work, store, workers, steps + 2 * WARMUP_STEPS + 1).items():
            if views_only:
                row[f"{peer}_alone"] = _source_pace(source, steps, work.batch)
                row[f"views_over_{peer}"] = row["views_alone"] / row[f"{peer}_alone"]
            else:
                row[f"{peer}_fed"] = _fed_pace(make_trainer(Fed, work, store, compile), source, steps, work.batch)
                row[f"over_{peer}"] = row["whole_loop"] / row[f"{peer}_fed"]
    _reset(device)
    return row


def _peers(work: Workload, store: Store, workers: int, batches: int) -> dict[str, Iterable[list[Tensor]]]:
    peers: dict[str, Iterable[list[Tensor]]] = {"pil": pil_loader(work, store, workers, batches)}
    if installed("lightly", work):
        peers["lightly"] = pil_loader(work, store, workers, batches, as_lightly)
    if installed("kornia", work):
        peers["kornia"] = Kornia(work, store)
    return peers


def _fed_pace(fed: Fed, source: Iterable[list[Tensor]], steps: int, batch: int) -> float:
    """What workers laid by while the step was compiled does not count."""
    fed.incoming = iter(source)
    time_steps(fed, 1, batch)
    if isinstance(source, DataLoader):
        for _ in range(source.num_workers * (source.prefetch_factor or 0)):
            next(fed.incoming)
    return time_steps(fed, steps, batch)


def _source_pace(source: Iterable[list[Tensor]], steps: int, batch: int) -> float:
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


def _measured_before(out: str | None, workloads: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A table may be measured in several calls: rows of other workloads stay, if the machine is the same."""
    found = found_before(out)
    return [row for row in found.get("rows", []) if row["workload"] not in workloads], found.get("operations", [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["idmm", "idmm-64", "simclr", "supervised", "dino"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--no-peers", action="store_true", help="leave out PIL, lightly and kornia")
    parser.add_argument("--compile", choices=get_args(Compile), default="on", help="on GPUs; see --loop.compile")
    parser.add_argument("--operations", action="store_true", help="also the time of each operation")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows, operations = _measured_before(options.out, options.workloads)
    compile = options.compile if device.type == "cuda" else "off"

    def write() -> None:
        # Rows of several calls may stand together: this is the call that would give them all.
        command = f"python benchmarks/throughput.py --workloads {' '.join(row['workload'] for row in rows)}"
        command += f" --compile {options.compile}" if options.compile != "on" else ""
        command += " --operations" if operations else ""
        write_rows(options.out, "Throughput of training, images a second", command, rows, operations=operations)

    for name in options.workloads:
        rows.append(measure(name, device, options.workers, compile, not options.no_peers, options.steps))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        write()
    if options.operations:
        batch, size = (256, 224) if device.type == "cuda" else (64, 96)
        operations = []
        for row in operation_times(device, compile != "off", batch, size, options.steps):
            operations.append(row)
            write()


if __name__ == "__main__":
    main()
