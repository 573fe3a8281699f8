"""Names of settings as flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitling.commands.flag_docs import list_flags
from vitling.commands.verbs import VERBS
from vitling.settings.config import TrainConfig
from vitling.settings.listing import list_settings
from vitling.settings.names import format_flag, leaves, settings_in, to_flags
from vitling.settings.resolve import Resolved


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("from_", "runs/a", "--from runs/a"),
        ("cache", False, "--no-cache"),
        ("views.colour", False, "--views.no-colour"),
        ("loop.deterministic", True, "--loop.deterministic"),
        ("optim.lr", 0.00012345678, "--optim.lr 0.00012346"),
        ("optim.betas", (0.9, 0.95), "--optim.betas 0.9 0.95"),
    ],
)
def test_a_setting_is_written_as_it_is_typed(name, value, flag):
    assert format_flag(name, value) == flag


def test_switches_are_written_as_flags_that_exist():
    known = {flag.name for flag in list_flags(VERBS["train"])}
    switches = [(name, value) for name, value in leaves(TrainConfig()) if isinstance(value, bool)]
    assert switches
    for name, default in switches:
        flag = format_flag(name, not default)
        assert flag in known
        assert settings_in([flag]) == (name.rstrip("_"),)


def test_settings_are_listed_under_the_flag_that_changes_them():
    config = replace(TrainConfig(source="x", out="y"), cache=False)
    rows = {row.flag: row.value for row in list_settings(Resolved(config, {}))}
    assert rows["no-cache"] == "on"
    assert rows["allow-bad"] == "off"
    assert "cache" not in rows
    assert to_flags(replace(config, explicit=("cache", "allow_bad", "cache")), ()) == "--no-cache"
