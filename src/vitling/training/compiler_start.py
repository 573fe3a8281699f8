"""Start CUDA and the compiler, and try the network's kernels, while a run reads its images."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from functools import partial

import torch

from vitling.backbones.backbone import Backbone
from vitling.training.compilation import is_started, start_in_background
from vitling.training.compile_server import send_early
from vitling.training.compile_workers import start_workers
from vitling.training.config import LoopConfig
from vitling.training.precision import Precision, choose_precision
from vitling.training.section_compiler import pack_section, record_trials


def start_compiler(config: LoopConfig, device: torch.device, backbone: Backbone) -> None:
    """Prepare the first step in the background, once, if a run on this device may compile.

    The kernels of a backbone with several sections are tried in as many processes, if a server was started early.
    """
    if device.type != "cuda" or config.compile == "off" or is_started():
        return
    copy, sent = deepcopy(backbone), False
    if len(copy.sections()) > 1:
        sent = send_early(lambda: [pack_section(task) for task in record_trials(copy, config, device)])
    precision = choose_precision(config, device)
    start_in_background(
        _import_compiler, partial(_start_cuda, device) if sent else partial(_try_kernels, copy, precision)
    )


def _import_compiler() -> None:
    start_workers()
    with suppress(Exception):  # the first compilation reports it
        import torch._inductor.compile_fx  # noqa: F401


def _start_cuda(device: torch.device) -> None:
    with suppress(Exception):  # the first step reports it
        torch.zeros(8, 8, device=device).mm(torch.zeros(8, 8, device=device))


def _try_kernels(backbone: Backbone, precision: Precision) -> None:
    """Train a copy of the backbone on one image."""
    with suppress(Exception):
        backbone.to(precision.device).eval()  # eval: it draws no random numbers
        with precision.autocast():
            image = torch.zeros(1, backbone.channels, backbone.size, backbone.size, device=precision.device)
            pooled = backbone(image).pooled
        pooled.float().sum().backward()
