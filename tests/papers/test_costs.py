"""Cost of EsViT's region loss and throughput of networks: small trials on the CPU."""

from __future__ import annotations

import pytest
import torch

from vitling.errors import RunAborted, UserError
from vitling.papers import costs
from vitling.papers import measure as measuring
from vitling.papers.costs import TABLE_9, RegionCostTask, ThroughputTask, measure_regions
from vitling.papers.figures import read_figures
from vitling.papers.study import RunContext

NANO, CPU = "vit_nano_patch4_32", torch.device("cpu")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is none")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(measuring, "ROUNDS", 2)
    monkeypatch.setattr(measuring, "STEPS", 2)
    monkeypatch.setattr(measuring, "WARMUP_STEPS", 1)


def test_steps_with_both_losses_are_set_beside_those_with_the_view_loss():
    """A single image works too."""
    row = measure_regions(NANO, 1, 32, 64, CPU, ("sinkhorn", "sampled", "place"))
    assert list(row["seconds"]) == ["view", "both", "sinkhorn", "sampled", "place"]
    for name, ratio in row["time_ratio"].items():
        assert ratio == pytest.approx(row["seconds"][name] / row["seconds"]["view"])
    assert list(row["time_ratio"]) == ["both", "sinkhorn", "sampled", "place"]
    assert (row["batch"], row["prototypes"], len(row["rounds"])) == (1, 64, 2)
    assert row["memory_ratio"] == {}  # no peak on a CPU


def test_what_is_compared_is_what_is_said(monkeypatch):
    made = {}

    def compare(backbone, batch, size, plan, objectives, *rest, **more):
        from vitling.backbones import create

        made.update({name: make(create(NANO, 32), plan, 8).config for name, make in objectives.items()})
        seconds = {name: 1.0 + i for i, name in enumerate(objectives)}
        peaks = {name: 2.0 + i for i, name in enumerate(objectives)}
        about = {"backbone": backbone, "batch": batch, "size": size}
        return about | {"seconds": seconds, "peak_gb": peaks, "rounds": []}

    monkeypatch.setattr(measuring, "compare_steps", compare)
    row = measure_regions(NANO, 3, 32, 64, CPU, ("sampled",))
    assert row["memory_ratio"] == {"both": 1.5, "sampled": 2.0}
    assert {config.prototypes for config in made.values()} == {64}
    assert (made["view"].region_weight, made["both"].region_weight, made["sampled"].region_stride) == (0.0, 0.5, 2)


def test_one_measurement_serves_both_figures(monkeypatch, tmp_path):
    calls = []

    def measure(*settings):
        calls.append(settings)
        return {
            "seconds": {"view": 0.1, "both": 0.11},
            "peak_gb": {"view": 2.0, "both": 2.5},
            "time_ratio": {"both": 1.1},
            "memory_ratio": {"both": 1.25},
        }

    monkeypatch.setattr(costs, "measure_regions", measure)
    time, memory = (RegionCostTask(NANO, 2, figure, size=32, prototypes=64) for figure in ("time", "memory"))
    starts = [RunContext(tmp_path / name, stages=tmp_path / "stages") for name in ("time", "memory")]
    assert time(starts[0])["value"] == 1.1
    row = memory(starts[1])
    assert {"value", "seconds", "step_view", "step_both", "peak_gb_view", "peak_gb_both"} == set(row)
    assert (row["value"], row["peak_gb_both"]) == (1.25, 2.5)
    assert memory(starts[1]) == row
    assert all((context.out / "environment.json").exists() for context in starts)
    assert len(calls) == 1
    RegionCostTask(NANO, 3, "time", size=32, prototypes=64)(RunContext(tmp_path / "other", stages=tmp_path / "stages"))
    time(RunContext(tmp_path / "seed", seed=1, stages=tmp_path / "stages"))
    assert [settings[:4] for settings in calls] == [(NANO, 2, 32, 64), (NANO, 3, 32, 64), (NANO, 2, 32, 64)]
    assert time.settings != memory.settings


@needs_no_gpu
def test_where_there_is_no_gpu_that_is_said(tmp_path):
    context = RunContext(tmp_path / "run", stages=tmp_path / "stages")
    for task in (RegionCostTask(NANO, 2, "time"), RegionCostTask(NANO, 2, "memory"), ThroughputTask(NANO)):
        with pytest.raises(UserError, match="measured on a GPU"):
            task(context)
    with pytest.raises(UserError, match=r"memory of EsViT.*measured on a GPU"):
        RegionCostTask(NANO, 1, "memory", size=32, prototypes=64)(context)


@needs_no_gpu
def test_a_small_network_is_measured_anywhere(tmp_path):
    task, context = ThroughputTask(NANO, batch=2, size=32), RunContext(tmp_path / "run")
    row = task(context)
    assert isinstance(row["value"], int)
    assert row["value"] > 0
    assert task(context) == row


def test_steps_that_are_not_alike_are_not_compared():
    measuring._check_comparable({(1, True)}, NANO, 8)
    with pytest.raises(RunAborted, match="Out of memory"):
        measuring._check_comparable({(2, True)}, NANO, 8)
    with pytest.raises(RunAborted, match="recorded"):
        measuring._check_comparable({(1, True), (1, False)}, NANO, 8)


def test_the_paper_s_ratios_are_those_of_its_cells():
    """As printed, but for two that are misprints."""
    printed = {
        ("deit_small_patch16_224", 1): (1.8986, 1.1153),
        ("deit_small_patch16_224", 8): (3.7872, 1.3666),
        ("deit_small_patch16_224", 12): (3.9988, 1.4794),
        ("swin_tiny_patch4_window7_224", 1): (1.3767, 1.0568),
        ("swin_tiny_patch4_window7_224", 8): (1.4736, 1.1567),  # printed 1.2323
        ("swin_tiny_patch4_window7_224", 12): (1.5889, 1.1494),
        ("swin_small_patch4_window7_224", 1): (1.1664, 1.0664),
        ("swin_base_patch4_window7_224", 1): (1.1739, 1.0669),
        ("swin_tiny_patch4_window7_224.window14", 1): (1.2974, 1.0763),  # printed 1.0890
        ("swin_small_patch4_window7_224.window14", 1): (1.1805, 1.0501),
        ("swin_base_patch4_window7_224.window14", 1): (1.1289, 1.0510),
    }
    assert TABLE_9.keys() == printed.keys()
    for key, (memory, time) in printed.items():
        ratio = TABLE_9[key].ratio
        assert (ratio["memory"], ratio["time"]) == pytest.approx((memory, time), abs=4e-4)


def test_the_networks_of_both_tables_are_there():
    from vitling.backbones.names import find_entry

    assert all(find_entry(name) for name in (*read_figures("esvit-t8"), *(backbone for backbone, _ in TABLE_9)))
