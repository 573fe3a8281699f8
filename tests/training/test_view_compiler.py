"""The process that compiles the views while the run compiles its network."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.utils._pytree import tree_flatten

from tests.tiny import tiny_backbone
from tests.training.helpers import ALONE, QUIET, StandInTask, config
from vitling.console import Log
from vitling.methods.idmm.loss import IDMM
from vitling.methods.supervised.loss import Supervised
from vitling.papers.measure import make_store
from vitling.training import compilation, helpers, view_compiler
from vitling.training.pace import iterate_batches, measure_pace, run_steps
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer
from vitling.training.view_compiler import can_precompile_views, make_task, precompile_views
from vitling.views import Plan, ViewsConfig
from vitling.views.plan import Group, Mix
from vitling.views.policies import idmm_finetune, idmm_pretrain

PLANS = {"own": ViewsConfig().plan(16), "pretrain": idmm_pretrain(16), "finetune": idmm_finetune(16)}


class Logged(Log):
    def __init__(self):
        super().__init__(silent=True)
        self.lines: list[str] = []

    def debug(self, message: str) -> None:
        self.lines.append(message)


def make_trainer(plan: Plan = PLANS["own"], images: int = 24, **changes) -> Trainer:
    torch.manual_seed(0)
    store = make_store(images, 16, torch.device("cpu"))
    many = len(plan.groups) > 1
    model = IDMM(tiny_backbone(), plan, images) if many else Supervised(tiny_backbone(), plan, classes=images)
    return Trainer(model, store, config(loop=replace(QUIET, compile="views"), **changes), ALONE, Log(silent=True))


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Record what is called compiled: functions with their settings, and the shapes and types of tensors."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    calls: set[tuple] = set()

    def describe(value: object) -> str:
        leaves, structure = tree_flatten(value)
        shapes = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
        return f"{structure} {shapes}"

    def compile_function(bound):
        def call(*arguments):
            calls.add((bound.func.__name__, repr(bound.keywords), describe(arguments)))
            return bound(*arguments)

        return call

    monkeypatch.setattr(compilation, "compile_function", compile_function)
    monkeypatch.setattr(view_compiler, "compile_function", compile_function)
    return calls


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_compiled_is_what_the_run_needs(plan, compiled):
    trainer = make_trainer(PLANS[plan])
    run_steps(trainer, iterate_batches(trainer), 2 * trainer.per_epoch)
    needed = set(compiled)
    compiled.clear()
    pickle.loads(pickle.dumps(make_task(trainer))).compile()
    assert len(needed) > 2
    assert compiled == needed


def test_datasets_of_other_sizes_need_the_same_compiled_code(compiled):
    needed, tasks = [], set()
    for images in (24, 26, 31):
        trainer = make_trainer(PLANS["pretrain"], images)
        run_steps(trainer, iterate_batches(trainer), trainer.per_epoch)
        needed.append(set(compiled))
        tasks.add(make_task(trainer).mark)
        compiled.clear()
    assert needed[0] == needed[1] == needed[2]
    assert len(tasks) == 1


def test_the_command_compiles_what_it_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    task = StandInTask(tmp_path)
    with helpers.Helper(view_compiler.VERB) as helper:
        helper.send(pickle.dumps((task, 1.0)))
        assert helper.ends_within(300)
        assert helper.find_problem() is None
    assert (tmp_path / "compiled").exists()


def test_the_run_finds_the_views_in_the_cache():
    trainer = make_trainer(Plan((Group(16),)))
    with fresh_cache():
        make_task(trainer).compile()
        torch._dynamo.reset()
        counters.clear()
        run_steps(trainer, iterate_batches(trainer), 1)
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_views_in_the_cache_are_not_compiled_again(compiled, tmp_path, monkeypatch):
    replace_python(tmp_path / "python", "exit 0", monkeypatch)
    trainer = make_trainer()
    mark = make_task(trainer).mark
    assert mark.is_relative_to(tmp_path)
    assert mark != make_task(make_trainer(PLANS["finetune"])).mark
    trainer.config = replace(trainer.config, loop=replace(trainer.config.loop, log_every=7, sampler="balanced"))
    assert mark == make_task(trainer).mark
    assert not mark.exists()
    with precompile_views(trainer, Log(silent=True)):
        run_steps(trainer, iterate_batches(trainer), 1)
    assert mark.exists()
    assert not compiled
    monkeypatch.setattr(view_compiler, "Helper", lambda verb: pytest.fail("it was started"))
    with precompile_views(trainer, Log(silent=True)):
        run_steps(trainer, iterate_batches(trainer), 1)
    assert compiled


def test_a_lack_of_memory_beside_the_other_process_is_forgotten(compiled, tmp_path, monkeypatch):
    replace_python(tmp_path / "python", "exit 0", monkeypatch)
    trainer = make_trainer()

    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch, precompile_views(trainer, Log(silent=True)):
        patch.setattr(trainer, "_take_step", fail)
        run_steps(trainer, iterate_batches(trainer), 1)
    run_steps(trainer, iterate_batches(trainer), 1)
    assert trainer.feed.accumulate == 1
    assert compiled


def test_a_plan_that_cannot_be_sent_does_not_end_the_run(compiled, monkeypatch):
    trainer, log = make_trainer(), Logged()
    monkeypatch.setattr(view_compiler.pickle, "dumps", lambda _: (lambda: None).missing)
    with precompile_views(trainer, log):
        run_steps(trainer, iterate_batches(trainer), 1)
    assert compiled
    assert "not compiled in another process" in log.lines[0]


@pytest.mark.parametrize(
    ("how", "device", "world", "cores", "gigabytes", "possible"),
    [
        ("on", "cuda", 1, 8, 20, True),
        ("blocks", "cuda", 1, 8, 20, True),
        ("views", "cuda", 1, 8, 20, False),  # there is no network to compile beside them
        ("off", "cuda", 1, 8, 20, False),
        ("on", "cpu", 1, 8, 20, False),
        ("on", "cuda", 2, 8, 20, False),
        ("on", "cuda", 1, 4, 20, False),
        ("on", "cuda", 1, 8, 10, False),
    ],
)
def test_conditions_for_compiling_in_another_process(how, device, world, cores, gigabytes, possible, monkeypatch):
    monkeypatch.setattr(view_compiler, "_started", False)
    monkeypatch.setattr(helpers, "count_cores", lambda: cores)
    monkeypatch.setattr(helpers, "get_free_memory", lambda: 64 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gigabytes * 2**30, 80 * 2**30))
    on = torch.device(device)
    assert can_precompile_views(how, on, Processes(0, world, on)) is possible
    monkeypatch.setattr(view_compiler, "_started", True)
    assert not can_precompile_views(how, on, Processes(0, world, on))


def replace_python(path, text, monkeypatch) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 0", None),
        ("echo no compiler >&2; exit 3", "(exit code 3. no compiler)"),
        ("exec sleep 100", "it took too long"),
    ],
)
def test_whatever_the_other_process_does_the_views_are_compiled_here(text, message, compiled, tmp_path, monkeypatch):
    replace_python(tmp_path / "python", text, monkeypatch)
    monkeypatch.setattr(view_compiler, "_LEAST_PATIENCE", 0.0)
    trainer, log, started = make_trainer(), Logged(), []
    monkeypatch.setattr(view_compiler, "Helper", lambda verb: started.append(helpers.Helper(verb)) or started[0])
    source = iterate_batches(trainer)
    with precompile_views(trainer, log):
        run_steps(trainer, source, 1)
        assert not compiled
    assert started[0].process.poll() is not None
    assert [message in line for line in log.lines] == ([] if message is None else [True])
    assert trainer.compiles(trainer.next_batch)
    run_steps(trainer, source, 1)
    assert compiled


def test_a_process_that_cannot_be_started_is_not_needed(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    trainer, log = make_trainer(), Logged()
    with precompile_views(trainer, log):
        run_steps(trainer, iterate_batches(trainer), 1)
    assert compiled
    assert "not compiled in another process" in log.lines[0]


def test_the_pace_is_measured_with_compiled_views(compiled, tmp_path, monkeypatch):
    replace_python(tmp_path / "python", "exit 0", monkeypatch)
    beside = []
    monkeypatch.setattr(
        "vitling.training.pace.can_precompile_views", lambda how, device, processes: not beside.append(how)
    )
    trainer = make_trainer(Plan((Group(16, mix=Mix(cutmix=1.0)),)))
    pace, how = measure_pace(trainer.objective, trainer.store, trainer.config, ALONE, Log(silent=True))
    assert beside == ["views"]
    assert compiled
    assert pace > 0
    assert how == "views"
