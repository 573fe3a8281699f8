from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models import pvt_v2

from tests.backbones.short_attention import compare
from tests.backbones.triton_helpers import compile_kernel, needs_triton, run_interpreted
from vitling.backbones import create, short_attention
from vitling.backbones.dot_product import DotProductAttention, PyramidAttention, TokenAttention, replace_attention
from vitling.backbones.short_attention import MAX_KEYS, WIDTHS, attend, attend_backward, has_kernels, is_short

# images, queries, keys, heads, width; the third has several parts of queries
SHAPES = [(2, 5, 16, 3, 16), (1, 70, 9, 2, 32), (2, 600, 49, 1, 32), (1, 1, 2, 1, 64), (1, 64, 64, 2, 64)]
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "shape"), [*(("float32", shape) for shape in SHAPES), ("float16", SHAPES[1]), ("float16", SHAPES[2])]
)
def test_interpreted_kernels_equal_literal_attention(dtype, shape):
    errors = run_interpreted("short_attention", dtype, shape)
    assert len(errors) == 4
    assert max(errors) < TOLERANCES[dtype], errors


@needs_triton
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(("width", "keys"), [(16, 16), (32, 64), (64, 64)])
def test_kernels_compile_without_a_gpu(architecture, width, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from vitling.backbones import short_attention_kernels as kernels

    constants = {"WIDTH": width, "KEYS": keys, "QUERIES": kernels.QUERIES, "STEPS": kernels.STEPS}
    for kernel in (kernels._attend, kernels._differentiate):
        strides = [name for name in kernel.arg_names if "_" in name and not name.endswith("gradient")]
        types = dict.fromkeys(("heads", "queries", "keys", *strides), "i32") | {"scale": "fp32", "slope": "fp32"}
        assert compile_kernel(kernel, "*bf16", types, constants, architecture, kernels.OPTIONS)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_triton_values_equal_literal_attention(dtype, shape):
    errors = compare(shape, getattr(torch, dtype), torch.device("cpu"))
    assert max(errors) < TOLERANCES[dtype], errors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [*SHAPES, (300, 784, 9, 1, 32), (64, 3136, 49, 1, 32), (300, 16, 16, 8, 32)])
def test_kernels_equal_literal_attention(dtype, shape):
    assert has_kernels(torch.device("cuda:0"), getattr(torch, dtype), shape[4], shape[2])
    errors = compare(shape, getattr(torch, dtype), torch.device("cuda"))
    assert max(errors) < TOLERANCES[dtype], errors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_are_deterministic():
    torch.manual_seed(0)
    q, slope = (torch.randn(16, 3136, 1, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(16, 49, 1, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    first, second = (attend_backward(slope, q, k, v, 0.25) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("keys", [1, 9, MAX_KEYS, MAX_KEYS + 1])
@pytest.mark.parametrize("width", [*WIDTHS, 24])
def test_attention_of_any_length_equals_torchs(keys, width):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, width, device="cuda", dtype=torch.bfloat16) for n in (20, keys, keys))
    assert is_short(q, k, v) == (keys <= MAX_KEYS and width in WIDTHS)
    found = DotProductAttention(0.3)(q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_a_cpu_keeps_torchs_attention():
    assert not is_short(*(torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16) for _ in range(3)))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_views_in_a_graph(compiled):
    """Queries, keys and values are views of projections, and the output is merged into one dimension."""
    torch.manual_seed(0)
    q, both = torch.randn(2, 12, 32, requires_grad=True), torch.randn(2, 5, 64, requires_grad=True)

    def run(attention) -> torch.Tensor:
        queries = q.unflatten(2, (2, 16)).transpose(1, 2)
        k, v = both.unflatten(2, (2, 2, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        return attention(queries, k, v).transpose(1, 2).flatten(2)

    def short(queries, k, v) -> torch.Tensor:
        return attend(*(x.transpose(1, 2) for x in (queries, k, v)), 0.25).transpose(1, 2)

    if compiled:
        short = torch.compile(short, backend="aot_eager", fullgraph=True)
    expected, found = run(torch.nn.functional.scaled_dot_product_attention), run(short)
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, [q, both], slope), torch.autograd.grad(expected, [q, both], slope)
    ):
        torch.testing.assert_close(one, other)


def test_shapes_are_known_without_running():
    q, k, v = (torch.empty(2, n, 3, 16, device="meta", requires_grad=True) for n in (7, 5, 5))
    out = attend(q, k, v, 0.25)
    assert out.shape == q.shape
    assert [g.shape for g in torch.autograd.grad(out.sum(), [q, k, v])] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("pvt_v2_b0", PyramidAttention, 8),
        ("deit_tiny_patch16_224", TokenAttention, 12),
        ("t2t_vit_7", TokenAttention, 7),
    ],
)
def test_attention_of_known_networks_is_replaced(name, kind, count):
    assert sum(isinstance(module, kind) for module in create(name).modules()) == count


@pytest.mark.parametrize(("name", "grid"), [("pvt_v2_b0", (9, 11)), ("vit_tiny_patch16_224", None)])
def test_on_a_cpu_attention_is_bit_identical_to_timms(name, grid):
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0).eval()
    ours = create(name).timm_model.eval()
    ours.load_state_dict(theirs.state_dict())
    more = () if grid is None else (grid,)
    for one, other in zip(find_blocks(theirs), find_blocks(ours)):
        tokens = torch.randn(2, 99, (one.attn.q if grid else one.attn.qkv).in_features)
        assert torch.equal(one.attn(tokens, *more), other.attn(tokens, *more))


def find_blocks(model) -> list:
    return [module for module in model.modules() if hasattr(module, "attn")]


@pytest.mark.parametrize(
    "options", [{"qk_norm": True}, {"scale_norm": True}, {"qkv_bias": False}, {"attn_drop": 0.1}, {"proj_drop": 0.1}]
)
def test_attention_with_options_equals_timms(options):
    torch.manual_seed(0)
    theirs = Attention(32, num_heads=2, norm_layer=torch.nn.LayerNorm, **options)
    tokens, outputs = torch.randn(2, 5, 32), []
    for attention in (theirs, TokenAttention(theirs)):
        torch.manual_seed(1)
        outputs.append(attention(tokens))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("pvt_v2_b2_li", {}), ("pvt_v2_b0", {"attn_drop_rate": 0.1, "proj_drop_rate": 0.1})],
)
def test_variants_of_pvtv2_equal_timms(name, options, training):
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0, **options).train(training)
    ours = copy.deepcopy(theirs)
    replace_attention(ours)
    x = torch.randn(1, 3, 64, 96)
    outputs = []
    for model in (theirs, ours):
        torch.manual_seed(1)
        outputs.append(model(x))
    assert not any(isinstance(module, pvt_v2.Attention) for module in ours.modules())
    assert torch.equal(*outputs)


def test_attention_with_a_gate_is_kept():
    block = torch.nn.Module()
    block.attn = Attention(32, num_heads=2)
    block.attn.gate = torch.nn.Linear(32, 32)
    replace_attention(block)
    assert isinstance(block.attn, Attention)


def test_autocast_does_not_round_what_is_computed_without_triton():
    with torch.autocast("cpu", torch.bfloat16):
        errors = compare((1, 70, 9, 2, 32), torch.bfloat16, torch.device("cpu"))
    assert max(errors) < 4e-3, errors


def stand_in(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(
        is_cuda=True, dtype=torch.float16, device=torch.device("cuda:0"), shape=shape, numel=lambda: math.prod(shape)
    )


def test_old_gpus_keep_torchs_attention(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not has_kernels.__wrapped__(torch.device("cuda:0"), torch.float16, 32, 9)


@pytest.mark.parametrize("runs", [False, True])
def test_kernels_that_do_not_run_are_not_called(runs, monkeypatch):
    monkeypatch.setattr(short_attention, "has_kernels", lambda *_: runs)
    assert is_short(*[stand_in(2, 3, 5, 16)] * 3) == runs


@pytest.mark.parametrize("other", [(1, 3, 5, 16), (2, 1, 5, 16), (2, 3, 5, 32)])
def test_shapes_that_torch_would_broadcast_are_left_to_it(other, monkeypatch):
    monkeypatch.setattr(short_attention, "has_kernels", lambda *_: True)
    q, k = stand_in(2, 3, 7, 16), stand_in(*other)
    assert not is_short(q, k, k)


@pytest.mark.parametrize("runs", [False, True])
def test_whether_kernels_run_is_a_constant_of_a_graph(runs, monkeypatch):
    monkeypatch.setattr(short_attention, "has_kernels", lambda *_: runs and bool(torch.ones(1) == 1))

    def run(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if short_attention._has_kernels(x.device, x.dtype, 16, 9) else x - 1

    x = torch.zeros(1)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(x), run(x))


def test_masks_are_refused():
    attention = TokenAttention(Attention(32, num_heads=2))
    with pytest.raises(NotImplementedError):
        attention(torch.zeros(1, 2, 32), is_causal=True)
