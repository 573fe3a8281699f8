"""Networks that a file describes. The description is checked before timm sees it and before memory is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
import torch

from vitling.backbones.backbone import CUSTOM_MODELS, Backbone, build
from vitling.backbones.names import is_supported_family, list_backbones
from vitling.errors import UserError, summarise_error

# what `backbone.create` passes; others could load files or replace parts of a network
ARGUMENTS = frozenset(key for entry in list_backbones() for key in entry.model_args) | {
    *("in_chans", "drop_path_rate", "img_size", "strict_img_size")
}
NUMBERS = ("in_chans", "drop_path_rate", "img_size")  # arguments that are one number
MAX_NUMBER = 65_536  # of an argument: widths, sizes
MAX_DEPTH = 512  # blocks in all


def build_saved(
    name: str, architecture: str, model_args: Mapping[str, Any], size: int, shapes: Mapping[str, tuple[int, ...]]
) -> Backbone:
    """Build the network of a saved model whose tensors have these shapes; raise UserError if it cannot be that."""
    _check_description(architecture, model_args)
    with torch.device("meta"):  # without memory
        outline = _try_build(name, architecture, model_args, size)
    expected = {key: tuple(value.shape) for key, value in outline.timm_model.state_dict().items()}
    for key in [*expected, *shapes]:
        if expected.get(key) != shapes.get(key):
            wanted, found = (f"{list(s[key])}" if key in s else "nothing" for s in (expected, shapes))
            raise UserError(f"The weights do not fit {architecture}: {key} is {found}, expected {wanted}.")
    return _try_build(name, architecture, model_args, size)


def _check_description(architecture: str, model_args: Mapping[str, Any]) -> None:
    known = architecture in CUSTOM_MODELS or (is_supported_family(architecture) and timm.is_model(architecture))
    if not known:
        raise UserError(f"The network {architecture!r} is not one that vitling builds (`vitling list backbones`).")
    if unknown := sorted(set(model_args) - ARGUMENTS):
        raise UserError(f"The network has the argument {unknown[0]!r}, which vitling does not pass.")
    if "in_chans" not in model_args:
        raise UserError("The network's number of channels is missing: expected an argument in_chans.")
    for key, value in model_args.items():
        if key in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(f"The network's {key} is {value!r}; expected a number.")
        numbers = [n for n in (value if isinstance(value, list | tuple) else [value]) if not isinstance(n, str | None)]
        if any(not 0 <= n <= MAX_NUMBER for n in numbers):  # NaN too
            raise UserError(f"The network's {key} is {value}; expected numbers from 0 to {MAX_NUMBER:,}.")
        if key in ("depth", "depths") and sum(numbers) > MAX_DEPTH:
            raise UserError(f"The network's {key} is {value}; expected at most {MAX_DEPTH} blocks.")


def _try_build(name: str, architecture: str, model_args: Mapping[str, Any], size: int) -> Backbone:
    try:
        return build(name, architecture, dict(model_args), size)
    except UserError:
        raise
    except Exception as error:  # timm checks its arguments by assertions, or fails on them
        raise UserError(f"{architecture} cannot be built with {dict(model_args)}: {summarise_error(error)}.") from error
