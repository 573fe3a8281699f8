from __future__ import annotations

from itertools import product

import pytest
import timm
import torch
from timm.models.pvt_v2 import MlpWithDepthwiseConv

from tests.backbones.depthwise import compare
from tests.backbones.triton_helpers import compile_kernel, needs_triton, run_interpreted
from vitling.backbones import create
from vitling.backbones.depthwise import (
    DepthwiseMlp,
    depthwise_gelu,
    depthwise_gelu_backward,
    has_kernels,
    replace_depthwise_mlps,
)
from vitling.backbones.families import find_family

SHAPES = [(2, 5, 9, 16), (1, 1, 1, 3), (1, 2, 17, 130), (2, 7, 7, 64), (3, 1, 4, 5), (2, 3, 14, 66), (1, 2, 28, 64)]
TOLERANCES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 6e-3}  # the rounding of the inputs, of dz and of the output


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *(("float32", shape) for shape in (*SHAPES, (1, 2, 56, 16))),  # the gradients beside a strip are computed twice
        ("float16", SHAPES[2]),
        ("bfloat16", SHAPES[0]),
        ("bfloat16", SHAPES[2]),
        ("bfloat16", SHAPES[6]),
        ("bfloat16", (1, 2, 56, 16)),
    ],
)
def test_interpreted_kernels_equal_the_literal_convolution(dtype, shape):
    errors = run_interpreted("depthwise", dtype, shape)
    assert len(errors) == 5
    assert max(errors) < TOLERANCES[dtype], errors


@needs_triton
@pytest.mark.parametrize(
    ("architecture", "dtypes"), [(75, ["fp16", "fp32"]), (80, ["bf16"]), (90, ["bf16", "fp16", "fp32"])]
)
def test_kernels_compile_without_a_gpu(architecture, dtypes, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from vitling.backbones import depthwise_kernels as kernels

    counts = ("images", "height", "width", "programs_per_row", "images_per_program")
    types = dict.fromkeys(("weight", "bias", "sums"), "*fp32") | dict.fromkeys(counts, "i32")
    for dtype, around in product(dtypes, (0, 1, 2)):
        packed = dict.fromkeys(("x", "out_gradient"), "*i32") if dtype == "bf16" else {}
        layout = {"WHOLE": around != 2, "COLUMNS": 7, "CHANNELS": 64, "STRIPS": 4 if around else 1}
        shape = {"units": 128 if packed else 256, "channels": 256}
        constants = {"EXACT": dtype == "fp32", "FAST": True, **layout, **shape}
        options = kernels.OPTIONS | {"num_warps": layout["STRIPS"]}
        for kernel, more, registers in [
            (kernels._convolve, {"BESIDE": min(around, 1)}, kernels.FORWARD[0].registers),
            (kernels._differentiate, {"AROUND": around}, kernels.BACKWARD[0].registers),
        ]:
            limited = options | {"maxnreg": registers}
            assert compile_kernel(kernel, f"*{dtype}", types | packed, constants | more, architecture, limited)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_triton_values_equal_the_literal_convolution(dtype, shape):
    errors = compare(shape, getattr(torch, dtype), torch.device("cpu"))
    assert max(errors) < 2 * TOLERANCES[dtype], errors  # the convolution is rounded before GELU


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_kernels_that_do_not_run_are_named_in_a_warning():
    with pytest.warns(UserWarning, match=r"kernels cannot be used \(.+\); networks are slower"):
        assert not has_kernels.__wrapped__(torch.device("cuda:0"), torch.float32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 56, 56, 256), (5, 7, 7, 1024), (600, 28, 28, 256)])
def test_kernels_equal_the_literal_convolution(dtype, shape):
    assert has_kernels(torch.device("cuda:0"), getattr(torch, dtype))
    errors = compare(shape, getattr(torch, dtype), torch.device("cuda"))
    assert max(errors) < TOLERANCES[dtype], errors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_are_deterministic():
    torch.manual_seed(0)
    x, slope = (torch.randn(9, 14, 14, 640, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    taps, bias = torch.randn(9, 640, device="cuda"), torch.randn(640, device="cuda")
    first, second = (depthwise_gelu_backward(slope, x, taps, bias) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["pvt_v2_b0", "deit_tiny_patch16_224"])
def test_compiled_networks_have_the_gradients_of_eager_ones(name):
    torch.manual_seed(0)
    model, x = create(name, 112).cuda(), torch.randn(64, 3, 112, 112, device="cuda")
    compiled = torch.compile(model, dynamic=False, mode="reduce-overhead")

    def compute_gradients(network, bf16: bool = True) -> list[torch.Tensor]:
        for _ in range(4):  # warm-up, capture and replays
            model.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                pooled = network(x).pooled
            pooled.float().square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def measure_error(found: list[torch.Tensor]) -> float:
        return sum(float((one - other).norm() / (other.norm() + 1e-4)) for one, other in zip(found, exact, strict=True))

    exact = compute_gradients(model, bf16=False)  # bf16 alone moves some gradients by more than a tenth
    assert measure_error(compute_gradients(compiled)) < 1.5 * measure_error(compute_gradients(model))


def test_autocast_does_not_round_what_is_computed_without_triton():
    with torch.autocast("cpu", torch.bfloat16):
        errors = compare(SHAPES[0], torch.float32, torch.device("cpu"))
    assert max(errors) < TOLERANCES["float32"], errors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [(64, 96), (112, 112)])
def test_the_network_is_as_close_to_fp64_as_timms(size):
    torch.manual_seed(0)
    theirs = timm.create_model("pvt_v2_b0", num_classes=0).cuda()
    ours = create("pvt_v2_b0").timm_model.cuda()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 3, *size, device="cuda")

    def run(model, x: torch.Tensor, bf16: bool) -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            features = run_network(model, x)
        features.float().square().sum().backward()
        return [features.detach(), *(p.grad for p in model.parameters())]

    def run_network(model, x: torch.Tensor) -> torch.Tensor:
        return find_family(model, "pvt_v2_b0").run(model, x, False).pooled if model is ours else model(x)

    def measure_error(found: list[torch.Tensor]) -> list[float]:
        return [float((one.double() - other).norm() / other.norm()) for one, other in zip(found, exact)]

    found = [run(model, x, bf16=True) for model in (ours, theirs)]
    exact = run(theirs.double(), x.double(), bf16=False)
    our_errors, their_errors = map(measure_error, found)
    assert our_errors[0] < 1.2 * their_errors[0] < 0.05
    assert sum(our_errors) < 1.1 * sum(their_errors)
    assert all(a < 2 * b for a, b in zip(our_errors, their_errors)), max(
        a / b for a, b in zip(our_errors, their_errors)
    )


def test_on_a_cpu_values_are_bit_identical_to_timms():
    torch.manual_seed(0)
    theirs = timm.create_model("pvt_v2_b0", num_classes=0)
    ours = create("pvt_v2_b0").timm_model
    ours.load_state_dict(theirs.state_dict())
    assert sum(isinstance(module, DepthwiseMlp) for module in ours.modules()) == 8
    x = torch.randn(2, 3, 64, 96)
    gradients = []
    for model in (theirs, ours):
        model(x).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert torch.equal(theirs.eval()(x), ours.eval()(x))
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_fused_mlp_equals_timms(compiled):
    torch.manual_seed(0)
    mlp = MlpWithDepthwiseConv(6, 16)
    torch.nn.init.normal_(mlp.fc1.bias)
    ours, x, slope = DepthwiseMlp(mlp), torch.randn(2, 15, 6), torch.randn(2, 15, 6)
    fused = torch.compile(ours.fused, backend="aot_eager", fullgraph=True) if compiled else ours.fused
    results = []
    for network in (mlp, fused):
        inputs = [x.clone().requires_grad_(), *mlp.parameters()]
        y = network(inputs[0], (3, 5))
        results.append([y, *torch.autograd.grad(y, inputs, slope)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_mlps_with_other_operations_are_kept():
    for name, arguments in [("pvt_v2_b2_li", {}), ("pvt_v2_b0", {"proj_drop_rate": 0.1})]:
        model = timm.create_model(name, num_classes=0, **arguments)
        replace_depthwise_mlps(model)
        assert not any(isinstance(module, DepthwiseMlp) for module in model.modules())


def test_shapes_are_known_without_running():
    x = torch.empty(2, 3, 4, 16, device="meta", requires_grad=True)
    parameters = [torch.empty(*sides, device="meta", requires_grad=True) for sides in ((16,), (9, 16), (16,))]
    y = depthwise_gelu(x, *parameters)
    assert y.shape == x.shape
    found = torch.autograd.grad(y.sum(), [x, *parameters])
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in (x, *parameters)]
