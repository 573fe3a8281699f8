"""The start of a command, which --minutes counts from."""

from __future__ import annotations

import time

from vitling import startup


def test_first_run_of_a_command_counts_from_its_start():
    startup.mark_start()
    first, now = startup.take_start(), time.monotonic()
    assert first <= now
    assert startup.take_start() >= now  # later runs of the same command


def test_programs_count_from_the_call():
    assert startup.take_start() <= time.monotonic()


def test_unknown_start(monkeypatch):
    monkeypatch.setattr(startup, "Path", lambda path: (_ for _ in ()).throw(OSError(path)))
    assert startup._measure_age() == 0
