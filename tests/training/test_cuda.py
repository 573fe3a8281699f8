"""Tests that need a CUDA GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from tests.methods.helpers import METHODS, noise
from tests.methods.helpers import make as with_copy
from tests.objectives.helpers import gradients as region_gradients
from tests.objectives.helpers import inputs as region_inputs
from tests.tiny import relative_distance, tiny_backbone
from tests.training.contrast_run import KINDS
from tests.training.contrast_run import objective as contrastive
from tests.training.helpers import QUIET, config, equal, lines, objective, run_in, weights
from vitling import data
from vitling.backbones import create
from vitling.backbones.position import resize_map
from vitling.console import Log
from vitling.data.store import build_store
from vitling.methods.drloc.loss import DRLoc, make_drloc_term
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.supervised.loss import Supervised
from vitling.objectives import Batch, regions
from vitling.objectives.progress import Progress
from vitling.training import OptimConfig, Processes, compilation, compile_ahead, fit
from vitling.training.feed import Feed
from vitling.training.pace import iterate_batches, run_steps
from vitling.training.prefetch import ViewPrefetcher
from vitling.training.replay import Replay
from vitling.training.trainer import Trainer
from vitling.views import BatchKey, Normaliser, Renderer, ViewBatch, Views, ViewsConfig
from vitling.views.policies import idmm_finetune, make_plan
from vitling.views.renderer import FunctionCache

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ON_GPU = replace(QUIET, device="cuda", precision="fp32", even="off")  # batches of two shapes


@pytest.fixture(autouse=True)
def restore_determinism():
    """A run that asks for determinism leaves it switched on in its process."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def dataset(folder):
    return data.open(str(folder), val="none").train


def train(dataset, folder, settings=None, placement="device", drop_path=0.0):
    torch.manual_seed(0)
    model = Supervised(tiny_backbone(drop_path=drop_path), ViewsConfig().plan(16), classes=3)
    store = build_store(dataset, 16, device="cuda", placement=placement)
    return model, fit(model, store, settings or config(loop=ON_GPU), run=run_in(folder))


def largest_difference(some, others) -> float:
    """Return the largest difference, or NaN if there is one."""
    pairs = zip(some, others, strict=True)
    return float(torch.stack([(a.double() - b.double()).abs().max() for a, b in pairs]).max())


def test_views_on_the_gpu_equal_the_cpus(dataset):
    """The drawn numbers are the same; pixels differ by the half precision of the crop."""
    plan, key = ViewsConfig().plan(16), BatchKey(0, 1, 0, np.arange(30), 30)
    drawn = []
    for device in ("cpu", "cuda"):
        store = build_store(dataset, 16, device=device)
        view_batch = ViewBatch(plan, key, np.arange(30))
        drawn.append(
            view_batch.render(*store.fetch(view_batch.instances), Renderer(Normaliser(store.mean, store.std)))[0]
        )
    cpu, gpu = drawn
    assert torch.equal(cpu.partner, gpu.partner.cpu())
    assert torch.allclose(cpu.lam, gpu.lam.cpu(), atol=1e-5)
    difference = (cpu.pixels - gpu.pixels.cpu()).abs()
    assert difference.mean() < 0.01  # of a standard deviation
    assert difference.quantile(0.999) < 0.1


@pytest.mark.parametrize("placement", ["host", "stream"])
def test_placement_of_pixels_does_not_matter(dataset, tmp_path, placement):
    settings = config(loop=replace(ON_GPU, deterministic=True))
    here, there = (train(dataset, tmp_path / w, settings, w)[0] for w in ("device", placement))
    assert equal(weights(here), weights(there))


def test_deterministic_runs_are_bit_identical(dataset, tmp_path):
    settings = config(loop=replace(ON_GPU, deterministic=True, precision="bf16"))
    one, again = (train(dataset, tmp_path / name, settings, drop_path=0.2)[0] for name in "ab")
    assert equal(weights(one), weights(again))


def test_positions_of_another_size_have_deterministic_gradients():
    torch.use_deterministic_algorithms(True)
    maps = torch.randn(1, 8, 14, 14, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        resize_map(maps, (6, 6)).sum().backward()
    assert torch.isfinite(maps.grad).all()


@pytest.mark.parametrize("variant", ["l1", "exhaustive", "ce", "all"])
def test_deterministic_runs_with_drloc_are_bit_identical(dataset, tmp_path, variant):
    """The grid of 4 x 4 is pooled to 3 x 3, but for `all`; `l1` takes the first way through the MLP."""
    settings, store = config(loop=replace(ON_GPU, deterministic=True)), build_store(dataset, 16, device="cuda")
    trained = []
    for name in "ab":
        torch.manual_seed(0)
        backbone = tiny_backbone()
        model = Supervised(backbone, ViewsConfig().plan(16), classes=3)
        model.attach("drloc", make_drloc_term(backbone, DRLocConfig(variant, grid=3)), 0.5)
        fit(model, store, settings, run=run_in(tmp_path / name))
        trained.append(weights(model))
    assert equal(*trained)


@pytest.mark.parametrize("variant", ["l1", "ce", "reg", "exhaustive"])
def test_drloc_never_makes_the_host_wait(variant):
    drloc, names = DRLoc(384, variant).cuda(), torch.arange(4, device="cuda")
    grid = torch.randn(4, 384, 14, 14, device="cuda", requires_grad=True)
    first = drloc(grid, names)  # copies the pooling weights to the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        drloc(grid, names).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(first.cpu(), drloc.cpu()(grid.detach().cpu(), names.cpu()), rtol=1e-2)  # TF32


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_what_fp32_learns(dataset, tmp_path, precision):
    losses = []
    for name in ("fp32", precision):
        settings = config(epochs=25, loop=replace(ON_GPU, precision=name))
        train(dataset, tmp_path / name, settings)
        losses.append(lines(tmp_path / name)[-1]["loss"])
    assert abs(losses[0] - losses[1]) < 0.1


@pytest.mark.parametrize("how", ["on", "blocks", "views"])
def test_compiled_equals_eager(dataset, tmp_path, how):
    eager, _ = train(dataset, tmp_path / "eager")
    compiled, _ = train(dataset, tmp_path / "compiled", config(loop=replace(ON_GPU, compile=how)))
    assert "failed" not in (tmp_path / "compiled" / "log.txt").read_text()
    start = {name: value.cuda() for name, value in objective().state_dict().items()}
    assert relative_distance(eager.state_dict(), compiled.state_dict(), start) < 0.05  # TF32, other summation order


def test_runs_whose_graphs_torch_records_can_follow_each_other(dataset, tmp_path):
    """In fp16 steps are not captured as a whole. Between the runs memory is freed, as after the pace was measured."""
    settings = config(epochs=3, loop=replace(ON_GPU, precision="fp16", compile="on"))
    for free in (compilation.free_memory, compilation.free_graphs, compilation.free_memory):
        model, _ = train(dataset, tmp_path / f"run{len(list(tmp_path.iterdir()))}", settings)
        assert all(value.isfinite().all() for value in model.state_dict().values())
        free()


@pytest.mark.parametrize("compile", ["off", "on"])
def test_real_out_of_memory_splits_batches(dataset, tmp_path, compile):
    """The GPU has memory for a part of the batch only."""
    large = ViewsConfig().plan(512)
    torch.manual_seed(0)
    model = Supervised(tiny_backbone(512), large, classes=3)
    store = build_store(dataset, 16, device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1e9 / total))
    try:
        settings = config(epochs=2, batch=30, loop=replace(ON_GPU, compile=compile), optim=OptimConfig())
        outcome = fit(model, store, settings, run=run_in(tmp_path / "run"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert outcome.accumulate > 1
    assert "Out of memory" in (tmp_path / "run" / "log.txt").read_text()


def test_prefetched_views_equal_views_rendered_now(dataset):
    """Batch after batch, through one capture, with mixing; the last, incomplete one through another."""
    store, plan = build_store(dataset, 16, device="cuda"), make_plan("idmm-pretrain", 16)
    feed = Feed(store, plan, config(batch=8), Processes(0, 1, store.device))
    renderer = Renderer(Normaliser(store.mean, store.std), FunctionCache(compilation.compile_function), torch.bfloat16)
    prefetcher = ViewPrefetcher(renderer, store.device, print)
    for loaded in feed.batches(0, 0):
        prefetcher.prepare(loaded)
        (micro,) = loaded.micro_batches
        now = micro.view_batch.render(micro.pixels, micro.aspect, renderer)
        for ready, drawn in zip(prefetcher.get_views(micro), now):
            assert torch.equal(ready.pixels, drawn.pixels)
            assert torch.equal(ready.partner, drawn.partner)
            assert torch.equal(ready.lam, drawn.lam)
    assert len(prefetcher.captures) == 2


def test_an_incomplete_batch_may_have_its_own_graphs(dataset, tmp_path, monkeypatch):
    """30 images in batches of 8, compiled in both shapes; the weights equal those of an eager run."""
    monkeypatch.setattr(compilation, "WORTH_ANOTHER_SHAPE", 1)
    eager, _ = train(dataset, tmp_path / "eager", config(epochs=6, loop=ON_GPU))
    compiled, _ = train(dataset, tmp_path / "compiled", config(epochs=6, loop=replace(ON_GPU, compile="on")))
    assert "failed" not in (tmp_path / "compiled" / "log.txt").read_text()
    start = {name: value.cuda() for name, value in objective().state_dict().items()}
    assert relative_distance(eager.state_dict(), compiled.state_dict(), start) < 0.05


REPLAYED = [
    ("fp32", "on", "adamw"),
    ("bf16", "on", "adamw"),
    ("bf16", "blocks", "adamw"),
    ("bf16", "views", "adamw"),
    ("bf16", "on", "sgd"),
    ("bf16", "on", "muon"),
]


@pytest.mark.parametrize(("precision", "how", "name"), REPLAYED)
def test_replayed_steps_equal_run_steps(dataset, tmp_path, monkeypatch, precision, how, name):
    """Batches of both shapes, with stochastic depth, mixing and clipping: the weights are bit-identical."""
    monkeypatch.setattr(compilation, "WORTH_ANOTHER_SHAPE", 1)
    made, record = [], Replay.get_capture

    def remember(self, *arguments):
        found = record(self, *arguments)
        made.append(len(self.captures))
        return found

    loop = replace(ON_GPU, compile=how, deterministic=True, precision=precision)
    settings = config(epochs=8, loop=loop, optim=OptimConfig(name=name, clip=1.0))
    monkeypatch.setattr(Replay, "get_capture", remember)
    replayed, _ = train(dataset, tmp_path / "replayed", settings, drop_path=0.2)
    assert made[-1] in (2, 3)  # views that were not prefetched may reuse an address and count as another kind
    monkeypatch.setattr(Replay, "get_capture", lambda self, *arguments: None)
    ran, _ = train(dataset, tmp_path / "run", settings, drop_path=0.2)
    assert equal(weights(replayed), weights(ran))
    assert "cannot" not in (tmp_path / "replayed" / "log.txt").read_text()
    assert [line["loss"] for line in lines(tmp_path / "replayed")] == [line["loss"] for line in lines(tmp_path / "run")]


@pytest.mark.parametrize("variant", ["l1", "ce", "reg", "exhaustive", "all"])
def test_replayed_drloc_equals_run_drloc(dataset, tmp_path, monkeypatch, variant):
    """New pairs are drawn at each step, in captured steps too."""
    store, trained = build_store(dataset, 16, device="cuda"), []
    settings = config(epochs=6, loop=replace(ON_GPU, compile="on", deterministic=True, drop_last=True))
    for replayed in (True, False):
        if not replayed:
            monkeypatch.setattr(Replay, "get_capture", lambda self, *arguments: None)
        torch.manual_seed(0)
        backbone = tiny_backbone()
        model = Supervised(backbone, ViewsConfig().plan(16), classes=3)
        model.attach("drloc", make_drloc_term(backbone, DRLocConfig(variant, grid=3)), 0.5)
        fit(model, store, settings, run=run_in(tmp_path / str(replayed)))
        assert "cannot" not in (tmp_path / str(replayed) / "log.txt").read_text()
        trained.append(weights(model))
    assert equal(*trained)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_contrastive_steps_equal_run_steps(dataset, tmp_path, monkeypatch, kind):
    """In bf16, with SGD, batches of both shapes."""
    monkeypatch.setattr(compilation, "WORTH_ANOTHER_SHAPE", 1)
    store, trained, made = build_store(dataset, 16, device="cuda"), [], []
    loop = replace(ON_GPU, compile="on", deterministic=True, precision="bf16")
    settings, record = config(epochs=6, loop=loop, optim=OptimConfig(name="sgd", lr=0.05)), Replay.get_capture

    def remember(self, *arguments):
        found = record(self, *arguments)
        made.append(len(self.captures))
        return found

    for name, get_capture in (("replayed", remember), ("run", lambda self, *arguments: None)):
        monkeypatch.setattr(Replay, "get_capture", get_capture)
        model = contrastive(kind, store.labels)
        fit(model, store, settings, run=run_in(tmp_path / name))
        assert "cannot" not in (tmp_path / name / "log.txt").read_text()
        trained.append(weights(model))
    assert made[-1] in (2, 3)  # views that were not prefetched may reuse an address and count as another kind
    assert largest_difference(*trained) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_contrastive_losses_never_make_the_host_wait(kind):
    labels = torch.tensor([0, 1, 0, -1], device="cuda")
    model, batch = contrastive(kind, labels).cuda(), Batch(torch.arange(4, device="cuda"), labels)
    views = [Views(torch.randn(8, 3, 16, 16, device="cuda"), 2)]
    model.total(model(views, batch, None), None).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.total(model(views, batch, None), None).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


COPIES = [*((method, {}) for method in METHODS), ("moco-v2", {"mask_own": True}), ("esvit", {"match": "argmax"})]


@pytest.mark.parametrize(("method", "changes"), COPIES, ids=str)
def test_replayed_steps_with_a_momentum_copy_equal_run_steps(dataset, tmp_path, monkeypatch, method, changes):
    """In bf16, batches of both shapes: the queue, the centre, a teacher that warms up and prototypes that thaw too."""
    monkeypatch.setattr(compilation, "WORTH_ANOTHER_SHAPE", 1)
    store, trained, made = build_store(dataset, 16, device="cuda"), [], []
    loop = replace(ON_GPU, compile="on", deterministic=True, precision="bf16")
    settings, record = config(epochs=6, loop=loop), Replay.get_capture

    def remember(self, *arguments):
        found = record(self, *arguments)
        made.append(len(self.captures))
        return found

    for name, get_capture in (("replayed", remember), ("run", lambda self, *arguments: None)):
        monkeypatch.setattr(Replay, "get_capture", get_capture)
        model = with_copy(method, **changes)
        fit(model, store, settings, run=run_in(tmp_path / name))
        assert "cannot" not in (tmp_path / name / "log.txt").read_text()
        trained.append(weights(model))
    assert made[-1] in (2, 3)  # views that were not prefetched may reuse an address and count as another kind
    assert largest_difference(*trained) == 0


@pytest.mark.parametrize(("method", "changes"), COPIES, ids=str)
def test_methods_with_a_momentum_copy_never_make_the_host_wait(method, changes):
    model, batch = with_copy(method, **changes).cuda(), Batch(torch.arange(4, device="cuda"), None)
    views = noise(model, 4)
    for view in views:
        view.pixels, view.boxes = view.pixels.cuda(), None if view.boxes is None else view.boxes.cuda()

    def step(at: int) -> None:
        model.before_step(Progress(at, 100, 10))
        model.total(model(views, batch, None), None).backward()
        model.after_step(Progress(at, 100, 10))

    step(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(50)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Asking(Supervised):
    """Objective that claims to be capturable but waits for the GPU, which cannot be captured."""

    def forward(self, views, batch, progress):
        terms = super().forward(views, batch, progress)
        assert terms["classification"].item() > 0
        return terms


def test_a_step_that_cannot_be_captured_is_run(dataset, tmp_path):
    """It warns once, and the run equals one without captures, with the same random numbers in its layers."""
    store, settings = build_store(dataset, 16, device="cuda"), config(epochs=4, loop=replace(ON_GPU, compile="on"))
    trained = []
    for kind in (Asking, Supervised):
        torch.manual_seed(0)
        model = kind(tiny_backbone(drop_path=0.3), ViewsConfig().plan(16), classes=3)
        fit(model, store, settings, run=run_in(tmp_path / kind.__name__))
        trained.append(weights(model))
    log = (tmp_path / "Asking" / "log.txt").read_text()
    assert log.count("Steps cannot be captured") == 1
    start = {name: value.cuda() for name, value in objective().state_dict().items()}
    asking, silent = (dict(zip(start, found, strict=True)) for found in trained)
    assert relative_distance(asking, silent, start) < 0.05


def test_views_that_cannot_be_captured_are_rendered_now(dataset, tmp_path, monkeypatch):
    """It warns once, and the run equals one whose views are prefetched, with the same random numbers in its layers."""
    store, settings = build_store(dataset, 16, device="cuda"), config(epochs=4, loop=replace(ON_GPU, compile="on"))
    render, trained = Renderer.render, []

    def render_and_wait(self, *arguments):
        views = render(self, *arguments)
        torch.cuda.synchronize()  # which cannot be captured
        return views

    for name, function in {"prefetched": render, "waiting": render_and_wait}.items():
        monkeypatch.setattr(Renderer, "render", function)
        torch.manual_seed(0)
        model = Supervised(tiny_backbone(drop_path=0.3), ViewsConfig().plan(16), classes=3)
        fit(model, store, settings, run=run_in(tmp_path / name))
        trained.append(weights(model))
    assert "prefetched" not in (tmp_path / "prefetched" / "log.txt").read_text()
    assert (tmp_path / "waiting" / "log.txt").read_text().count("Views cannot be prefetched") == 1
    start = {name: value.cuda() for name, value in objective().state_dict().items()}
    prefetched, waiting = (dict(zip(start, found, strict=True)) for found in trained)
    assert relative_distance(waiting, prefetched, start) < 0.05


def test_the_run_finds_what_other_processes_have_compiled(dataset, monkeypatch):
    monkeypatch.setattr(compile_ahead, "_PATIENCE", 400)
    store = build_store(dataset, 32, device="cuda:0", placement="device")
    backbone = create("pvt_v2_b0_small", 32)
    problems = Log(silent=True)
    monkeypatch.setattr(problems, "debug", pytest.fail)
    settings = config(loop=replace(ON_GPU, compile="on"))
    model = Supervised(backbone, idmm_finetune(32), classes=3)
    trainer = Trainer(model, store, settings, Processes(0, 1, store.device), Log(silent=True))
    source = iterate_batches(trainer)
    with fresh_cache():
        compile_ahead.compile_ahead(trainer, next(source), problems)
        assert trainer.is_cached
        counters.clear()
        run_steps(trainer, source, 2 * trainer.per_epoch)  # epochs take turns with two kinds of mixing
    assert trainer.replay.captures
    assert counters["aot_autograd"]["autograd_cache_hit"] == 5
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_replayed_run_resumes_exactly(dataset, tmp_path, name):
    loop = replace(ON_GPU, compile="on", deterministic=True)
    settings = config(epochs=6, loop=loop, optim=OptimConfig(name=name, lr=2e-3))
    whole, _ = train(dataset, tmp_path / "whole", settings)
    for first in sorted((tmp_path / "whole" / "checkpoints").iterdir())[1:]:
        first.unlink()
    again, _ = train(dataset, tmp_path / "whole", settings)
    assert "Resuming" in (tmp_path / "whole" / "log.txt").read_text()
    assert equal(weights(whole), weights(again))


def test_the_region_loss_equals_the_cpus(monkeypatch):
    """bf16, several blocks, and enough prototypes for the kernels of long rows."""
    arguments = region_inputs(images=6, k=8192)
    monkeypatch.setattr(regions, "BLOCK", 2 * 63 * 8192)
    expected = regions.cross_entropy(**arguments)
    slopes = region_gradients(expected, arguments)
    there = {
        name: value.detach().cuda() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()
    }
    for name in ("student", "prototypes"):
        there[name].requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        found = regions.cross_entropy(**there)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=0)
    for a, b in zip(region_gradients(found, there), slopes):
        assert (a.cpu() - b).norm() < 0.05 * b.norm()
