"""Short stages that the tests of several tasks train."""

from __future__ import annotations

from vitling.methods.supervised.settings import SupervisedConfig
from vitling.settings.config import FinetuneConfig, PretrainConfig
from vitling.training.config import LoopConfig

QUIET = LoopConfig(device="cpu", trackers=())
FIRST = PretrainConfig(
    backbone="vit_nano_patch4_32", size=8, epochs=3, batch=16, drop_path=0.0, loop=QUIET, watch_every=3
)
SECOND = FinetuneConfig(
    backbone="vit_nano_patch4_32",
    size=8,
    epochs=2,
    batch=16,
    val="none",
    objective=SupervisedConfig(drop_path=0.0),
    loop=QUIET,
)
