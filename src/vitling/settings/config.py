"""The settings of every training command. Plain data without torch; the flags and their help are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from vitling.data.config import DataConfig
from vitling.methods import METHODS, MethodName, default_preset
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.idmm.settings import default_preset as default_idmm_preset
from vitling.methods.idmm_optim import IDMMPreset
from vitling.methods.method import MethodPreset
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.ranges import AT_LEAST_1, FRACTION, MINUTES, POSITIVE, SEED, SIDE, Range
from vitling.training.config import CheckpointConfig, FitConfig, LoopConfig, OptimConfig
from vitling.views.config import ViewChanges, ViewsConfig
from vitling.views.plan import Plan


def show_as(metavar: str, hint: str = "", name: str | None = None) -> Any:
    """Show this metavar and hint in the help instead of an uninformative default such as None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, name=name)


if TYPE_CHECKING:
    _Method = str
else:
    _Method = Literal["auto", MethodName]
_Preset = Literal["auto", MethodPreset]


PLANNED = -1  # a number that the plan or the method fills in
OPEN_NUMBER = Range(1, planned=PLANNED)


@dataclass(frozen=True)
class RunConfig:
    """Settings that all training commands share."""

    source: Annotated[str, tyro.conf.Positional, show_as("DATA", "(required, unless with --resume)")] = ""
    """Your images: a folder, CSV, Parquet file, tar, npz, torchvision:NAME?root=DIR, flowers102:DIR or embedded:digits.
    Write train=A,test=B if the splits are in different places."""
    out: Annotated[str, show_as("DIR", "(required)")] = ""
    """Directory for the run. It must be new or empty, unless you pass --resume or --overwrite."""
    backbone: Annotated[str | None, show_as("NAME")] = None
    """The network; `vitling list backbones` shows tested ones. Default: pvt_v2_b0, or a small ViT for tiny images;
    `train` without a GPU: resnet10t."""
    from_: Annotated[str | None, show_as("PATH", name="from")] = None
    """Start from the weights of a run, model folder, checkpoint or timm file, without its head."""
    size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Side of a view in pixels. Default: 224, less for smaller images; `train` without a GPU: 64."""
    epochs: Annotated[int, AT_LEAST_1] = 100
    """Passes over the training images."""
    batch: Annotated[int, AT_LEAST_1] = 128
    """Images per optimiser step, over all processes."""
    minutes: Annotated[float | None, MINUTES, show_as("MINUTES")] = None
    """Fit the run into this many minutes, if needed with fewer epochs than --epochs. Compilation is included."""
    seed: Annotated[int, SEED] = 0
    """Random seed of the weights, the views and the order of images."""
    seeds: Annotated[int, AT_LEAST_1] = 1
    """Number of runs with different seeds, in --out/seed0, seed1, ...; all hold out the same images."""
    split_seed: Annotated[int | None, SEED, show_as("INT")] = None
    """Random seed of the hold-out or the folds. Default: --seed."""
    init: Literal["default", "mimetic"] = "default"
    """Initial weights, unless --from gives them. mimetic, which `train` plans for plain ViTs: the products of query and
    key weights start close to the identity, as in trained ViTs, and positions as sines and cosines."""
    aux: Literal["none", "drloc"] = "none"
    """Auxiliary loss. drloc: also predict the distance between pairs of tokens."""
    val: Annotated[str | None, show_as("none|FRACTION")] = None
    """Images to hold out for validation: none, or a fraction such as 0.2. Default: the data's own val split, else 0.1.
    `train` holds out nothing if there is a test split and at most 5,000 training images."""
    store: Literal["auto", "device", "host", "stream"] = "auto"
    """Place of the decoded images: GPU memory, host memory, or disk (stream). auto takes the first that has room."""
    store_size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Side of the decoded images in pixels.
    Default: 12/7 of the view size, more for small crops (up to 8 GB in all), and at most the size of the images."""
    cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Keep decoded images on disk (in VITLING_CACHE) for the next start; --no-cache decodes them every time."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Write report.html at the end: results, curves, mistakes and a map of the images. --no-report skips it."""
    labels: Annotated[str | None, show_as("CSV")] = None
    """Corrected labels: a CSV with the columns path and label, such as the edited suspects.csv of `vitling doctor`.
    An image with an empty label, or the label drop, is left out."""
    allow_bad: bool = False
    """Continue even if more than 1 % of the files cannot be read."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the same result as an uninterrupted run."""
    explain: bool = False
    """Print every setting with its value, its origin and the reason, and exit."""
    overwrite: bool = False
    """Delete the run in --out and start over."""
    data: DataConfig = field(default_factory=DataConfig)
    drloc: DRLocConfig = field(default_factory=DRLocConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    store_least: Annotated[int, tyro.conf.Suppress] = 0  # px; lower limit of a store size that is not set
    labels_hash: Annotated[str, tyro.conf.Suppress] = ""  # of the content of --labels when the run began
    explicit: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Settings the user passed, by dotted name. Presets and the plan never override them, even at the default value.
    Settings that differ from the default count as explicit too."""

    def hold_out_seed(self) -> int:
        return self.seed if self.split_seed is None else self.split_seed

    def fit_config(self, best: str | None = None, epochs: int | None = None, batch: int | None = None) -> FitConfig:
        epochs, batch = epochs or self.epochs, batch or self.batch
        return FitConfig(epochs, batch, self.seed, self.optim, self.loop, self.checkpoint, best)

    def make_views(self, size: int) -> Plan:
        """Return the views of the run at this size, with the user's changes."""
        raise NotImplementedError

    @property
    def has_colours(self) -> bool:
        """Return whether colour augmentation applies: to grey and RGB images."""
        return self.data.channels in (1, 3)


@dataclass(frozen=True)
class LabelledConfig(RunConfig):
    """Settings of training on labels."""

    eval_every: Annotated[int | None, AT_LEAST_1, show_as("INT")] = None
    """Epochs between evaluations on the validation split. Default: about 50 evaluations per run, 10 with --minutes."""
    test_size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Side of a view in pixels for validation, test and the saved model. Default: --size, or what `train` plans.
    Random crops enlarge objects in training, so larger views at test time often score higher."""
    test: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Evaluate on the test split at the end; use --no-test for runs that you choose between."""
    calibrate: Literal["auto", "on", "off"] = "auto"
    """on: if no images are held out, first train a short twin without a fifth of the images, and calibrate the
    probabilities on those. Takes a fifth of the time; the model itself is trained on all images (docs/trust.md).
    auto: on if `train` decides to hold out nothing."""
    views: ViewsConfig = field(default_factory=ViewsConfig)
    objective: SupervisedConfig = field(default_factory=SupervisedConfig)

    @property
    def eval_size(self) -> int:
        """Pixels of a view in validation and test, once the size is resolved."""
        if self.size is None:
            raise ValueError("size is not resolved")
        return self.test_size or self.size

    def make_views(self, size: int) -> Plan:
        return self.views.plan(size)


FINETUNE_POLICY = "idmm-finetune"  # the views of fine-tuning by default

if TYPE_CHECKING:

    @dataclass(frozen=True)
    class MethodsConfig:
        def __getattr__(self, name: str) -> Any: ...

else:
    MethodsConfig = make_dataclass(
        "MethodsConfig",
        [(m.field, m.config, field(default_factory=m.config)) for m in METHODS.values() if m.config],
        frozen=True,
        namespace={"__doc__": "The settings of each method; only those of --method may be set."},
    )


@dataclass(frozen=True)
class PretrainConfig(MethodsConfig, RunConfig):
    """Settings of `vitling pretrain`."""

    method: MethodName = "idmm"
    """Pre-training method; `vitling list methods` describes them. idmm: tell every image from every other."""
    preset: Annotated[_Preset, show_as("{paper,released,adamw}", "(default: the method's)")] = "auto"
    """Recipe of the optimiser, learning rate, warm-up and smoothing. paper; released: its code's (idmm); or adamw.
    adamw replaces SGD with IDMM's AdamW and is the default of simclr, supcon, moco-v2, densecl.
    Settings that you pass win over any preset."""
    epochs: Annotated[int, AT_LEAST_1] = 800
    """Passes over the training images. The default for esvit is higher below 2,000 images and lower above."""
    views_budget: Annotated[float | None, POSITIVE, show_as("VIEWS")] = None
    """Instead of --epochs: train for about this many views in total (3.8e9 in the EsViT paper)."""
    batch: Annotated[int, OPEN_NUMBER, show_as("INT", "(default: the method's)")] = PLANNED
    """Images per optimiser step, over all processes.
    Default: 256; 512 for simclr, supcon, dino; 64 to 512 for esvit, depending on the number of images."""
    size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Side of a view in pixels. Default: 112, less for smaller images."""
    val: Annotated[str | None, show_as("none|FRACTION")] = "none"
    """Images to hold out: none (pre-train on everything except a test split), or a fraction such as 0.2."""
    continue_from: Annotated[str | None, show_as("RUN")] = None
    """Continue from the step, weights and optimiser state of a run or checkpoint file, with an additional loss.
    Use it for esvit after dino or after its view loss. Images, --batch and shared settings must be the same."""
    drop_path: Annotated[float, FRACTION] = 0.1
    """Stochastic depth of the last block; it decreases linearly towards the first."""
    watch_every: Annotated[int | None, AT_LEAST_1, show_as("INT")] = None
    """Epochs between evaluations of the features: k-NN if there are labels, else their standard deviation.
    Default: 40 evaluations per run, 10 with --minutes."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """Stop or warn if the features collapse or the loss stays at chance. See docs/watching.md."""
    views: ViewChanges = field(default_factory=ViewChanges)

    def make_method_views(self, size: int) -> Plan:
        """Return the views of the method, without the user's changes."""
        method = METHODS[self.method]
        return method.views(method.config_of(self), size)

    def make_views(self, size: int) -> Plan:
        return self.views.apply(self.make_method_views(size))


@dataclass(frozen=True)
class FinetuneConfig(LabelledConfig):
    """Settings of `vitling finetune`."""

    from_: Annotated[str | None, show_as("PATH", "(required, unless with --resume)", name="from")] = None
    """Start from the weights of a run, model folder, checkpoint or timm file."""
    keep_head: bool = False
    """Keep the head of --from too: a run or model folder with the same classes."""
    preset: IDMMPreset = "paper"
    """Learning rate and warm-up: the paper's, or those of its released code. Settings that you pass win."""
    epochs: Annotated[int, AT_LEAST_1] = 200
    """Passes over the training images. The default above 224 px is 100."""
    batch: Annotated[int, AT_LEAST_1] = 256
    """Images per optimiser step, over all processes. The default above 224 px is 128 (T2T-ViT: 32)."""
    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(policy=FINETUNE_POLICY))


@dataclass(frozen=True)
class TrainConfig(MethodsConfig, LabelledConfig):
    """Settings of `vitling train`."""

    method: _Method = "auto"
    """Method of the first stage (`vitling list methods`). supervised: no first stage, train on labels only."""
    preset: Annotated[Literal["auto", "paper", "released"], show_as("{paper,released}", "(default: planned)")] = "auto"
    """Learning rate, warm-up and smoothing of the second stage and of IDMM's first: the paper's, or its code's. If you
    pass it, also its AdamW and its weight decay, which `train` replaces otherwise. Settings that you pass win."""
    epochs: Annotated[int, OPEN_NUMBER, show_as("INT", "(default: planned)")] = PLANNED
    """Passes over the labelled images."""
    batch: Annotated[int, OPEN_NUMBER, show_as("INT", "(default: planned)")] = PLANNED
    """Images per optimiser step, over all processes, in both stages."""
    pretrain_epochs: Annotated[int | None, AT_LEAST_1, show_as("INT")] = None
    """Passes over all images in the first stage. Default: planned."""
    pretrain_size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Side of a view in pixels in the first stage. Default: planned."""
    pretrain_preset: Annotated[_Preset, show_as("{paper,released,adamw}", "(default: planned)")] = "auto"
    """Preset of the first stage, like --preset of `vitling pretrain`."""
    on_collapse: Literal["stop", "warn"] = "stop"
    """Stop or warn if the features of the first stage collapse (docs/watching.md)."""
    final_size: Annotated[int | None, SIDE, show_as("INT")] = None
    """Then fine-tune at this size as well, keeping the head: 448 in the paper. --minutes does not include it."""
    pretrain_optim: OptimConfig = field(default_factory=OptimConfig)
    pretrain_views: ViewChanges = field(default_factory=ViewChanges)

    @property
    def second_preset(self) -> IDMMPreset:
        """Preset of the stage that learns the labels, also if it is the only one."""
        return default_idmm_preset(self.backbone or "") if self.preset == "auto" else self.preset

    @property
    def first_preset(self) -> MethodPreset:
        if self.pretrain_preset != "auto":
            return self.pretrain_preset
        if self.method == "idmm":
            return self.second_preset
        return default_preset(self.method, self.pretrain_optim.name)


@dataclass(frozen=True)
class ComparisonConfig(TrainConfig):
    """Settings of `vitling compare-methods`."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to compare. supervised trains on labels only: the baseline for pre-training."""
    baselines: tuple[str, ...] = ()
    """Other backbones to train on labels only, such as resnet50 convnext_tiny, as further baselines."""
    minutes: Annotated[float | None, MINUTES, show_as("MINUTES", "(default: 8)")] = 8.0
    """Minutes per method, compilation included."""
    val: Annotated[str | None, show_as("FRACTION")] = None
    """Fraction of the training images to evaluate on. Default: the data's own val split, else 0.2."""
    # no flags here: methods are compared with one seed and their own presets
    method: Annotated[_Method, tyro.conf.Suppress] = "auto"
    seeds: Annotated[int, tyro.conf.Suppress] = 1
    explain: Annotated[bool, tyro.conf.Suppress] = False
    pretrain_preset: Annotated[_Preset, tyro.conf.Suppress] = "auto"


Config = TypeVar("Config", bound=RunConfig)
