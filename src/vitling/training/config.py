"""Settings of the training loop. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from vitling.errors import UserError
from vitling.ranges import (
    AT_LEAST_1,
    FRACTION,
    FRACTION_ABOVE_0,
    FRACTION_BELOW_1,
    NOT_NEGATIVE,
    NOT_NEGATIVE_OR_INF,
    Range,
    check_ranges,
)

CosineFrom = Literal["warmup", "start", "idmm"]
Optimiser = Literal["adamw", "sgd", "muon"]


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule. Methods and presets override the defaults shown here; what you pass wins."""

    name: Optimiser | None = None
    """The optimiser; AdamW unless the preset (--preset) uses SGD or `train` plans Muon. muon: Muon for the matrices of
    the network's blocks, AdamW for the rest, at AdamW's learning rates."""
    lr: Annotated[float | None, NOT_NEGATIVE] = None
    """Peak learning rate. By default that of the plan, the preset or the method; otherwise 5e-4 per 256 images of the
    batch, at most 1e-3, or with SGD 0.03 per 256 images."""
    min_lr: Annotated[float, NOT_NEGATIVE] = 1e-6
    """Learning rate at the end of the cosine."""
    warmup_epochs: Annotated[float | None, NOT_NEGATIVE] = None
    """Epochs of linear warm-up. By default a twentieth of the run, at most 20 epochs."""
    warmup_lr: Annotated[float, NOT_NEGATIVE] = 0.0
    """Learning rate at the first step of the warm-up."""
    schedule_epochs: Annotated[int | None, AT_LEAST_1] = None
    """Length of the cosine in epochs, by default that of the run. A longer cosine is cut off at the end of the run."""
    schedule: Literal["cosine", "linear", "steps"] = "cosine"
    """Decay of the learning rate: by half a cosine or linearly to --optim.min-lr, or in steps (--optim.drops)."""
    drops: Annotated[tuple[float, ...], FRACTION] = ()
    """With --optim.schedule steps: fractions of the run after which the learning rate is divided by 10."""
    cosine_from: CosineFrom = "warmup"
    """Start of the cosine: after the warm-up; at the first step, as in timm (the learning rate then drops a little
    after the warm-up); or as in IDMM's released formula, which does not quite reach the end."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.05
    """Weight decay. Biases, norms, tokens, position embeddings and relative-position tables are exempt."""
    final_weight_decay: Annotated[float | None, NOT_NEGATIVE] = None
    """Weight decay at the end of the run, approached by half a cosine (AdamW only). Constant by default."""
    decay_all: bool = False
    """Apply weight decay to all parameters, as IDMM's released code does."""
    betas: Annotated[tuple[float, float], FRACTION_BELOW_1] = (0.9, 0.999)
    """AdamW's decay rates for the averages of the gradient and of its square."""
    momentum: Annotated[float, FRACTION_BELOW_1] = 0.9
    """Momentum of SGD."""
    clip: Annotated[float, NOT_NEGATIVE_OR_INF] = 5.0
    """Largest gradient norm; 0 disables clipping."""
    clip_per: Literal["global", "tensor"] = "global"
    """Clip one norm over all gradients, or one per tensor."""
    accumulate: Annotated[int, AT_LEAST_1] = 1
    """Passes per optimiser step: less memory at the same effective batch."""
    ema: Annotated[float, FRACTION_BELOW_1] = 0.0
    """Decay of the moving average of the weights, which is then evaluated and saved. 0 is off, 0.999 is common."""

    def peak_lr(self, batch: int) -> float:
        if self.lr is not None:
            return self.lr
        return 0.03 * batch / 256 if self.name == "sgd" else min(5e-4 * batch / 256, 1e-3)  # MoCo, DeiT

    def warmup(self, epochs: int) -> float:
        return self.warmup_epochs if self.warmup_epochs is not None else min(epochs / 20, 20.0)

    def over_epochs(self, epochs: int) -> int:
        return self.schedule_epochs if self.schedule_epochs is not None else epochs


@dataclass(frozen=True)
class LoopConfig:
    """Device, precision, compilation and batching."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp16 with loss scaling; fp32 on CPUs. Losses are always fp32."""
    compile: Literal["auto", "on", "blocks", "views", "off"] = "auto"
    """torch.compile. on: the network, PVTv2 by its stages, and the views. blocks: one graph per kind of block (a plain
    ViT has one), which compiles faster and trains a little slower. views: the views only. auto: on, on GPUs, for runs
    of at least 200 steps."""
    deterministic: bool = False
    """Bit-identical results on GPUs too, at the cost of some speed."""
    drop_last: bool = False
    """Drop the last, incomplete batch of an epoch."""
    epoch_part: Annotated[float, FRACTION_ABOVE_0] = 1.0
    """Share of the batches that an epoch has; each epoch leaves out different images. On CPUs --minutes sets it, so
    that a run of few epochs uses all of its time."""
    even: Literal["auto", "on", "off"] = "auto"
    """Make all batches exactly --batch images (less what --optim.accumulate does not divide), so that only one shape is
    compiled. An epoch then leaves out some images or shows some twice, drawn anew each time: at most an eighth of them,
    else the last batch stays incomplete. auto: on in compiled runs without --loop.drop-last."""
    batch_norm_group: Annotated[int | None, Range(2)] = None
    """Compute the network's batch-norm statistics over groups of at most this many images (ghost batch norm), as
    on GPUs that each hold that many. By default over all images of a pass, on all GPUs."""
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """balanced: draw all classes equally often, whatever their sizes."""
    log_every: Annotated[int, AT_LEAST_1] = 50
    """Steps between lines of metrics within an epoch, and between checks that the loss is finite."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """tensorboard, wandb, mlflow, trackio, or none."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Frequency and number of checkpoints."""

    every_seconds: Annotated[float, NOT_NEGATIVE_OR_INF] = 60.0
    """Seconds between checkpoints at the ends of epochs. Within an epoch, ten times as many."""
    keep: Annotated[int, AT_LEAST_1] = 2
    """Number of latest checkpoints to keep."""


@dataclass(frozen=True)
class FitConfig:
    """All settings of the loop."""

    epochs: Annotated[int, AT_LEAST_1] = 100
    batch: Annotated[int, AT_LEAST_1] = 128
    seed: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    best: str | None = None  # the watcher's metric (higher is better) that marks the best epoch

    def check(self) -> None:
        """Raise UserError for values out of range and for settings that exclude each other."""
        check_ranges(self)
        if self.optim.name in ("sgd", "muon") and self.optim.final_weight_decay is not None:
            raise UserError(f"--optim.final-weight-decay is for AdamW, but --optim.name is {self.optim.name}.")
        if self.optim.name == "sgd" and self.optim.betas != OptimConfig.betas:
            raise UserError("--optim.betas are for AdamW, but --optim.name is sgd. Use --optim.momentum.")
        if self.optim.name in ("adamw", "muon") and self.optim.momentum != OptimConfig.momentum:
            raise UserError(f"--optim.momentum is for SGD, but --optim.name is {self.optim.name}. Use --optim.betas.")
        if (self.optim.schedule == "steps") != bool(self.optim.drops):
            raise UserError(
                "--optim.schedule steps and --optim.drops need each other, such as --optim.drops 0.67 0.92."
            )
        if self.optim.over_epochs(self.epochs) < self.epochs:
            raise UserError(
                f"--optim.schedule-epochs {self.optim.schedule_epochs} is less than --epochs {self.epochs}. "
                f"Use at least {self.epochs}."
            )
        if self.loop.drop_last and self.loop.even == "on":
            raise UserError("--loop.even on leaves no incomplete batch to drop. Pass it without --loop.drop-last.")
        if self.optim.accumulate > self.batch:
            raise UserError(f"--optim.accumulate {self.optim.accumulate} is more than --batch {self.batch}.")
