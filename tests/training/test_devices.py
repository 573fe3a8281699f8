"""The device that --device and --loop.device name."""

from __future__ import annotations

import pytest
import torch

from vitling.errors import UserError
from vitling.training.processes import choose_device


@pytest.mark.parametrize("name", ["vulkan", "meta", "xla", "privateuseone", "tpu", "", "cuda:x"])
def test_other_devices_are_refused(name):
    with pytest.raises(UserError, match="is not a device"):
        choose_device(name)


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_gpu_that_is_not_there_is_named(name, monkeypatch):
    module = torch.cuda if name == "cuda" else torch.backends.mps
    monkeypatch.setattr(module, "is_available", lambda: False)
    with pytest.raises(UserError, match="Use cpu"):
        choose_device(name)
    assert choose_device("cpu").type == "cpu"
