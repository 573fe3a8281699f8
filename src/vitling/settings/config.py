"""Everything that a run can be told. Plain data, no torch; the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import tyro

from vitling.data.config import DataConfig
from vitling.methods import idmm
from vitling.methods import registry as methods
from vitling.objectives.config import (
    BYOLConfig,
    DenseCLConfig,
    DINOConfig,
    DRLocConfig,
    EsViTConfig,
    IDMMConfig,
    MoCoV2Config,
    MoCoV3Config,
    SimCLRConfig,
    SupConConfig,
    SupervisedConfig,
)
from vitling.training.config import CheckpointConfig, FitConfig, LoopConfig, OptimConfig
from vitling.views.config import ViewChanges, ViewsConfig


def _shown(metavar: str, hint: str = "", name: str | None = None) -> Any:
    """How the help shows a setting whose default says nothing ("None") or only that there is none."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, name=name)


_Method = Literal["auto", methods.Name]
_Preset = Literal["auto", methods.Preset]


@dataclass
class RunConfig:
    """What every training verb can be told."""

    source: Annotated[str, tyro.conf.Positional, _shown("DATA", "(required, unless with --resume)")] = ""
    """Your images: a folder, a CSV, a Parquet file, a tar, an npz, torchvision:NAME?root=DIR, a data set of the papers
    such as flowers102:DIR, or embedded:digits; or train=A,test=B where the parts lie in different places."""
    out: Annotated[str, _shown("DIR", "(required)")] = ""
    """Directory of the run. It must be new or empty, unless --resume or --overwrite is given."""
    backbone: Annotated[str | None, _shown("NAME")] = None
    """Network; `vitling list backbones` shows the tested ones. By default pvt_v2_b0, or a small ViT for tiny images."""
    from_: Annotated[str | None, _shown("PATH", name="from")] = None
    """Start from the weights of a run, a model folder, a checkpoint or a timm weights file; its head is dropped."""
    size: Annotated[int | None, _shown("INT")] = None
    """Pixels of a view. By default 224, less for smaller images."""
    epochs: int = 100
    """Passes over the training images."""
    batch: int = 128
    """Images for each step of the optimiser, over all processes."""
    minutes: Annotated[float | None, _shown("MINUTES")] = None
    """Fit the run into so many minutes, compilation included: as many epochs as that gives, at most --epochs."""
    seed: int = 0
    """Another one gives another run; the same one the same run."""
    seeds: int = 1
    """Train with so many seeds, one run each in --out/seed0, seed1, ..., on the same held-out images."""
    split_seed: Annotated[int | None, _shown("INT")] = None
    """Draws the images that are held out, or the folds. By default --seed."""
    aux: Literal["none", "drloc"] = "none"
    """drloc: beside its main task the network learns how far apart two of its tokens lie."""
    val: Annotated[str | None, _shown("none|FRACTION")] = None
    """none: train on everything; a fraction such as 0.2: hold that out. By default the data's own, else a tenth;
    `train` holds nothing out of up to 5,000 images that have a test split."""
    store: Literal["auto", "device", "host", "stream"] = "auto"
    """Where decoded images live: GPU memory, host memory, or read from disk as needed."""
    store_size: Annotated[int | None, _shown("INT")] = None
    """Side of the decoded images (S). By default what the views can use, 12/7 of their size and for small crops
    more (up to 8 GB in all), but not more than the images have."""
    cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Decoded images are kept on disk (in VITLING_CACHE), so that the next start is immediate; or not."""
    allow_bad: bool = False
    """Go on although more than 1 % of the files cannot be read."""
    resume: bool = False
    """Continue the run in --out exactly where its last checkpoint left it."""
    overwrite: bool = False
    """Delete the run in --out and start again."""
    data: DataConfig = field(default_factory=DataConfig)
    drloc: DRLocConfig = field(default_factory=DRLocConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    said: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    store_least: Annotated[int, tyro.conf.Suppress] = 0  # of a store whose size is not given; images may have less
    """Dotted names of settings that were named by whoever started the run: no preset and no plan changes those, also
    where they are what is usual. Where none are known, they are those that differ from what is usual."""

    def said_of(self, part: str) -> set[str]:
        """Of the settings in `optim`, for example, those that were named."""
        return {name.removeprefix(f"{part}.") for name in self.said if name.startswith(f"{part}.")}

    def held_out_by(self) -> int:
        return self.seed if self.split_seed is None else self.split_seed

    def for_the_loop(self, best: str | None = None) -> FitConfig:
        return FitConfig(self.epochs, self.batch, self.seed, self.optim, self.loop, self.checkpoint, best)


@dataclass
class LabelledConfig(RunConfig):
    """What can be said of training on labels."""

    eval_every: Annotated[int | None, _shown("INT")] = None
    """Epochs between two looks at the validation split. By default about fifty looks a run, ten with --minutes."""
    test_size: Annotated[int | None, _shown("INT")] = None
    """Pixels of a view in validation and test, and for the saved model. By default --size, or what `train` plans: a
    network that learns from random crops sees things larger than they are, and may do better on larger views."""
    test: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """The test split, if there is one, is opened at the end; or it stays closed, for a run among which one chooses."""
    views: ViewsConfig = field(default_factory=ViewsConfig)
    objective: SupervisedConfig = field(default_factory=SupervisedConfig)

    @property
    def judged_at(self) -> int:
        """Pixels of a view in validation and test, of a config whose size is settled."""
        if self.size is None:
            raise ValueError("the size is settled before anything is judged")
        return self.test_size or self.size


Preset = idmm.Preset
POLICY = "idmm-finetune"  # the views of fine-tuning, unless others are asked for
PLANNED = -1  # a number that is filled in: by the plan, or by the method


@dataclass
class MethodsConfig:
    """The settings of each method of pre-training; only those of --method may be set."""

    idmm: IDMMConfig = field(default_factory=IDMMConfig)
    simclr: SimCLRConfig = field(default_factory=SimCLRConfig)
    supcon: SupConConfig = field(default_factory=SupConConfig)
    moco_v2: MoCoV2Config = field(default_factory=MoCoV2Config)
    moco_v3: MoCoV3Config = field(default_factory=MoCoV3Config)
    byol: BYOLConfig = field(default_factory=BYOLConfig)
    dino: DINOConfig = field(default_factory=DINOConfig)
    esvit: EsViTConfig = field(default_factory=EsViTConfig)
    densecl: DenseCLConfig = field(default_factory=DenseCLConfig)


@dataclass
class PretrainConfig(MethodsConfig, RunConfig):
    """Pre-train a network on your images; only --method supervised and supcon use labels.

    A first run: vitling pretrain images/ --out runs/pre, then vitling finetune images/ --from runs/pre --out runs/first
    """

    method: methods.Name = "idmm"
    """`vitling list methods` says what each does. idmm: tell every image from every other."""
    preset: Annotated[_Preset, _shown("{paper,released,adamw}", "(default: the method's)")] = "auto"
    """Optimiser, learning rate, warm-up, smoothing: of the paper, or of its code (idmm), or IDMM's AdamW in the place
    of the paper's SGD (simclr, supcon, moco-v2, densecl, which have it by default). What you set yourself wins."""
    epochs: int = 800
    """Passes over the training images. Not set, esvit has more below 2,000 images and fewer above."""
    views_budget: Annotated[float | None, _shown("VIEWS")] = None
    """Instead of --epochs: as many as show about so many views in all (3.8e9 in the EsViT paper)."""
    batch: Annotated[int, _shown("INT", "(default: the method's)")] = PLANNED
    """Images for each step of the optimiser, over all processes. By default 256, or 512 (simclr, supcon, dino), or 64
    to 512 by the number of images (esvit)."""
    size: Annotated[int | None, _shown("INT")] = None
    """Pixels of a view. By default 112, less for smaller images."""
    val: Annotated[str | None, _shown("none|FRACTION")] = "none"
    """none: pre-train on all images but a test split; a fraction such as 0.2: leave that out."""
    continue_from: Annotated[str | None, _shown("RUN")] = None
    """Go on from a run's last checkpoint, or from a checkpoint file: its step, weights and moments, with more to learn.
    For esvit after dino, or after its view loss alone; images, --batch and what both have must be the same."""
    drop_path: float = 0.1
    """Stochastic depth of the last block; earlier blocks less."""
    watch_every: Annotated[int | None, _shown("INT")] = None
    """Epochs between two looks at the features: k-NN where there are labels, else their spread. By default forty looks
    a run, ten with --minutes."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do when the features collapse or the loss stays that of guessing (docs/watching.md)."""
    views: ViewChanges = field(default_factory=ViewChanges)


@dataclass
class FinetuneConfig(LabelledConfig):
    """Fine-tune a pre-trained network on your labelled images, as IDMM does it.

    vitling finetune images/ --from runs/pre --out runs/first

    At a larger size, with its head: vitling finetune images/ --from runs/first --size 448 --keep-head --out runs/large
    """

    from_: Annotated[str | None, _shown("PATH", "(required, unless with --resume)", name="from")] = None
    """Start from the weights of a run, a model folder, a checkpoint or a timm weights file."""
    keep_head: bool = False
    """Keep the head of --from too: of a run or a model folder that was trained on the same classes."""
    preset: Preset = "paper"
    """Learning rate and warm-up of the paper or of its code. What you set yourself wins."""
    epochs: int = 200
    """Passes over the training images. Not set, 100 above 224 px."""
    batch: int = 256
    """Images for each step of the optimiser, over all processes. Above 224 px 128 (T2T-ViT 32), likewise."""
    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(policy=POLICY))


@dataclass
class TrainConfig(MethodsConfig, LabelledConfig):
    """Train a network on your images, from scratch: first on the images alone, then on their labels.

    What you do not say is planned from the images and the machine; the plan is printed, with its reasons.

    A first run: vitling train images/ --out runs/first
    """

    method: _Method = "auto"
    """supervised: the labels at once; any other (`vitling list methods`): a first stage of that kind, then labels."""
    preset: Annotated[Literal["auto", "paper", "released"], _shown("{paper,released}", "(default: planned)")] = "auto"
    """Learning rate, warm-up, smoothing of the stage that learns the labels, and of IDMM's first stage: the paper's or
    its code's. What you set yourself wins."""
    epochs: Annotated[int, _shown("INT", "(default: planned)")] = PLANNED
    """Passes over the labelled images."""
    batch: Annotated[int, _shown("INT", "(default: planned)")] = PLANNED
    """Images for each step of the optimiser, over all processes, in both stages."""
    pretrain_epochs: Annotated[int | None, _shown("INT")] = None
    """Passes over all images in the first stage."""
    pretrain_size: Annotated[int | None, _shown("INT")] = None
    """Pixels of a view in the first stage."""
    pretrain_preset: Annotated[_Preset, _shown("{paper,released,adamw}", "(default: planned)")] = "auto"
    """Of the first stage, as --preset of pretrain."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do when the first stage's features collapse (docs/watching.md)."""
    final_size: Annotated[int | None, _shown("INT")] = None
    """Then go on at this size, with the head kept: 448 in the paper. --minutes does not count it."""
    pretrain_optim: OptimConfig = field(default_factory=OptimConfig)
    pretrain_views: ViewChanges = field(default_factory=ViewChanges)

    @property
    def second_preset(self) -> Preset:
        """Of the stage that learns the labels, also where it is the only one."""
        return idmm.usual_preset(self.backbone or "") if self.preset == "auto" else self.preset

    @property
    def first_preset(self) -> methods.Preset:
        if self.pretrain_preset != "auto":
            return self.pretrain_preset
        if self.method == "idmm":
            return self.second_preset
        return methods.usual_preset(self.method, self.pretrain_optim)


@dataclass
class ComparisonConfig(TrainConfig):
    """Give each method of pre-training the same time on your images, and see which serves them best.

    vitling compare-methods images/ --out runs/methods --minutes 8
    """

    methods: tuple[str, ...] = tuple(methods.METHODS)
    """Which to compare. supervised learns the labels at once: what a first stage has to beat."""
    minutes: Annotated[float | None, _shown("MINUTES", "(default: 8)")] = 8.0
    """Of each method, compilation included."""
    val: Annotated[str | None, _shown("FRACTION")] = None
    """What the methods are judged on: a fraction such as 0.1 of the training images. By default the data's own, else a
    fifth."""
    method: _Method = "auto"
    """Not here: --methods names those that are compared."""
    seeds: int = 1
    """Not here: each method is trained once."""
    pretrain_preset: Annotated[_Preset, _shown("{paper,released,adamw}", "")] = "auto"
    """Not here: each method has its own."""


Config = TypeVar("Config", bound=RunConfig)
