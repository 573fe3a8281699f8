"""Read files that somebody damaged or made up, and add the counts to a file.

python -m tests.hostile_campaign results/reliability.json
python -m tests.hostile_campaign results/reliability.json --inputs 100 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.table import Table
from safetensors.torch import save_file

from tests.conftest import make_folder
from tests.data.test_hostile_sources import (
    COLUMN_SETS,
    FEATURES,
    make_intact_parquet,
    make_parquet,
    make_tar,
    read_whole_parquet,
)
from tests.hostile import accepts_or_refuses, damaged_bytes, damaged_records, json_texts
from tests.tiny import tiny_backbone
from vitling.backbones.transfer import load_weights
from vitling.console import Console, echo
from vitling.data.config import DataConfig
from vitling.data.sources import read_source
from vitling.evaluation.bundle import load_bundle, save_bundle
from vitling.evaluation.familiarity import ImageSummary, calibrate_familiarity, fit_familiarity
from vitling.evaluation.meta import BundleMeta
from vitling.evaluation.predictions import SplitPredictions, load_predictions, save_predictions
from vitling.evaluation.trust import Trust, load_trust, save_trust
from vitling.files import lock_folder, make_csv, write_json
from vitling.loading import read_json, read_json_lines, read_record
from vitling.records import MetricsLine, RunResult
from vitling.runs.calibration import load_calibration
from vitling.settings.config import TrainConfig
from vitling.settings.saved import load_config
from vitling.training.checkpoint import Checkpoints
from vitling.training.rundir import describe_environment

KEY = "hostile"


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of one file, and the content that it should accept or refuse in one message."""

    path: Path
    inputs: st.SearchStrategy[bytes]
    read: Callable[[], Any]

    def run(self, count: int, number: int) -> tuple[int, Counter[str]]:
        """Read `count` inputs; return how many were tried, and how often each kind of error came out."""
        tried, errors = 0, Counter[str]()

        @seed(number)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(content=self.inputs)
        def read_all(content: bytes) -> None:
            nonlocal tried
            tried += 1
            self.path.write_bytes(content)
            try:
                accepts_or_refuses(self.read)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                errors[f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}: {error}"] += 1

        read_all()
        return tried, errors


def list_readers(base: Path) -> dict[str, Reader]:
    """Prepare files that are intact, and return the reader of each by what the file is."""
    return dict([*_list_run_readers(base), *_list_model_readers(base), *_list_data_readers(base)])


def _encode(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value, default=list)).encode("utf-8", "replace")


def _list_run_readers(base: Path) -> Iterator[tuple[str, Reader]]:
    path = base / "config.json"
    config = json.loads(_encode(dataclasses.asdict(TrainConfig(source="images", out="run"))))
    inputs = (damaged_records(config) | json_texts).map(_encode)
    yield "config.json", Reader(path, inputs, lambda: load_config(TrainConfig, read_json(path), path))
    figures = {"epoch": 1, "val": {"n": 9, "top1": 0.5}}
    result = {"size": 32, "images": 9, "epochs": 1, "seconds": 1.0, "images_per_second": 9.0, "backbone": "vit"}
    result |= {"seed": 0, "accumulate": 1, "last": figures, "best": figures}
    inputs, other = (damaged_records(result) | json_texts).map(_encode), base / "result.json"
    yield "result.json", Reader(other, inputs, lambda: read_record(other, RunResult))
    lines = st.lists(damaged_records({"step": 1, "epoch": 1, "loss": 0.5}).map(_encode), max_size=4).map(b"\n".join)
    metrics = base / "metrics.jsonl"
    yield "metrics.jsonl", Reader(metrics, lines, lambda: read_json_lines(metrics, MetricsLine))
    part = SplitPredictions(np.arange(9, dtype=np.uint64), np.zeros(9, int), np.zeros(9, int), np.arange(9))
    save_predictions(base, {"last/val": part})
    answers = base / "answers.npz"
    yield "answers.npz", Reader(answers, damaged_bytes(answers.read_bytes()), lambda: load_predictions(base))


def _list_model_readers(base: Path) -> Iterator[tuple[str, Reader]]:
    for name in ("description", "weights"):
        meta = BundleMeta("single", ("cat", "dog"), 16, 18, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
        save_bundle(base / name, tiny_backbone(), torch.nn.Linear(32, 2), meta)
    config, weights = base / "description" / "config.json", base / "weights" / "model.safetensors"
    inputs = (damaged_records(json.loads(config.read_text())) | json_texts).map(_encode)
    yield "model/config.json", Reader(config, inputs, lambda: load_bundle(config.parent))
    inputs = damaged_bytes(weights.read_bytes())
    yield "model/model.safetensors", Reader(weights, inputs, lambda: load_bundle(weights.parent))
    trust, calibration = base / "weights" / "trust.safetensors", base / "calibration.safetensors"
    known = fit_familiarity(ImageSummary(torch.randn(20, 64), torch.randn(20, 12)))
    save_trust(trust.parent, Trust(torch.rand(9), calibrate_familiarity(known, torch.rand(9, 3))))
    yield (
        "model/trust.safetensors",
        Reader(trust, damaged_bytes(trust.read_bytes()), lambda: load_trust(trust.parent, 32, 12)),
    )
    save_file({"logits": torch.rand(9, 2), "labels": torch.zeros(9).long(), "distances": torch.rand(9, 2)}, calibration)
    inputs = damaged_bytes(calibration.read_bytes())
    yield calibration.name, Reader(calibration, inputs, lambda: load_calibration(calibration))
    backbone, saved = tiny_backbone(), base / "a.pth"
    torch.save(backbone.timm_model.state_dict(), saved)
    yield "weights (.pth)", Reader(saved, damaged_bytes(saved.read_bytes()), lambda: load_weights(backbone, saved))
    checkpoints = Checkpoints(base / "checkpoints", 1)
    checkpoints.folder.mkdir()
    checkpoints.save(1, {"model": {"weight": torch.ones(4)}})
    (path,) = checkpoints.all()
    device = torch.device("cpu")
    inputs = damaged_bytes(path.read_bytes())
    yield "checkpoint", Reader(path, inputs, lambda: checkpoints.load_latest(device, lambda _: None))


def _list_data_readers(base: Path) -> Iterator[tuple[str, Reader]]:
    arrays = io.BytesIO()
    np.savez(arrays, x=np.zeros((3, 4, 4), np.uint8), y=np.array(["cat", "dog", "cat"]))
    tables = st.text(max_size=80).map(lambda text: f"path,label,split\n{text}".encode("utf-8", "replace"))
    tars = damaged_bytes(make_tar()) | json_texts.map(make_tar)
    for name, inputs in {"data.npz": damaged_bytes(arrays.getvalue()), "data.tar": tars, "data.csv": tables}.items():
        yield name, Reader(base / name, inputs, lambda path=base / name: read_source(str(path), DataConfig()))
    parquet = base / "data.parquet"
    inputs = damaged_bytes(make_intact_parquet()) | st.builds(make_parquet, COLUMN_SETS, FEATURES)
    yield parquet.name, Reader(parquet, inputs, lambda: read_whole_parquet(parquet))
    root, labels = make_folder(base / "images", classes=2, each=1), base / "labels.csv"
    rows = st.lists(st.tuples(st.sampled_from(["class-0/image-00.png", "x"]), st.text(max_size=9)), max_size=4)
    inputs = rows.map(lambda rows: make_csv([("path", "label"), *rows]).encode("utf-8", "replace"))
    yield "--labels", Reader(labels, inputs, lambda: read_source(str(root), DataConfig(), str(labels)))
    names = base / "names.txt"
    inputs = st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    yield "names", Reader(names, inputs, lambda: _show(names.read_bytes().decode("utf-8", "surrogatepass")))


def _show(name: str) -> None:
    """Show a name in a line and in a table; check that no control character is left, and that it can be encoded."""
    shown, table = io.StringIO(), Table(name)
    table.add_row(name)
    echo(name, file=shown)
    Console(file=shown, width=80).print(table)
    assert not {c for c in shown.getvalue() if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
    shown.getvalue().encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--inputs", type=int, default=400, help="inputs for each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows, environment = [], describe_environment()
    with tempfile.TemporaryDirectory() as folder:
        for name, reader in list_readers(Path(folder)).items():
            tried, errors = reader.run(arguments.inputs, arguments.seed)
            rows.append({"file": name, "inputs": tried, "tracebacks": errors.total()})
            print(rows[-1], *errors.items(), sep="\n", flush=True)
    total = {key: sum(row[key] for row in rows) for key in ("inputs", "tracebacks")}
    out = arguments.out.absolute()
    limits = f"--inputs {arguments.inputs} --seed {arguments.seed}"
    command = f"python -m tests.hostile_campaign results/{out.name} {limits}"
    with lock_folder(out.parent):
        known = read_json(out) if out.exists() else {}
        found = {"command": command, "environment": environment | {"command": command}, **total, "rows": rows}
        write_json(out, known | {KEY: found})
    if total["tracebacks"]:
        raise SystemExit(f"{total['tracebacks']} of {total['inputs']} inputs ended in a traceback")


if __name__ == "__main__":
    main()
