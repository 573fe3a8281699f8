"""A helper process of `vitling reproduce --at-once`: python -m vitling.papers.helper STUDY SETTINGS (JSON)."""

from __future__ import annotations

import json
import os
import signal
import sys

from vitling.errors import ABORTED, DONE, Interrupted
from vitling.papers.datasets import register_readers
from vitling.papers.reproduce import reproduce
from vitling.papers.studies import find_study
from vitling.training.signals import call_on_parent_exit


def end_with_parent() -> None:
    """Save and stop when the process that started this one ends."""
    call_on_parent_exit(lambda: os.kill(os.getpid(), signal.SIGTERM))


def main() -> None:
    end_with_parent()
    register_readers()
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    try:
        result = reproduce(find_study(name), **settings | {"only": tuple(settings["only"])})
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    sys.exit(ABORTED if result.failed else DONE)


if __name__ == "__main__":
    main()
