"""The tested backbones, and suggestions for unknown names. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitling.errors import UserError
from vitling.formatting import join_or

FAMILIES = ("vit_", "deit_", "swin_", "pvt_v2_", "resnet", "convnext")


@dataclass(frozen=True)
class Entry:
    """A backbone at its native size: `grid` tokens per side, each `dim` wide; `parameters` without a head."""

    name: str
    parameters: int
    grid: int
    dim: int
    size: int = 224
    architecture: str = ""  # timm's name or one of backbone.CUSTOM_MODELS; empty if it is `name`
    model_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network(self) -> str:
        return self.architecture or self.name


_T2T_7: dict[str, Any] = {"dim": 256, "depth": 7, "heads": 4, "mlp_ratio": 2.0}
_T2T_14: dict[str, Any] = {"dim": 384, "depth": 14, "heads": 6, "mlp_ratio": 3.0}
_PERFORMER: dict[str, Any] = {"tokens": "performer", "token_dropout": 0.1}  # always on in the authors' code
_TRANSFORMER: dict[str, Any] = {"tokens": "transformer", "token_dropout": 0.0}
_CVT: dict[str, Any] = {"dims": (64, 192, 384), "depths": (1, 2, 10), "heads": (1, 3, 6)}

_VIL_T: dict[str, Any] = {"dims": (96, 192, 384, 768), "depths": (2, 2, 6, 2), "chunk": 7}
_CVT_T: dict[str, Any] = {"dims": (64, 192, 384, 768), "depths": (2, 2, 6, 2), "heads": (1, 3, 6, 12), "window": 7}
_PVT_S: dict[str, Any] = {
    "dims": (64, 128, 320, 512),
    "depths": (3, 4, 6, 3),
    "heads": (1, 2, 5, 8),
    "mlp_ratios": (8, 8, 4, 4),
    "reductions": (8, 4, 2, 1),
}
_SWIN_T: dict[str, Any] = {
    "patch_size": 4,
    "window_size": 7,
    "embed_dim": 96,
    "depths": (2, 2, 6, 2),
    "num_heads": (3, 6, 12, 24),
}

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
    Entry("vit_base_patch16_224.drloc", 85_771_008, grid=14, dim=768, architecture="vit_drloc"),
    Entry("deit_tiny_patch16_224", 5_524_416, grid=14, dim=192),
    Entry("deit_small_patch16_224", 21_665_664, grid=14, dim=384),
    Entry("deit_base_patch16_224", 85_798_656, grid=14, dim=768),
    Entry("swin_tiny_patch4_window7_224", 27_519_354, grid=7, dim=768),
    Entry("swin_small_patch4_window7_224", 48_837_258, grid=7, dim=768),
    Entry("swin_base_patch4_window7_224", 86_743_224, grid=7, dim=1024),
    *(
        Entry(f"{name}.window14", parameters, grid=7, dim=dim, architecture=name, model_args={"window_size": 14})
        for name, parameters, dim in (
            ("swin_tiny_patch4_window7_224", 27_569_754, 768),
            ("swin_small_patch4_window7_224", 48_968_298, 768),
            ("swin_base_patch4_window7_224", 86_917_944, 1024),
        )
    ),
    Entry(
        "swin_tiny_patch4_window7_224.no_bias",
        27_496_032,
        grid=7,
        dim=768,
        architecture="swin_unbiased",
        model_args={"positions": "none", **_SWIN_T},
    ),
    Entry(
        "swin_tiny_patch4_window7_224.absolute",
        27_797_088,
        grid=7,
        dim=768,
        architecture="swin_unbiased",
        model_args={"positions": "absolute", **_SWIN_T},
    ),
    # IDMM's model of 0.8 M parameters (Fig. 3): B0 at half the width in every stage
    Entry(
        "pvt_v2_b0_small",
        870_320,
        grid=7,
        dim=128,
        architecture="pvt_v2_b0",
        model_args={"embed_dims": (16, 32, 80, 128)},
    ),
    Entry("pvt_v2_b0", 3_409_760, grid=7, dim=256),
    Entry("pvt_v2_b1", 13_496_000, grid=7, dim=512),
    Entry("pvt_v2_b2", 24_849_856, grid=7, dim=512),
    Entry("pvt_v2_b3", 44_725_696, grid=7, dim=512),
    # for runs of a few minutes; the last batch norm of each block starts at 1, as below
    Entry("resnet10t", 4_922_488, grid=7, dim=512, model_args={"zero_init_last": False}),
    Entry("resnet18", 11_176_512, grid=7, dim=512),
    Entry("resnet50", 23_508_032, grid=7, dim=2048),
    # the last batch norm of each block starts at 1 (timm: 0), as in torchvision, whose ResNet DRLoc and EsViT used
    Entry(
        "resnet50.torchvision",
        23_508_032,
        grid=7,
        dim=2048,
        architecture="resnet50",
        model_args={"zero_init_last": False},
    ),
    Entry("convnext_tiny", 27_820_128, grid=7, dim=768),
    # trained parameters only: papers also count T2T-ViT's fixed positions and random features
    Entry("t2t_vit_7", 3_998_694, grid=14, dim=256, architecture="t2t_vit", model_args=_T2T_7 | _PERFORMER),
    Entry("t2t_vit_14", 21_080_806, grid=14, dim=384, architecture="t2t_vit", model_args=_T2T_14 | _PERFORMER),
    Entry("t2t_vit_t_7", 3_998_310, grid=14, dim=256, architecture="t2t_vit", model_args=_T2T_7 | _TRANSFORMER),
    Entry("t2t_vit_t_14", 21_080_422, grid=14, dim=384, architecture="t2t_vit", model_args=_T2T_14 | _TRANSFORMER),
    # compute their sinusoids for each size; those above resize the positions of the size they were built for
    *(
        Entry(
            f"{name}.sinusoid",
            parameters,
            grid=14,
            dim=args["dim"],
            architecture="t2t_vit",
            model_args=args | _PERFORMER | {"positions": "recomputed"},
        )
        for name, parameters, args in (("t2t_vit_7", 3_998_694, _T2T_7), ("t2t_vit_14", 21_080_806, _T2T_14))
    ),
    Entry("cvt_13", 19_551_296, grid=14, dim=384, architecture="cvt", model_args={"form": "drloc", **_CVT}),
    Entry("cvt_13_official", 19_612_480, grid=14, dim=384, architecture="cvt", model_args={"form": "official", **_CVT}),
    # 4-stage networks of EsViT's Table 4; ViL-T has the heads of the released command, or those of Table 6
    Entry("cvt_tiny", 29_303_616, grid=7, dim=768, architecture="cvt4", model_args=_CVT_T),
    Entry("pvt_small", 23_972_864, grid=7, dim=512, architecture="pvt", model_args=_PVT_S),
    Entry(
        "vil_tiny",
        27_569_352,
        grid=7,
        dim=768,
        architecture="vil",
        model_args={"form": "released", "heads": (3, 6, 12, 24), **_VIL_T},
    ),
    Entry(
        "vil_tiny_paper",
        27_534_552,
        grid=7,
        dim=768,
        architecture="vil",
        model_args={"form": "paper", "heads": (3, 3, 6, 12), **_VIL_T},
    ),
)


def list_backbones() -> tuple[Entry, ...]:
    return _TESTED


def find_entry(name: str) -> Entry | None:
    return next((entry for entry in _TESTED if entry.name == name), None)


def get_native_size(name: str | None) -> int | None:
    """Return the native input size of a tested backbone in pixels, or None."""
    entry = find_entry(name or "")
    return entry.size if entry else None


def is_supported_family(name: str) -> bool:
    return name.startswith(FAMILIES)


def make_unknown_error(name: str, others: Iterable[str] = ()) -> UserError:
    """Make the error for an unknown name, with the most similar names, tested ones first."""
    own = [entry.name for entry in _TESTED]
    rest = sorted(set(others) - set(own))
    near = difflib.get_close_matches(name, own, n=3, cutoff=0.5)
    near += difflib.get_close_matches(name, rest, n=4 - len(near), cutoff=0.6)
    hint = f" Did you mean {join_or(near)}?" if near else ""
    return UserError(f"There is no backbone {name!r}.{hint} `vitling list backbones` shows the tested ones.")
