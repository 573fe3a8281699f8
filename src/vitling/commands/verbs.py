"""All commands, in the order of `vitling --help`."""

from __future__ import annotations

from collections.abc import Callable

from vitling.commands.compare import compare
from vitling.commands.compare_methods import compare_methods
from vitling.commands.demo import demo
from vitling.commands.detect import detect
from vitling.commands.doctor import doctor
from vitling.commands.embed import embed
from vitling.commands.evaluate import evaluate
from vitling.commands.explain import explain
from vitling.commands.export import export
from vitling.commands.finetune import finetune
from vitling.commands.inspect import inspect
from vitling.commands.list import list_
from vitling.commands.predict import predict
from vitling.commands.pretrain import pretrain
from vitling.commands.report import report
from vitling.commands.reproduce import reproduce
from vitling.commands.segment import segment
from vitling.commands.show_views import show_views
from vitling.commands.suite import suite
from vitling.commands.train import train

VERBS: dict[str, Callable[..., None]] = {
    verb.__name__.rstrip("_").replace("_", "-"): verb
    for verb in (
        demo,
        inspect,
        train,
        pretrain,
        finetune,
        detect,
        segment,
        compare_methods,
        compare,
        evaluate,
        doctor,
        suite,
        predict,
        embed,
        export,
        explain,
        show_views,
        report,
        reproduce,
        list_,
    )
}
