"""Time our Triton kernels beside torch's operations, at the shapes that networks have.

    python benchmarks/kernels.py --out results/kernels-h200.json
    python benchmarks/kernels.py --stages 2 3        # of attention's pipeline: which is faster?

Attention is compared with torch's scaled dot-product attention, and PVTv2's depthwise convolution with cuDNN's and a
separate GELU, on maps in its layout. On GPUs each is captured as a CUDA graph, so Python's time does not count.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from record import format_command, write_rows
from torch import Tensor, nn

from vitling.backbones import create
from vitling.backbones.depthwise import DepthwiseMlp, depthwise_gelu
from vitling.backbones.dot_product import DotProductAttention, split_heads
from vitling.backbones.short_attention import MAX_KEYS, WIDTHS, attend

CPU_CALLS = 3
NETWORKS = (  # backbone, size, batch; six crops each of 256 images of 112 px, as in IDMM
    ("pvt_v2_b0", 112, 1536),
    ("pvt_v2_b0", 224, 256),
    ("deit_tiny_patch16_224", 112, 1536),
    ("t2t_vit_7", 112, 1536),
)


class Attention(NamedTuple):
    """Shapes of one image."""

    queries: int
    keys: int
    heads: int
    width: int

    def make(self, batch: int, device: torch.device) -> tuple[Callable, Callable, list[Tensor]]:
        """Return our operation, torch's, and random inputs: projections, as in a network."""
        sides = self.heads * self.width
        inputs = [_draw(device, batch, self.queries, sides), _draw(device, batch, self.keys, 2 * sides)]
        scale = self.width**-0.5

        def split(q: Tensor, both: Tensor) -> tuple[Tensor, ...]:
            return *split_heads(q, 1, self.heads), *split_heads(both, 2, self.heads)

        def ours(q: Tensor, both: Tensor) -> Tensor:
            return attend(*(x.transpose(1, 2) for x in split(q, both)), scale)

        def theirs(q: Tensor, both: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(*split(q, both), scale=scale).transpose(1, 2)

        return ours, theirs, inputs


class Depthwise(NamedTuple):
    """Shapes of one image."""

    height: int
    width: int
    channels: int

    def make(self, batch: int, device: torch.device) -> tuple[Callable, Callable, list[Tensor]]:
        x, weight = _draw(device, batch, *self), _draw(device, self.channels, 1, 3, 3, dtype=torch.float32)
        x_bias, bias = (_draw(device, self.channels, dtype=torch.float32) for _ in range(2))

        def ours(x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return depthwise_gelu(x, x_bias, weight.flatten(1).t(), bias)

        def theirs(x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            x = x + (x_bias - x_bias.detach()).to(x.dtype)  # only for the gradient of x_bias, as in ours
            maps, weight = x.permute(0, 3, 1, 2), weight.to(x.dtype)
            return F.gelu(F.conv2d(maps, weight, bias.to(x.dtype), padding=1, groups=len(weight))).permute(0, 2, 3, 1)

        return ours, theirs, [x, x_bias, weight, bias]


def _draw(device: torch.device, *sides: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*sides, device=device).to(dtype).requires_grad_()


def find_operations(backbone: str, size: int) -> Counter[Attention | Depthwise]:
    """Count the operations with kernels of our own in a network, by the shapes of one image."""
    found: Counter[Attention | Depthwise] = Counter()

    def see_attention(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        q, k, *_ = inputs
        if k.shape[2] <= MAX_KEYS and q.shape[3] in WIDTHS:
            found[Attention(q.shape[2], k.shape[2], q.shape[1], q.shape[3])] += 1

    def see_mlp(mlp: nn.Module, inputs: tuple[Any, ...]) -> None:
        found[Depthwise(*inputs[1], mlp.fc1.out_features)] += 1

    model = create(backbone, size).eval()
    for module in model.modules():
        if isinstance(module, DotProductAttention):
            module.register_forward_pre_hook(see_attention)
        elif isinstance(module, DepthwiseMlp):
            module.register_forward_pre_hook(see_mlp)
    with torch.inference_mode():
        model(torch.zeros(1, 3, size, size))
    return found


def measure(function: Callable[[], Any], device: torch.device) -> float:
    """Measure microseconds per call."""
    if device.type == "cuda":
        from triton.testing import do_bench_cudagraph

        return 1000 * do_bench_cudagraph(function, return_mode="median")
    function()
    began = time.perf_counter()
    for _ in range(CPU_CALLS):
        function()
    return 1e6 * (time.perf_counter() - began) / CPU_CALLS


def compare(operation: Attention | Depthwise, batch: int, device: torch.device) -> dict[str, Any]:
    """Measure the forward pass alone and with the backward pass, for both."""
    ours, theirs, inputs = operation.make(batch, device)
    slope = torch.randn_like(ours(*inputs))
    us: dict[str, dict[str, float]] = {}
    for name, function in (("ours", ours), ("torch", theirs)):
        forward = measure(torch.no_grad()(lambda function=function: function(*inputs)), device)
        both = measure(lambda function=function: torch.autograd.grad(function(*inputs), inputs, slope), device)
        us[name] = {"forward": round(forward, 1), "both": round(both, 1)}
    speedup = {part: round(us["torch"][part] / us["ours"][part], 2) for part in us["ours"]}
    return {"us": us, "speedup": speedup}


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    device = torch.device(options.device)
    for stages in options.stages or [None]:
        if stages is not None:
            from vitling.backbones import short_attention_kernels

            short_attention_kernels.OPTIONS["num_stages"] = stages
        for backbone, size, batch in NETWORKS:
            if options.only and not any(part in f"{backbone}-{size}" for part in options.only):
                continue
            for operation, blocks in find_operations(backbone, size).items():
                named = {"backbone": backbone, "size": size, "batch": options.batch or batch, "blocks": blocks}
                about = {"operation": type(operation).__name__.lower(), **operation._asdict()}
                staged = {} if stages is None else {"stages": stages}
                yield named | about | staged | compare(operation, options.batch or batch, device)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="networks with this in their name, such as pvt_v2_b0-224")
    parser.add_argument("--stages", nargs="+", type=int, default=[], help="of attention's pipeline (default: ours)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="replaces the batch of every network")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows = []
    for row in run(options):
        rows.append(row)
        print(row, flush=True)
        write_rows(options.out, "Our Triton kernels and torch's operations", format_command("kernels", options), rows)


if __name__ == "__main__":
    main()
