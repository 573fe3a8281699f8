"""Compare ways to compute GELU(depthwise 3 x 3 convolution) in PVTv2's MLPs, which take most of its training step.

    python benchmarks/depthwise.py --out results/depthwise-h200.json
    python benchmarks/depthwise.py --steps --out results/depthwise-h200.json    # whole training steps too

`conv` is torch's convolution and GELU, as in timm. `shifted` adds up nine shifted products, which the compiler fuses
with bias and GELU into one kernel. `rows` is a pair of Triton kernels that slide over the rows of a map, so that each
value is loaded three times instead of nine, and that compute the convolution again in the backward pass. All take and
return maps with channels last, [B, h, w, C], as the linear layers around them do. All are compiled and measured in
turns, in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from record import write_rows
from timm.models.pvt_v2 import MlpWithDepthwiseConv
from torch import Tensor

Convolve = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPES = {112: ((28, 256), (14, 512), (7, 640), (4, 1024)), 224: ((56, 256), (28, 512), (14, 640), (7, 1024))}
BATCHES = {112: 1536, 224: 256}  # six crops each of 256 images, and one
ROUNDS, REPEATS = 5, 10


# --- candidates -------------------------------------------------------------------------------------------------------


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute GELU of the depthwise convolution of x [B, h, w, C], for weight [C, 1, 3, 3] and bias [C]."""
    maps = F.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), padding=1, groups=x.shape[-1])
    return F.gelu(maps.permute(0, 2, 3, 1))


def add_shifted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Add up nine shifted products in float32."""
    (_, height, width, _), padded = x.shape, F.pad(x, (0, 0, 1, 1, 1, 1))
    taps = weight.flatten(1).float().unbind(1)
    total = bias.float() + sum(
        padded[:, k // 3 : k // 3 + height, k % 3 : k % 3 + width].float() * tap for k, tap in enumerate(taps)
    )
    return F.gelu(total).to(x.dtype)


CHANNELS, LANES, ROWS = 32, 32, 14  # of a tile: channels, columns of all its images, rows
PROGRAMS = 4096  # of the backward kernel at most; each adds up the gradients of its tiles


@triton.jit
def _load_row(x_ptr, place, i, H: tl.constexpr, WC: tl.constexpr, C: tl.constexpr, left, middle, right):
    """Load row i of a tile three times: shifted to the right, as it is, and shifted to the left."""
    row = tl.full([1, 1], 0, tl.int32) + i
    inside = (row >= 0) & (row < H)
    at = x_ptr + place + i * WC
    return (
        tl.load(at - C, mask=left & inside, other=0.0),
        tl.load(at, mask=middle & inside, other=0.0),
        tl.load(at + C, mask=right & inside, other=0.0),
    )


@triton.jit
def _convolve_rows(x_ptr, w_ptr, b_ptr, y_ptr, B, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
                   TRANSPOSE: tl.constexpr, R: tl.constexpr, WP: tl.constexpr, G: tl.constexpr,
                   BC: tl.constexpr):  # fmt: skip
    """Convolve R rows of G images and apply GELU; with TRANSPOSE, apply the transposed convolution alone."""
    lane, c = tl.arange(0, G * WP), tl.program_id(1) * BC + tl.arange(0, BC)
    j, image = lane % WP, tl.program_id(0) * G + lane // WP
    known = (image < B)[:, None] & (c < C)[None, :]
    middle = known & (j < W)[:, None]
    left, right = middle & (j > 0)[:, None], middle & (j < W - 1)[:, None]
    place = image.to(tl.int64)[:, None] * (H * W * C) + j[:, None] * C + c[None, :]
    FLIP: tl.constexpr = 8 if TRANSPOSE else 0
    SIGN: tl.constexpr = -1 if TRANSPOSE else 1
    w0 = tl.load(w_ptr + c * 9 + FLIP, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w1 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 1, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w2 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 2, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w3 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 3, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w4 = tl.load(w_ptr + c * 9 + 4, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w5 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 5, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w6 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 6, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w7 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 7, mask=c < C, other=0.0).to(tl.float32)[None, :]
    w8 = tl.load(w_ptr + c * 9 + FLIP + SIGN * 8, mask=c < C, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(b_ptr + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    first = tl.program_id(2) * R
    x0, x1, x2 = _load_row(x_ptr, place, first - 1, H, W * C, C, left, middle, right)
    x3, x4, x5 = _load_row(x_ptr, place, first, H, W * C, C, left, middle, right)
    for i in range(first, min(first + R, H)):
        x6, x7, x8 = _load_row(x_ptr, place, i + 1, H, W * C, C, left, middle, right)
        total = x0.to(tl.float32) * w0 + x1.to(tl.float32) * w1 + x2.to(tl.float32) * w2
        total += x3.to(tl.float32) * w3 + x4.to(tl.float32) * w4 + x5.to(tl.float32) * w5
        total += x6.to(tl.float32) * w6 + x7.to(tl.float32) * w7 + x8.to(tl.float32) * w8
        if not TRANSPOSE:
            total += bias
            total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
        tl.store(y_ptr + place + i * (W * C), total, mask=middle)
        x0, x1, x2, x3, x4, x5 = x3, x4, x5, x6, x7, x8


@triton.jit
def _differentiate_rows(g_ptr, x_ptr, w_ptr, b_ptr, d_ptr, s_ptr, B, groups, H: tl.constexpr, W: tl.constexpr,
                        C: tl.constexpr, WP: tl.constexpr, G: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """Compute the gradient before GELU, and add up those of the weights (rows 0 to 8) and of the bias (row 9)."""
    lane, c = tl.arange(0, G * WP), tl.program_id(1) * BC + tl.arange(0, BC)
    j, live = lane % WP, c < C
    w0 = tl.load(w_ptr + c * 9 + 0, mask=live, other=0.0).to(tl.float32)[None, :]
    w1 = tl.load(w_ptr + c * 9 + 1, mask=live, other=0.0).to(tl.float32)[None, :]
    w2 = tl.load(w_ptr + c * 9 + 2, mask=live, other=0.0).to(tl.float32)[None, :]
    w3 = tl.load(w_ptr + c * 9 + 3, mask=live, other=0.0).to(tl.float32)[None, :]
    w4 = tl.load(w_ptr + c * 9 + 4, mask=live, other=0.0).to(tl.float32)[None, :]
    w5 = tl.load(w_ptr + c * 9 + 5, mask=live, other=0.0).to(tl.float32)[None, :]
    w6 = tl.load(w_ptr + c * 9 + 6, mask=live, other=0.0).to(tl.float32)[None, :]
    w7 = tl.load(w_ptr + c * 9 + 7, mask=live, other=0.0).to(tl.float32)[None, :]
    w8 = tl.load(w_ptr + c * 9 + 8, mask=live, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(b_ptr + c, mask=live, other=0.0).to(tl.float32)[None, :]
    s0 = tl.zeros([G * WP, BC], tl.float32)
    s1, s2, s3, s4, s5, s6, s7, s8, s9 = s0, s0, s0, s0, s0, s0, s0, s0, s0
    for group in range(tl.program_id(0), groups, tl.num_programs(0)):
        image = group * G + lane // WP
        middle = (image < B)[:, None] & live[None, :] & (j < W)[:, None]
        left, right = middle & (j > 0)[:, None], middle & (j < W - 1)[:, None]
        place = image.to(tl.int64)[:, None] * (H * W * C) + j[:, None] * C + c[None, :]
        x0, x1, x2 = _load_row(x_ptr, place, -1, H, W * C, C, left, middle, right)
        x3, x4, x5 = _load_row(x_ptr, place, 0, H, W * C, C, left, middle, right)
        for i in range(H):
            x6, x7, x8 = _load_row(x_ptr, place, i + 1, H, W * C, C, left, middle, right)
            total = bias + x0.to(tl.float32) * w0 + x1.to(tl.float32) * w1 + x2.to(tl.float32) * w2
            total += x3.to(tl.float32) * w3 + x4.to(tl.float32) * w4 + x5.to(tl.float32) * w5
            total += x6.to(tl.float32) * w6 + x7.to(tl.float32) * w7 + x8.to(tl.float32) * w8
            slope = 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
            slope += total * 0.3989422804014327 * tl.exp(-0.5 * total * total)
            d = tl.load(g_ptr + place + i * (W * C), mask=middle, other=0.0).to(tl.float32) * slope
            tl.store(d_ptr + place + i * (W * C), d, mask=middle)
            s0 += d * x0.to(tl.float32)
            s1 += d * x1.to(tl.float32)
            s2 += d * x2.to(tl.float32)
            s3 += d * x3.to(tl.float32)
            s4 += d * x4.to(tl.float32)
            s5 += d * x5.to(tl.float32)
            s6 += d * x6.to(tl.float32)
            s7 += d * x7.to(tl.float32)
            s8 += d * x8.to(tl.float32)
            s9 += d
            x0, x1, x2, x3, x4, x5 = x3, x4, x5, x6, x7, x8
    at = s_ptr + tl.program_id(0) * (10 * C) + c
    tl.store(at, tl.sum(s0, 0), mask=live)
    tl.store(at + C, tl.sum(s1, 0), mask=live)
    tl.store(at + 2 * C, tl.sum(s2, 0), mask=live)
    tl.store(at + 3 * C, tl.sum(s3, 0), mask=live)
    tl.store(at + 4 * C, tl.sum(s4, 0), mask=live)
    tl.store(at + 5 * C, tl.sum(s5, 0), mask=live)
    tl.store(at + 6 * C, tl.sum(s6, 0), mask=live)
    tl.store(at + 7 * C, tl.sum(s7, 0), mask=live)
    tl.store(at + 8 * C, tl.sum(s8, 0), mask=live)
    tl.store(at + 9 * C, tl.sum(s9, 0), mask=live)


@torch.library.custom_op("vitling::slide", mutates_args=())
def slide(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    _launch(x, weight, bias, y, transpose=False)
    return y


@torch.library.custom_op("vitling::slide_backward", mutates_args=())
def slide_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    batch, height, width, channels = x.shape
    columns, images = _tile(width)
    groups = triton.cdiv(batch, images)
    blocks = triton.cdiv(channels, CHANNELS)
    programs = min(groups, max(1, PROGRAMS // blocks))
    before, sums = torch.empty_like(x), x.new_empty(programs, 10, channels, dtype=torch.float32)
    sizes = height, width, channels, columns, images, CHANNELS
    _differentiate_rows[programs, blocks](grad, x, weight, bias, before, sums, batch, groups, *sizes)
    gradient = torch.empty_like(x)
    _launch(before, weight, bias, gradient, transpose=True)
    weights, biases = sums[:, :9].sum(0).T, sums[:, 9].sum(0)
    return gradient, weights.reshape(weight.shape).to(weight.dtype), biases.to(bias.dtype)


def _launch(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, transpose: bool) -> None:
    batch, height, width, channels = x.shape
    columns, images = _tile(width)
    rows = min(height, ROWS)
    grid = triton.cdiv(batch, images), triton.cdiv(channels, CHANNELS), triton.cdiv(height, rows)
    sizes = height, width, channels, transpose, rows, columns, images, CHANNELS
    _convolve_rows[grid](x, weight, bias, y, batch, *sizes)


def _tile(width: int) -> tuple[int, int]:
    """Return the columns of an image in a tile, a power of two, and the number of images in a tile."""
    columns = triton.next_power_of_2(width)
    return columns, max(1, LANES // columns)


@slide.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@slide_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight), torch.empty_like(bias)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return slide_backward(grad, *ctx.saved_tensors)


slide.register_autograd(_differentiate, setup_context=_save_inputs)

CANDIDATES: dict[str, Convolve] = {"conv": convolve, "shifted": add_shifted, "rows": slide}


# --- measurements -----------------------------------------------------------------------------------------------------


def measure(size: int, side: int, channels: int) -> dict[str, Any]:
    """Measure forward and backward passes of each candidate on one shape, and compare with `conv` in float32."""
    device, batch = "cuda", BATCHES[size]
    torch.manual_seed(0)
    x = torch.randn(batch, side, side, channels, device=device, dtype=torch.bfloat16)
    inputs = [x, 0.3 * torch.randn(channels, 1, 3, 3, device=device), torch.randn(channels, device=device)]
    grad = torch.randn_like(x)
    exact = _run(convolve, [inputs[0][:64].float(), *inputs[1:]], grad[:64].float())
    row: dict[str, Any] = {"size": size, "batch": batch, "side": side, "channels": channels, "error": {}}
    compiled = {name: torch.compile(function, dynamic=False) for name, function in CANDIDATES.items()}
    for name, function in CANDIDATES.items():
        found = _run(function, [inputs[0][:64], *inputs[1:]], grad[:64])
        row["error"][name] = max(float((a.float() - b).norm() / b.norm()) for a, b in zip(found, exact))
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for _ in range(ROUNDS):
        for name, function in compiled.items():
            times[name].append(_time(lambda f=function: _run(f, inputs, grad)))  # type: ignore[misc]
    row["milliseconds"] = {name: round(min(found), 3) for name, found in times.items()}
    return row


def _run(function: Convolve, inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    return y, *torch.autograd.grad(y, inputs, grad)


def _time(function: Callable[[], Any]) -> float:
    function()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(REPEATS):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / REPEATS


def make_mlp(function: Convolve) -> Callable[[MlpWithDepthwiseConv, Tensor, tuple[int, int]], Tensor]:
    """Make a forward method for timm's MLP that uses a candidate."""

    def forward(mlp: MlpWithDepthwiseConv, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        hidden = mlp.fc1(x).unflatten(1, tuple(feat_size))
        return mlp.fc2(function(hidden, mlp.dwconv.weight, mlp.dwconv.bias).flatten(1, 2))

    return forward


def measure_steps(size: int) -> dict[str, Any]:
    """Measure whole training steps of PVTv2-B0 with each candidate, and with timm's own MLP."""
    from workloads import InstanceClassification

    from vitling.papers.measure import FixedViewsTrainer, Workload, make_store, make_trainer, time_steps
    from vitling.views.policies import make_plan

    plan = make_plan("idmm-pretrain" if size == 112 else "supervised")
    work = Workload("pvt_v2_b0", plan, 256, InstanceClassification)
    store = make_store(1024, plan.store_side(1024), torch.device("cuda"))
    timm_forward, trainers = MlpWithDepthwiseConv.forward, {}
    for name, forward in {"timm": timm_forward, **{n: make_mlp(f) for n, f in CANDIDATES.items()}}.items():
        MlpWithDepthwiseConv.forward = forward  # type: ignore[method-assign, assignment]
        trainers[name] = make_trainer(FixedViewsTrainer, work, store, "on")
        time_steps(trainers[name], 5, 256)
    MlpWithDepthwiseConv.forward = timm_forward  # type: ignore[method-assign]
    rounds = [{name: time_steps(trainer, 20, 256) for name, trainer in trainers.items()} for _ in range(ROUNDS)]
    return {"size": size, "images_per_second": {name: max(found[name] for found in rounds) for name in trainers}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--steps", action="store_true", help="measure whole training steps too")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    jobs = [lambda s=size, shape=shape: measure(s, *shape) for size in options.sizes for shape in SHAPES[size]]  # type: ignore[misc]
    if options.steps:
        jobs += [lambda s=size: measure_steps(s) for size in options.sizes]  # type: ignore[misc]
    for job in jobs:
        rows.append(job())
        print(rows[-1], flush=True)
        command = f"python benchmarks/depthwise.py --sizes {' '.join(map(str, options.sizes))}"
        command += " --steps" if options.steps else ""
        write_rows(options.out, "depthwise convolution and GELU of PVTv2, forward and backward", command, rows)


if __name__ == "__main__":
    main()
