"""The views of a stage. Imports no torch."""

from __future__ import annotations

from vitling.methods import METHODS
from vitling.settings.config import LabelledConfig, PretrainConfig, RunConfig
from vitling.views.plan import Plan


def make_views(config: RunConfig, size: int) -> Plan:
    """Return the views of a stage at this size, with the user's changes."""
    if isinstance(config, PretrainConfig):
        method = METHODS[config.method]
        return config.views.apply(method.views(method.config_of(config), size))
    assert isinstance(config, LabelledConfig)
    return config.views.plan(size)


def list_unused_changes(config: PretrainConfig, size: int) -> list[str]:
    """List the user's changes that the method's views have no place for."""
    method = METHODS[config.method]
    return config.views.list_unused(method.views(method.config_of(config), size))


def has_colours(config: RunConfig) -> bool:
    """Return whether colour augmentation applies: to grey and RGB images."""
    return config.data.channels in (1, 3)
