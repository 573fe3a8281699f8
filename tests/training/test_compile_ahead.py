"""The processes that compile the views and the network before a run's first step."""

from __future__ import annotations

import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.utils._pytree import tree_flatten

from tests.tiny import tiny_backbone
from tests.training.helpers import ALONE, QUIET, StandInTask, config
from vitling.backbones import create
from vitling.console import Log
from vitling.evaluation.probe_features import compute_batch_features
from vitling.methods.idmm.loss import IDMM
from vitling.methods.supervised.loss import Supervised
from vitling.papers.measure import make_store
from vitling.training import compilation, compile_ahead, compile_server, helpers, pace
from vitling.training.compile_ahead import can_compile_ahead, make_mark
from vitling.training.config import LoopConfig
from vitling.training.pace import iterate_batches, measure_pace, run_steps
from vitling.training.processes import Processes
from vitling.training.section_compiler import FILL, pack_section, record_sections, record_trials
from vitling.training.trainer import Trainer
from vitling.training.view_compiler import ViewTask, make_view_task
from vitling.views import Plan, ViewsConfig
from vitling.views.plan import Group, Mix
from vitling.views.policies import idmm_finetune, idmm_pretrain
from vitling.views.renderer import FunctionCache

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


def compile_ahead_of(trainer: Trainer, log: Log | None = None) -> None:
    compile_ahead.compile_ahead(trainer, next(iterate_batches(trainer)), log or Log(silent=True))


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Record what is called compiled: functions with their settings, and the shapes and types of tensors."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    calls: set[tuple] = set()

    def describe(value: object) -> str:
        leaves, structure = tree_flatten(value)
        shapes = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
        return f"{structure} {shapes}"

    def compile_function(bound, traced_only=False):
        def call(*arguments):
            if not traced_only:
                calls.add((bound.func.__name__, repr(bound.keywords), describe(arguments)))
            return bound(*arguments)

        return call

    monkeypatch.setattr(compilation, "compile_function", compile_function)
    monkeypatch.setattr("vitling.training.view_compiler.compile_function", compile_function)
    return calls


@pytest.mark.parametrize("plan", PLANS)
def test_tasks_compile_the_views_that_the_run_needs(plan, compiled):
    trainer = make_trainer(PLANS[plan])
    run_steps(trainer, iterate_batches(trainer), 2 * trainer.per_epoch)
    needed = set(compiled)
    assert len(needed) > 2
    found = []
    for part in range(3):
        compiled.clear()
        pickle.loads(pickle.dumps(make_view_task(trainer, part, 3))).run()
        found.append(set(compiled))
    assert set().union(*found) == needed
    assert max(map(len, found)) <= len(needed) / 2 + 1


def test_datasets_of_other_sizes_need_the_same_compiled_code(compiled):
    needed, tasks = [], set()
    for images in (24, 26, 31):
        trainer = make_trainer(PLANS["pretrain"], images)
        run_steps(trainer, iterate_batches(trainer), trainer.per_epoch)
        needed.append(set(compiled))
        tasks.add(make_view_task(trainer))
        compiled.clear()
    assert needed[0] == needed[1] == needed[2]
    assert len(tasks) == 1


class TestServer:
    @pytest.fixture(autouse=True)
    def find_tests(self, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def test_compiles_all_it_is_sent(self, tmp_path):
        folders = [tmp_path / "one", tmp_path / "other"]
        for folder in folders:
            folder.mkdir()
        with helpers.Helper(compile_server.VERB) as server:
            tasks = [pickle.dumps(StandInTask(folder)) for folder in folders]
            server.send(compile_server.pack_tasks(tasks, 1.0))
            assert server.ends_within(300)
            assert server.find_problem() is None
        assert all((folder / "compiled").exists() for folder in folders)

    def test_takes_several_messages(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compile_server, "_ready", [])
        assert not compile_server.send_early(lambda: pytest.fail("there is no server"))
        folders = [tmp_path / "one", tmp_path / "other"]
        for folder in folders:
            folder.mkdir()
        early, late = ([pickle.dumps(StandInTask(folder))] for folder in folders)
        early.append(pickle.dumps(StandInTask(tmp_path / "missing")))  # of trials, none has to succeed
        compile_server._ready.append(helpers.Helper(compile_server.VERB))
        assert compile_server.send_early(lambda: early)
        with compile_server.take_server() as server:
            server.send(compile_server.pack_tasks(late, 1.0))
            assert server.ends_within(300)
            assert server.find_problem() is None
        assert all((folder / "compiled").exists() for folder in folders)

    def test_reports_a_task_that_fails_after_the_others(self, tmp_path):
        with helpers.Helper(compile_server.VERB) as server:
            tasks = [pickle.dumps(StandInTask(folder)) for folder in (tmp_path / "missing", tmp_path)]
            server.send(compile_server.pack_tasks(tasks, 1.0))
            assert server.ends_within(300)
            assert "FileNotFoundError" in server.find_problem()
        assert (tmp_path / "compiled").exists()

    def test_a_network_that_cannot_be_sent_is_not_tried(self, monkeypatch):
        monkeypatch.setattr(compile_server, "_ready", [object()])
        assert not compile_server.send_early(lambda: pickle.dumps(lambda: None))

    def test_ends_with_the_run_that_has_no_task_for_it(self):
        server = helpers.Helper(compile_server.VERB)
        server.process.stdin.close()
        assert server.ends_within(300)
        assert server.find_problem() is None
        server.stop()

    def test_is_started_early_only_beside_a_gpu(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compile_server, "can_serve", lambda: True)
        for files, count in ((str(tmp_path / "none"),), 0), ((str(tmp_path),), 2):
            monkeypatch.setattr(compile_server, "_GPU_FILES", files)
            compile_server.start_servers()
            servers = list(compile_server._ready)
            assert len(servers) == count
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        compile_server.start_servers()
        assert compile_server._ready == servers
        servers[-1].stop()  # as after a long wait
        assert compile_server.take_server() is servers[0]
        compile_server._ready.append(servers[0])
        compile_server.stop_servers()
        assert not compile_server._ready
        assert servers[0].process.poll() is not None


def make_network_trainer(**changes) -> Trainer:
    torch.manual_seed(0)
    backbone = create("pvt_v2_b0_small", 32, drop_path=0.1)
    store = make_store(8, 32, torch.device("cpu"))
    loop = replace(QUIET, compile="on", **changes)
    trainer = Trainer(IDMM(backbone, Plan((Group(32),)), 8), store, config(loop=loop), ALONE, Log(silent=True))
    backbone._compiled_call_impl = None  # one graph on CPUs, whose steps are not captured
    compilation.compile_in_place(backbone, "on")
    return trainer


def test_evaluation_is_not_compiled_and_hooks_still_work(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    trainer = make_network_trainer()
    backbone, images = trainer.objective.backbone, torch.randn(3, 3, 64, 64)
    backbone(images)
    run_steps(trainer, iterate_batches(trainer), 1)
    plain = create("pvt_v2_b0_small", 32)
    plain.load_state_dict(backbone.state_dict())
    graphs = counters["stats"]["unique_graphs"]
    backbone.eval(), plain.eval()
    ours, theirs = (compute_batch_features(network, images, 2) for network in (backbone, plain))
    assert torch.equal(ours.blocks, theirs.blocks)
    assert torch.equal(backbone(images, attention=True).attention, plain(images, attention=True).attention)
    assert counters["stats"]["unique_graphs"] == graphs


def test_sections_are_sent_as_a_batch_calls_them():
    trainer = make_network_trainer(precision="bf16")
    before = [weight.clone() for weight in trainer.objective.parameters()]
    counters.clear()
    packed = list(map(pack_section, record_sections(trainer, next(iterate_batches(trainer)))))
    assert not counters["inductor"]
    assert all((a == b).all() for a, b in zip(before, trainer.objective.parameters()))
    assert trainer.objective.backbone._compiled_call_impl
    sections = trainer.objective.backbone.sections()
    maps = [[8, 3, 32, 32], [8, 8, 8, 16], [8, 16, 8, 8], [8, 32, 4, 4], [8, 80, 2, 2]]
    assert len(packed) == len(sections) == len(maps)
    for content, section, shape in zip(packed, sections, maps):
        assert len(content) < 50_000
        assert not section._forward_pre_hooks
        task = pickle.loads(content)
        assert str(task.section) == str(section)
        for ours, theirs in zip(section.parameters(), task.section.parameters(), strict=True):
            assert isinstance(theirs, nn.Parameter)
            assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
            assert (theirs == FILL).all()
        (call,) = task.calls
        assert all((task.compiled, call.training, call.gradients, call.autocast))
        (x,) = call.inputs
        assert list(x.shape) == shape
        assert x.requires_grad == (section is not sections[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_run_finds_the_sections_in_the_cache(precision):
    trainer = make_network_trainer(precision=precision)
    trainer.renderer.functions = FunctionCache()
    with fresh_cache():
        for task in record_sections(trainer, next(iterate_batches(trainer))):
            pickle.loads(pack_section(task)).run()
        torch._dynamo.reset()
        counters.clear()
        run_steps(trainer, iterate_batches(trainer), 1)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 5
    assert counters["aot_autograd"]["autograd_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_sections_are_tried_uncompiled_on_one_image():
    """A network of one section, whose family has functions that cannot be pickled."""
    backbone = tiny_backbone()
    (task,) = record_trials(backbone, LoopConfig(precision="bf16"), torch.device("cpu"))
    task = pickle.loads(pack_section(task))
    counters.clear()
    task.run()
    assert not counters["inductor"]
    (call,) = task.calls
    assert call.autocast
    assert call.inputs[0].shape == (1, 3, 16, 16)
    assert all(weight.grad is not None for weight in task.section.parameters())


def test_the_run_finds_the_views_in_the_cache():
    trainer = make_trainer(Plan((Group(16),)))
    with fresh_cache():
        make_view_task(trainer).run()
        torch._dynamo.reset()
        counters.clear()
        run_steps(trainer, iterate_batches(trainer), 1)
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def replace_server(path: Path, text: str, monkeypatch) -> None:
    """Let servers run a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_what_is_in_the_cache_is_not_compiled_again(compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", "exit 0", monkeypatch)
    trainer = make_trainer()
    mark = make_mark(trainer)
    assert mark.is_relative_to(tmp_path)
    assert mark != make_mark(make_trainer(PLANS["finetune"]))
    trainer.config = replace(trainer.config, loop=replace(trainer.config.loop, log_every=7, sampler="balanced"))
    assert mark == make_mark(trainer)
    assert not mark.exists()
    compile_ahead_of(trainer)
    assert mark.exists()
    assert trainer.is_cached
    monkeypatch.setattr(compile_ahead, "take_server", lambda: pytest.fail("it was started"))
    other = make_trainer()
    compile_ahead_of(other)
    assert other.is_cached


@pytest.mark.parametrize(
    "place", [lambda trainer: (trainer, "_forward"), lambda trainer: (ViewTask, "render")], ids=["network", "views"]
)
def test_a_lack_of_memory_beside_the_servers_is_forgotten(place, compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", "exit 0", monkeypatch)
    trainer = make_trainer()

    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(*place(trainer), fail)
        compile_ahead_of(trainer)
    assert not trainer.is_cached
    run_steps(trainer, iterate_batches(trainer), 1)
    assert trainer.feed.accumulate == 1
    assert compiled


def test_a_plan_that_cannot_be_sent_does_not_end_the_run(compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", "exec sleep 100", monkeypatch)
    trainer, log = make_trainer(), Logged()
    monkeypatch.setattr(pickle, "dumps", lambda _: (lambda: None).missing)
    compile_ahead_of(trainer, log)
    assert not trainer.is_cached
    assert "Not compiled in other processes: 'function' object" in log.lines[0]


def test_an_error_of_the_loss_is_not_hidden(compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", "exit 0", monkeypatch)
    trainer = make_trainer()
    monkeypatch.setattr(trainer, "_forward", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        compile_ahead_of(trainer)


def test_the_servers_get_a_part_of_the_time_left(compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", "exec sleep 100", monkeypatch)
    trainer, log, began = make_trainer(), Logged(), time.monotonic()
    compile_ahead.compile_ahead(trainer, next(iterate_batches(trainer)), log, seconds_left=2.0)
    assert time.monotonic() - began < 15
    assert "it took too long" in log.lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 0", None),
        ("echo no compiler >&2; exit 3", "(exit code 3. no compiler)"),
        ("exec sleep 100", "it took too long"),
    ],
)
def test_whatever_the_servers_do_the_run_goes_on(text, message, compiled, tmp_path, monkeypatch):
    replace_server(tmp_path / "python", text, monkeypatch)
    monkeypatch.setattr(compile_ahead, "_PATIENCE", 5.0 if message is None else 0.5)
    trainer, log, started = make_trainer(), Logged(), []
    monkeypatch.setattr(compile_ahead, "take_server", lambda: started.append(helpers.Helper("")) or started[-1])
    compile_ahead_of(trainer, log)
    assert trainer.is_cached == (message is None)
    assert [server.process.poll() is not None for server in started] == [True, True]
    assert bool(log.lines) == (message is not None)
    assert all(message in line for line in log.lines)
    again = make_trainer()
    monkeypatch.setattr(compile_ahead, "take_server", lambda: pytest.fail("what has failed is tried again"))
    compile_ahead_of(again)
    assert again.is_cached == (message is None)
    assert trainer.compiles(trainer.next_batch)
    run_steps(trainer, iterate_batches(trainer), 1)
    assert compiled


def test_a_server_that_cannot_be_started_is_not_needed(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    trainer, log = make_trainer(), Logged()
    compile_ahead_of(trainer, log)
    assert not trainer.is_cached
    assert "Nothing is compiled in other processes" in log.lines[0]


@pytest.mark.parametrize(
    ("how", "device", "world", "cores", "gpu", "host", "possible"),
    [
        ("on", "cuda", 1, 8, 20, 64, True),
        ("blocks", "cuda", 1, 8, 20, 64, False),
        ("off", "cuda", 1, 8, 20, 64, False),
        ("on", "cpu", 1, 8, 20, 64, False),
        ("on", "cuda", 2, 8, 20, 64, False),
        ("on", "cuda", 1, 4, 20, 64, False),
        ("on", "cuda", 1, 8, 10, 64, False),
        ("on", "cuda", 1, 8, 20, 16, False),
    ],
)
def test_conditions_for_compiling_ahead(how, device, world, cores, gpu, host, possible, monkeypatch):
    monkeypatch.setattr(compile_ahead, "_started", False)
    monkeypatch.setattr(helpers, "count_cores", lambda: cores)
    monkeypatch.setattr(helpers, "get_free_memory", lambda: host * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gpu * 2**30, 80 * 2**30))
    on = torch.device(device)
    assert can_compile_ahead(how, on, Processes(0, world, on)) is possible
    monkeypatch.setattr(compile_ahead, "_started", True)
    assert not can_compile_ahead(how, on, Processes(0, world, on))


def test_the_pace_is_measured_with_what_was_compiled_ahead(compiled, monkeypatch):
    ahead = []
    monkeypatch.setattr("vitling.training.pace.can_compile_ahead", lambda how, device, processes: True)
    monkeypatch.setattr("vitling.training.pace.compile_ahead", lambda trainer, loaded, *_: ahead.append(loaded))
    monkeypatch.setattr(Trainer, "_can_capture", lambda self: True)
    monkeypatch.setattr("vitling.training.trainer.Replay.get_capture", lambda *arguments: None)
    trainer = make_trainer(Plan((Group(16, mix=Mix(cutmix=1.0)),)))
    measured, how = measure_pace(trainer.objective, trainer.store, trainer.config, ALONE, Log(silent=True))
    assert len(ahead) == 1
    assert compiled
    assert measured > 0
    assert how == "views"


@pytest.mark.parametrize("possible", [True, False])
def test_a_run_without_minutes_compiles_before_its_first_step(possible, monkeypatch):
    ahead, built = [], []
    monkeypatch.setattr(pace, "can_compile_ahead", lambda how, device, processes: possible)
    monkeypatch.setattr(pace, "compile_ahead", lambda trainer, loaded, log: ahead.append(loaded))
    monkeypatch.setattr(Trainer, "_can_capture", lambda self: True)
    trainer = make_trainer()
    build = lambda: built.append(1) or trainer.objective  # noqa: E731
    pace.compile_before(build, trainer.store, trainer.config, ALONE, Log(silent=True))
    assert len(built) == len(ahead) == possible
