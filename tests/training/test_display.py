"""Progress of a run: in place on a terminal, at most a line in ten seconds elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from vitling.console import LINE_INTERVAL, Log, brief_output
from vitling.training.display import Display


def test_a_long_epoch_prints_lines(capsys):
    with Display(Log(), 100, 0) as display:
        display.step(1)
        assert capsys.readouterr().err == ""
        display.last_output -= LINE_INTERVAL
        display.step(7)
        display.step(8)
        assert capsys.readouterr().err.startswith("step 7 of 100  left 0:0")
        display.metrics(9, "epoch 1/10", last=False)
        assert capsys.readouterr().err == ""  # ten seconds have not passed
        display.last_output -= LINE_INTERVAL
        display.metrics(10, "epoch 2/10", last=False)
        display.step(11)
        assert capsys.readouterr().err.startswith("epoch 2/10  left")
        display.metrics(100, "epoch 10/10", last=True)
        assert capsys.readouterr().err.startswith("epoch 10/10  left")


def test_at_most_one_line_in_ten_seconds(capsys, monkeypatch):
    """Steps and epochs of half a second each for two minutes: twelve lines and the last."""
    now = 0.0
    monkeypatch.setattr("vitling.training.display.time.monotonic", lambda: now)
    with Display(Log(), 240, 0) as display:
        for step in range(1, 241):
            now += 0.5
            display.step(step)
            display.metrics(step, f"epoch {step}/240", last=step == 240)
    assert len(capsys.readouterr().err.splitlines()) in (12, 13)


def test_brief_output_shows_progress_and_warnings_only(tmp_path, capsys):
    with brief_output():
        log = Log(tmp_path / "log.txt")
    log.info("detail")
    log.warning("look here")
    with Display(log, 10, 0) as display:
        display.metrics(10, "epoch 1/1", last=True)
    assert capsys.readouterr().err == "Warning: look here\n"
    assert "detail" in (tmp_path / "log.txt").read_text()
    Log().info("afterwards")
    assert "afterwards" in capsys.readouterr().err


def test_a_terminal_is_updated_in_place():
    """200 updates leave no lines behind: each erases the one before."""
    code = (
        "from vitling.console import Log\nfrom vitling.training.display import Display\n"
        "with Display(Log(), 200, 0) as display:\n"
        "    for i in range(1, 201):\n"
        "        display.step(i)\n        display.metrics(i, f'epoch {i}/200', last=i == 200)\n"
        "        display.progress.refresh()\n"
        "print('end')"
    )
    main, other = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdout=other, stderr=other) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the terminal is closed
                break
            if not part:
                break
            shown += part
    os.close(main)
    assert process.returncode == 0
    assert shown.count(b"epoch ") > 50
    lines, up = shown.count(b"\n"), sum(int(n or 1) for n in re.findall(rb"\x1b\[(\d*)A", shown))
    assert lines - up <= 3  # what stays is at most the last state and "end"
