"""The settings of every training verb. Plain data without torch; the flags and their help are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import tyro

from vitling.data.config import DataConfig
from vitling.methods import METHODS, idmm
from vitling.methods import registry as methods
from vitling.methods.byol import BYOLConfig
from vitling.methods.densecl import DenseCLConfig
from vitling.methods.dino import DINOConfig
from vitling.methods.drloc import DRLocConfig
from vitling.methods.esvit import EsViTConfig
from vitling.methods.idmm import IDMMConfig
from vitling.methods.moco_v2 import MoCoV2Config
from vitling.methods.moco_v3 import MoCoV3Config
from vitling.methods.optim import IDMMPreset
from vitling.methods.simclr import SimCLRConfig
from vitling.methods.supcon import SupConConfig
from vitling.methods.supervised import SupervisedConfig
from vitling.training.config import CheckpointConfig, FitConfig, LoopConfig, OptimConfig
from vitling.views.config import ViewChanges, ViewsConfig


def _shown(metavar: str, hint: str = "", name: str | None = None) -> Any:
    """Show this metavar and hint in the help instead of an uninformative default such as None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, name=name)


_Method = Literal["auto", methods.Name]
_Preset = Literal["auto", methods.Preset]


@dataclass
class RunConfig:
    """Settings that all training verbs share."""

    source: Annotated[str, tyro.conf.Positional, _shown("DATA", "(required, unless with --resume)")] = ""
    """Your images: a folder, CSV, Parquet file, tar, npz, torchvision:NAME?root=DIR, flowers102:DIR or embedded:digits.
    Write train=A,test=B if the splits are in different places."""
    out: Annotated[str, _shown("DIR", "(required)")] = ""
    """Directory for the run. It must be new or empty, unless you pass --resume or --overwrite."""
    backbone: Annotated[str | None, _shown("NAME")] = None
    """The network; `vitling list backbones` shows tested ones. Default: pvt_v2_b0, or a small ViT for tiny images."""
    from_: Annotated[str | None, _shown("PATH", name="from")] = None
    """Start from the weights of a run, model folder, checkpoint or timm weights file, without its head."""
    size: Annotated[int | None, _shown("INT")] = None
    """Side of a view in pixels. Default: 224, less for smaller images."""
    epochs: int = 100
    """Passes over the training images."""
    batch: int = 128
    """Images per optimiser step, over all processes."""
    minutes: Annotated[float | None, _shown("MINUTES")] = None
    """Fit the run, compilation included, into this many minutes by training fewer epochs than --epochs if needed."""
    seed: int = 0
    """Random seed of the weights, the views and the order of images."""
    seeds: int = 1
    """Number of runs with different seeds, in --out/seed0, seed1, ...; all hold out the same images."""
    split_seed: Annotated[int | None, _shown("INT")] = None
    """Random seed of the hold-out or the folds. Default: --seed."""
    aux: Literal["none", "drloc"] = "none"
    """Auxiliary loss. drloc: also predict the distance between pairs of tokens."""
    val: Annotated[str | None, _shown("none|FRACTION")] = None
    """Images to hold out for validation: none, or a fraction such as 0.2. Default: the data's own val split, else 0.1.
    `train` holds out nothing if there is a test split and at most 5,000 training images."""
    store: Literal["auto", "device", "host", "stream"] = "auto"
    """Where decoded images are kept: GPU memory, host memory, or on disk and read as needed."""
    store_size: Annotated[int | None, _shown("INT")] = None
    """Side of the decoded images in pixels.
    Default: 12/7 of the view size, more for small crops (up to 8 GB in all), and at most the size of the images."""
    cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Keep decoded images on disk (in VITLING_CACHE) for the next start; --no-cache decodes them every time."""
    allow_bad: bool = False
    """Continue even if more than 1 % of the files cannot be read."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, exactly as if it had not stopped."""
    overwrite: bool = False
    """Delete the run in --out and start over."""
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
    """Settings of training on labels."""

    eval_every: Annotated[int | None, _shown("INT")] = None
    """Epochs between evaluations on the validation split. Default: about 50 evaluations per run, 10 with --minutes."""
    test_size: Annotated[int | None, _shown("INT")] = None
    """Side of a view in pixels for validation, test and the saved model. Default: --size, or what `train` plans.
    Random crops enlarge objects in training, so larger views in the test often score higher."""
    test: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Evaluate on the test split at the end; --no-test leaves it unopened, for runs that a choice is made from."""
    views: ViewsConfig = field(default_factory=ViewsConfig)
    objective: SupervisedConfig = field(default_factory=SupervisedConfig)

    @property
    def eval_size(self) -> int:
        """Pixels of a view in validation and test, of a config whose size is settled."""
        if self.size is None:
            raise ValueError("the size is resolved before anything is evaluated")
        return self.test_size or self.size


Preset = IDMMPreset
POLICY = "idmm-finetune"  # the views of fine-tuning, unless others are asked for
PLANNED = -1  # a number that is filled in: by the plan, or by the method


@dataclass
class MethodsConfig:
    """Settings of each pre-training method; only those of --method may be set."""

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
    """Settings of `vitling pretrain`."""

    method: methods.Name = "idmm"
    """Pre-training method; `vitling list methods` describes them. idmm: tell every image from every other."""
    preset: Annotated[_Preset, _shown("{paper,released,adamw}", "(default: the method's)")] = "auto"
    """Optimiser, learning rate, warm-up and smoothing: paper; released, from its code (idmm); or adamw.
    adamw replaces SGD by IDMM's AdamW and is the default of simclr, supcon, moco-v2, densecl.
    Settings that you pass win over any preset."""
    epochs: int = 800
    """Passes over the training images. The default for esvit is higher below 2,000 images and lower above."""
    views_budget: Annotated[float | None, _shown("VIEWS")] = None
    """Instead of --epochs: train for about this many views in total (3.8e9 in the EsViT paper)."""
    batch: Annotated[int, _shown("INT", "(default: the method's)")] = PLANNED
    """Images per optimiser step, over all processes.
    Default: 256; 512 for simclr, supcon, dino; 64 to 512 for esvit, depending on the number of images."""
    size: Annotated[int | None, _shown("INT")] = None
    """Side of a view in pixels. Default: 112, less for smaller images."""
    val: Annotated[str | None, _shown("none|FRACTION")] = "none"
    """Images to hold out: none (pre-train on everything except a test split), or a fraction such as 0.2."""
    continue_from: Annotated[str | None, _shown("RUN")] = None
    """Continue from the step, weights and optimiser state of a run or checkpoint file, with an additional loss.
    Use it for esvit after dino or after its view loss. Images, --batch and shared settings must be the same."""
    drop_path: float = 0.1
    """Stochastic depth of the last block; it decreases linearly towards the first."""
    watch_every: Annotated[int | None, _shown("INT")] = None
    """Epochs between evaluations of the features: k-NN if there are labels, else their standard deviation.
    Default: 40 evaluations per run, 10 with --minutes."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do if the features collapse or the loss stays at chance level (docs/watching.md)."""
    views: ViewChanges = field(default_factory=ViewChanges)


@dataclass
class FinetuneConfig(LabelledConfig):
    """Settings of `vitling finetune`."""

    from_: Annotated[str | None, _shown("PATH", "(required, unless with --resume)", name="from")] = None
    """Start from the weights of a run, model folder, checkpoint or timm weights file."""
    keep_head: bool = False
    """Also keep the head of --from, which must be a run or model folder trained on the same classes."""
    preset: Preset = "paper"
    """Learning rate and warm-up: the paper's, or those of its released code. Settings that you pass win."""
    epochs: int = 200
    """Passes over the training images. The default above 224 px is 100."""
    batch: int = 256
    """Images per optimiser step, over all processes. The default above 224 px is 128 (T2T-ViT: 32)."""
    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(policy=POLICY))


@dataclass
class TrainConfig(MethodsConfig, LabelledConfig):
    """Settings of `vitling train`."""

    method: _Method = "auto"
    """Method of the first stage (`vitling list methods`). supervised: no first stage, train on labels only."""
    preset: Annotated[Literal["auto", "paper", "released"], _shown("{paper,released}", "(default: planned)")] = "auto"
    """Learning rate, warm-up and smoothing of the second stage and of IDMM's first: the paper's, or its code's.
    Settings that you pass win."""
    epochs: Annotated[int, _shown("INT", "(default: planned)")] = PLANNED
    """Passes over the labelled images."""
    batch: Annotated[int, _shown("INT", "(default: planned)")] = PLANNED
    """Images per optimiser step, over all processes, in both stages."""
    pretrain_epochs: Annotated[int | None, _shown("INT")] = None
    """Passes over all images in the first stage. Default: planned."""
    pretrain_size: Annotated[int | None, _shown("INT")] = None
    """Side of a view in pixels in the first stage. Default: planned."""
    pretrain_preset: Annotated[_Preset, _shown("{paper,released,adamw}", "(default: planned)")] = "auto"
    """Preset of the first stage, like --preset of `vitling pretrain`."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """What to do if the features of the first stage collapse (docs/watching.md)."""
    final_size: Annotated[int | None, _shown("INT")] = None
    """Then fine-tune at this size as well, keeping the head: 448 in the paper. --minutes does not include it."""
    pretrain_optim: OptimConfig = field(default_factory=OptimConfig)
    pretrain_views: ViewChanges = field(default_factory=ViewChanges)

    @property
    def second_preset(self) -> Preset:
        """Of the stage that learns the labels, also where it is the only one."""
        return idmm.default_preset(self.backbone or "") if self.preset == "auto" else self.preset

    @property
    def first_preset(self) -> methods.Preset:
        if self.pretrain_preset != "auto":
            return self.pretrain_preset
        if self.method == "idmm":
            return self.second_preset
        return methods.usual_preset(self.method, self.pretrain_optim)


@dataclass
class ComparisonConfig(TrainConfig):
    """Settings of `vitling compare-methods`."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to compare. supervised trains on labels only: the baseline for pre-training."""
    minutes: Annotated[float | None, _shown("MINUTES", "(default: 8)")] = 8.0
    """Minutes per method, compilation included."""
    val: Annotated[str | None, _shown("FRACTION")] = None
    """Fraction of the training images to evaluate on. Default: the data's own val split, else 0.2."""
    # no flags here: methods are compared with one seed and their own presets
    method: Annotated[_Method, tyro.conf.Suppress] = "auto"
    seeds: Annotated[int, tyro.conf.Suppress] = 1
    pretrain_preset: Annotated[_Preset, tyro.conf.Suppress] = "auto"


Config = TypeVar("Config", bound=RunConfig)
