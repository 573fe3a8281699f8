"""Everything that a supervised run can be told. Plain data, no torch; the command line is made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.objectives.config import SupervisedConfig
from vitling.training.config import CheckpointConfig, LoopConfig, OptimConfig
from vitling.views.config import ViewsConfig


@dataclass
class TrainConfig:
    """Train a network on your images, from scratch.

    DATA is an image folder, a CSV, a Parquet file, a tar, an npz, torchvision:NAME?root=DIR or embedded:digits;
    or train=A,test=B where the parts lie in different places.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """Your images."""
    out: str = ""
    """Directory of the run. It must be new or empty, unless --resume or --overwrite is given."""
    backbone: str | None = None
    """Network; `vitling list backbones` shows the tested ones. By default pvt_v2_b0, or a micro ViT for tiny images."""
    size: int | None = None
    """Pixels of a view. By default 224, less for smaller images."""
    epochs: int = 100
    batch: int = 128
    """Images for each step of the optimiser, over all processes."""
    seed: int = 0
    val: str | None = None
    """none: train on everything; a fraction such as 0.2: hold that out. By default the data's own, else a tenth."""
    eval_every: int | None = None
    """Epochs between two looks at the validation split. By default about fifty looks a run."""
    store: Literal["auto", "device", "host", "stream"] = "auto"
    """Where decoded images live: GPU memory, host memory, or read from disk as needed."""
    store_size: int | None = None
    """Side of the decoded images (S). By default 12/7 of the view, but not more than the images have."""
    cache: bool = True
    """Keep decoded images on disk (VITLING_CACHE), so that the next start is immediate."""
    allow_bad: bool = False
    """Go on although more than 1 % of the files cannot be read."""
    resume: bool = False
    """Continue the run in --out exactly where its last checkpoint left it."""
    overwrite: bool = False
    """Delete the run in --out and start again."""
    data: DataConfig = field(default_factory=DataConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    objective: SupervisedConfig = field(default_factory=SupervisedConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


_OF_THE_CALL = ("out", "resume", "overwrite")  # they belong to one start, not to the run


def from_plain(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass out of what `asdict` and JSON made of it."""
    hints = get_type_hints(kind)
    return kind(**{f.name: _restore(hints[f.name], values[f.name]) for f in fields(kind) if f.name in values})


def _restore(hint: Any, value: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    return (
        tuple(value)
        if isinstance(value, list) and tuple in (hint, *map(get_origin, (hint, *get_args(hint))))
        else value
    )


def with_overrides(config: Any, overrides: dict[str, Any]) -> Any:
    """Sets fields by name; "optim.lr" reaches into a part. Unknown names are errors."""
    for name, value in overrides.items():
        owner, last = config, name
        while "." in last:
            first, last = last.split(".", 1)
            owner = getattr(owner, first, None)
        if not hasattr(owner, last):
            known = ", ".join(dotted for dotted, _ in leaves(config))
            raise UserError(f"There is no setting {name!r}. Settings: {known}.")
        object.__setattr__(owner, last, value)
    return config


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting."""
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value


def resumed(asked: TrainConfig, saved: TrainConfig) -> TrainConfig:
    """The saved settings, under which alone a resume is exact. Something else asked for now is an error."""
    before, default = dict(leaves(saved)), dict(leaves(TrainConfig()))
    for name, value in leaves(asked):
        if name in _OF_THE_CALL or value == default[name] or value == before[name]:
            continue
        raise UserError(
            f"--{_flag(name)} {value} was given, but this run was started with {before[name]}. --resume continues the "
            "same run; use a new --out for other settings."
        )
    saved.out, saved.resume, saved.overwrite = asked.out, True, False
    return saved


def _flag(name: str) -> str:
    return name.replace("_", "-")
