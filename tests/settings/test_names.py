"""Names of settings as flags."""

from __future__ import annotations

import pytest

from vitling.settings.config import TrainConfig
from vitling.settings.names import format_flag, leaves, settings_in


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("from_", "runs/a", "--from runs/a"),
        ("cache", False, "--no-cache"),
        ("views.colour", False, "--views.no-colour"),
        ("idmm.multi_crop", True, "--idmm.multi-crop"),
        ("optim.lr", 0.00012345678, "--optim.lr 0.00012346"),
        ("optim.betas", (0.9, 0.95), "--optim.betas 0.9 0.95"),
    ],
)
def test_a_setting_is_written_as_it_is_typed(name, value, flag):
    assert format_flag(name, value) == flag


@pytest.mark.parametrize("value", [True, False])
def test_flags_name_their_settings(value):
    for name, _ in leaves(TrainConfig()):
        assert settings_in([format_flag(name, value)]) == (name.rstrip("_"),)
