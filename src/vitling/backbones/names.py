"""The backbones that are tested, and what to say about a name that is not among them. No torch here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitling.errors import UserError

FAMILIES = ("vit_", "deit_", "swin_", "pvt_v2_", "resnet")


@dataclass(frozen=True)
class Entry:
    """A backbone at its native size: `grid` tokens a side, each `dim` wide; parameters without a head."""

    name: str
    parameters: int
    grid: int
    dim: int
    size: int = 224
    architecture: str = ""  # timm's name; empty when it is `name`
    model_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timm_name(self) -> str:
        return self.architecture or self.name


_TESTED = (
    Entry(
        "vit_nano_patch4_32",
        207_424,
        grid=8,
        dim=64,
        size=32,
        architecture="vit_tiny_patch16_224",
        model_args={"patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 2},
    ),
    Entry(
        "vit_micro_patch4_32",
        1_204_608,
        grid=8,
        dim=128,
        size=32,
        architecture="vit_tiny_patch16_224",
        model_args={"patch_size": 4, "embed_dim": 128, "depth": 6, "num_heads": 4},
    ),
    Entry("vit_tiny_patch16_224", 5_524_416, grid=14, dim=192),
    Entry("vit_small_patch16_224", 21_665_664, grid=14, dim=384),
    Entry("vit_base_patch16_224", 85_798_656, grid=14, dim=768),
    Entry("deit_tiny_patch16_224", 5_524_416, grid=14, dim=192),
    Entry("deit_small_patch16_224", 21_665_664, grid=14, dim=384),
    Entry("deit_base_patch16_224", 85_798_656, grid=14, dim=768),
    Entry("swin_tiny_patch4_window7_224", 27_519_354, grid=7, dim=768),
    Entry("swin_small_patch4_window7_224", 48_837_258, grid=7, dim=768),
    Entry("swin_base_patch4_window7_224", 86_743_224, grid=7, dim=1024),
    Entry("pvt_v2_b0", 3_409_760, grid=7, dim=256),
    Entry("pvt_v2_b1", 13_496_000, grid=7, dim=512),
    Entry("pvt_v2_b2", 24_849_856, grid=7, dim=512),
    Entry("pvt_v2_b3", 44_725_696, grid=7, dim=512),
    Entry("resnet18", 11_176_512, grid=7, dim=512),
    Entry("resnet50", 23_508_032, grid=7, dim=2048),
)


def table() -> tuple[Entry, ...]:
    return _TESTED


def tested(name: str) -> Entry | None:
    return next((entry for entry in _TESTED if entry.name == name), None)


def of_a_known_family(name: str) -> bool:
    return name.startswith(FAMILIES)


def unknown(name: str, others: Iterable[str] = ()) -> UserError:
    """The error for a name that nobody knows, with the nearest that exist: tested ones first."""
    own = [entry.name for entry in _TESTED]
    rest = sorted(set(others) - set(own))
    near = difflib.get_close_matches(name, own, n=3, cutoff=0.5)
    near += difflib.get_close_matches(name, rest, n=4 - len(near), cutoff=0.6)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Nothing has a name like it."
    return UserError(f"There is no backbone {name!r}. {hint} `vitling list backbones` shows the tested ones.")
