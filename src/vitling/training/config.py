"""How a run is trained. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from vitling.errors import UserError

CosineFrom = Literal["warmup", "start", "idmm"]
Optimiser = Literal["adamw", "sgd"]


@dataclass
class OptimConfig:
    """The optimiser and its schedule. Where a method or a preset has numbers of its own, those are taken instead of the
    defaults shown here, unless you give one."""

    name: Optimiser | None = None
    """By default AdamW, or what a preset has (--preset)."""
    lr: float | None = None
    """Peak learning rate. By default that of the plan, the preset or the method; else 5e-4 for each 256 images of the
    batch, at most 1e-3, and with SGD 0.03 for each."""
    min_lr: float = 1e-6
    """Learning rate at the very end of the cosine."""
    warmup_epochs: float | None = None
    """Linear warm-up. By default a twentieth of the run, at most 20 epochs."""
    warmup_lr: float = 0.0
    """Learning rate at the first step of the warm-up."""
    schedule_epochs: int | None = None
    """Epochs that the cosine is laid out for. By default those of the run, which ends early where they are more."""
    cosine_from: CosineFrom = "warmup"
    """Where the cosine begins: after the warm-up; with it, as timm's does (the rate then drops a little between); or
    as in IDMM's released formula, which does not quite reach the end."""
    weight_decay: float = 0.05
    """Not applied to biases, norms, tokens, position embeddings and relative-position tables."""
    final_weight_decay: float | None = None
    """Weight decay at the end of the run, which half a cosine leads to. By default it stays as it is. AdamW's only."""
    decay_all: bool = False
    """Weight decay on those too, as IDMM's released code has it."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's averages of the gradient and of its square."""
    momentum: float = 0.9
    """SGD's: how much of the last step goes into the next."""
    clip: float = 5.0
    """Largest gradient norm; 0 switches clipping off."""
    clip_per: Literal["global", "tensor"] = "global"
    """One norm over all gradients, or one for each tensor."""
    accumulate: int = 1
    """Passes that share one optimiser step: less memory, the same effective batch."""
    ema: float = 0.0
    """Decay of the moving average of the weights that is evaluated and saved; 0 is off, 0.999 is usual."""

    def peak_lr(self, batch: int) -> float:
        if self.lr is not None:
            return self.lr
        return 0.03 * batch / 256 if self.name == "sgd" else min(5e-4 * batch / 256, 1e-3)  # MoCo's, and DeiT's

    def warmup(self, epochs: int) -> float:
        return self.warmup_epochs if self.warmup_epochs is not None else min(epochs / 20, 20.0)

    def over_epochs(self, epochs: int) -> int:
        return self.schedule_epochs if self.schedule_epochs is not None else epochs


@dataclass
class LoopConfig:
    """The machine's side of training."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp16 with loss scaling; fp32 on CPUs. Losses are always fp32."""
    compile: Literal["auto", "on", "blocks", "views", "off"] = "auto"
    """torch.compile: the network as one graph (on), or a graph for each kind of block, of which a plain ViT has one,
    and which trains a little more slowly; views: they alone, not the network. auto: on, on GPUs, for runs of 200 steps
    and more."""
    deterministic: bool = False
    """Bit-identical results on GPUs too, at some speed."""
    drop_last: bool = False
    """Leave out the last, incomplete batch of an epoch."""
    even: Literal["auto", "on", "off"] = "auto"
    """All batches of an epoch equally large, at most --batch, so that one shape is compiled. Fewer images than
    there are steps (times --optim.accumulate) are left out, others in each epoch. Batches that would be smaller than
    7/8 of --batch stay as they are. auto: where the run is compiled, and not with --loop.drop-last."""
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """balanced: every class equally often, whatever its size."""
    log_every: int = 50
    """Steps between two lines of metrics within an epoch; the loss is checked as often."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """tensorboard, wandb, mlflow, trackio; or none."""


@dataclass
class CheckpointConfig:
    """What is kept, and how often."""

    every_seconds: float = 60.0
    """At the end of an epoch, if this long has passed since the last checkpoint; within an epoch after ten times it."""
    keep: int = 2
    """How many of the latest checkpoints stay."""


@dataclass
class FitConfig:
    epochs: int = 100
    batch: int = 128
    seed: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    best: str | None = None  # the watcher's metric (higher is better) that marks the best epoch

    def check(self) -> None:
        """A UserError for what cannot be trained."""
        positive = {"epochs": self.epochs, "batch": self.batch, "optim.accumulate": self.optim.accumulate}
        for name, value in positive.items():
            if value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}.")
        if not 0 <= self.optim.ema < 1:
            raise UserError(f"--optim.ema must be at least 0 and below 1, not {self.optim.ema}.")
        if not all(0 <= beta < 1 for beta in self.optim.betas):
            raise UserError(f"--optim.betas must both be at least 0 and below 1, not {self.optim.betas}.")
        if self.optim.name not in (None, *get_args(Optimiser)):
            raise UserError(f"--optim.name {self.optim.name}: there is {' and '.join(get_args(Optimiser))}.")
        if self.optim.name == "sgd" and self.optim.final_weight_decay is not None:
            raise UserError("--optim.final-weight-decay is for AdamW, and --optim.name is sgd.")
        if self.optim.name == "sgd" and self.optim.betas != OptimConfig.betas:
            raise UserError("--optim.betas are AdamW's, and --optim.name is sgd: it has --optim.momentum.")
        if self.optim.name == "adamw" and self.optim.momentum != OptimConfig.momentum:
            raise UserError("--optim.momentum is SGD's, and --optim.name is adamw: it has --optim.betas.")
        if not 0 <= self.optim.momentum < 1:
            raise UserError(f"--optim.momentum must be at least 0 and below 1, not {self.optim.momentum}.")
        if self.optim.over_epochs(self.epochs) < self.epochs:
            raise UserError(
                f"--optim.schedule-epochs {self.optim.schedule_epochs} is less than --epochs {self.epochs}: a schedule "
                "must reach to the end of the run."
            )
        if self.loop.drop_last and self.loop.even == "on":
            raise UserError("--loop.even on leaves no incomplete batch for --loop.drop-last. Leave one of them out.")
        if self.checkpoint.keep < 1:
            raise UserError("--checkpoint.keep must be at least 1: a run that keeps nothing cannot be resumed.")
        if self.optim.accumulate > self.batch:
            raise UserError(f"--optim.accumulate {self.optim.accumulate} is more than --batch {self.batch}.")
