"""Atomic writes, scratch folders and claims, with kills, links and devices in the way."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from vitling.errors import UserError
from vitling.files import (
    LOCK,
    append_line,
    atomic_write,
    check_writable,
    claim_folder,
    is_claimed,
    is_leftover,
    list_names,
    remove_leftovers,
    scratch_folder,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start(code: str, *arguments: object) -> subprocess.Popen:
    """Start Python code in another process and wait until it prints a line."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


WRITE = """
import sys
from vitling.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_a_killed_write_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b"old")
    writer = start(WRITE, path)
    with atomic_write(path) as file:  # a second writer does not disturb the first
        file.write(b"mine")
    assert len(names(tmp_path)) == 2
    kill(writer)
    assert path.read_bytes() == b"mine"
    (left,) = [name for name in names(tmp_path) if is_leftover(name)]
    other = tmp_path / left.replace("file.json", "file2.json")
    other.write_bytes(b"of another file")
    write_json(path, {})
    assert names(tmp_path) == [other.name, "file.json"]
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["file.json"]


@pytest.mark.timeout(20)
def test_a_pipe_named_like_a_leftover_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".report.html.abcdefgh.part")
    remove_leftovers(tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(TypeError), atomic_write(tmp_path / "a") as file:
        file.write("text")
    with pytest.raises(TypeError), scratch_folder(tmp_path / "b") as folder:
        (folder / "x").write_bytes("text")
    assert names(tmp_path) == []


SCRATCH = """
import sys
from vitling.files import scratch_folder
with scratch_folder(sys.argv[1]) as folder:
    (folder / "part").write_text("x")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_scratch_folders_of_killed_processes_are_removed(tmp_path):
    writer = start(SCRATCH, tmp_path / "out")
    with scratch_folder(tmp_path / "out") as own:
        assert len(names(tmp_path)) == 2
    kill(writer)
    assert len(names(tmp_path)) == 1
    with scratch_folder(tmp_path / "out") as own:
        assert names(tmp_path) == [own.name]
    assert names(tmp_path) == []


def test_a_scratch_folder_that_a_failing_disk_kept_is_removed_by_the_next_call(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, scratch_folder(tmp_path / "out"):
        patch.setattr(os, "rmdir", fail)
    assert len(names(tmp_path)) == 1
    with scratch_folder(tmp_path / "out") as own:
        assert names(tmp_path) == [own.name]
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["mkdtemp", "mkstemp"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_another_process_that_cleans_up_meanwhile_does_no_harm(tmp_path, monkeypatch, name, moment):
    """It may delete the new folder before the temporary file is in it, or that file before it is locked."""
    make, calls, path = getattr(tempfile, name), [], tmp_path / "new" / "out"

    def make_disturbed(**named: Any) -> Any:
        calls.append(named)
        if len(calls) == 1 and moment == "before":
            path.parent.rmdir()
        made = make(**named)
        if len(calls) == 1 and moment == "after":
            start("import sys; from vitling.files import remove_leftovers; remove_leftovers(sys.argv[1])", path.parent)
        return made

    monkeypatch.setattr(tempfile, name, make_disturbed)
    with scratch_folder(path) if name == "mkdtemp" else atomic_write(path) as made:
        (made / "x").write_text("x") if name == "mkdtemp" else made.write(b"x")
    assert len(calls) == 2
    assert path.exists() == (name == "mkstemp")


def test_a_folder_that_its_last_user_deletes_is_made_again_for_the_next(tmp_path, monkeypatch):
    folder, before = tmp_path / "run", os.open

    def open_disturbed(path: Any, *others: Any, **named: Any) -> int:
        monkeypatch.setattr(os, "open", before)
        folder.rmdir()
        return before(path, *others, **named)

    monkeypatch.setattr(os, "open", open_disturbed)
    release = claim_folder(folder)
    assert names(folder) == [LOCK]
    release()


def test_links_devices_and_pipes_are_never_replaced(tmp_path):
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (("link", "link"), ("dangling", "link"), ("pipe", "pipe"), (os.devnull, "device")):
        for write in (check_writable, lambda path: write_json(path, {}), lambda path: append_line(path, "x")):
            with pytest.raises(UserError, match=f"is a {kind}"):
                write(tmp_path / path)
    assert (tmp_path / "target").read_text() == "kept"
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["dangling", "link", "pipe", "target"]


CLAIM = """
import sys
from vitling.files import claim_folder
claim_folder(sys.argv[1])
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["a.jpg", "b.WEBP", "c.tiff"])
def test_text_is_not_written_over_images(tmp_path, name):
    with pytest.raises(UserError, match="is the name of an image"):
        check_writable(tmp_path / name)
    check_writable(tmp_path / name, is_picture=True)
    check_writable(tmp_path / "a.jpg.csv")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_or_failing_disk_is_no_wrong_input(tmp_path, monkeypatch, number):
    def fail(**named: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        check_writable(tmp_path / "out.json")


def test_a_claimed_folder_names_its_process_and_host(tmp_path):
    holder = start(CLAIM, tmp_path)
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on {socket.gethostname()}"):
        claim_folder(tmp_path)
    assert is_claimed(tmp_path)
    kill(holder)
    assert not is_claimed(tmp_path)
    assert names(tmp_path) == [LOCK]  # a dead process blocks nobody
    release = claim_folder(tmp_path)
    claim_folder(tmp_path)()  # re-entrant, and only the first one releases
    assert names(tmp_path) == [LOCK]
    assert is_claimed(tmp_path)
    release()
    release()
    assert names(tmp_path) == []
    assert not is_claimed(tmp_path)


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "lines.txt"
    append_line(path, "one")
    path.write_text(path.read_text() + "tw")
    append_line(path, "three \udcff")
    assert path.read_text() == "one\ntw\nthree \\udcff\n"


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "victim").write_text("kept")
    (tmp_path / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"\.lock is a link"):
        claim_folder(tmp_path)
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.parametrize("name", ["x" * 255, "\u00e9" * 127 + "x"])
def test_the_longest_names_can_be_written(name, tmp_path):
    path = tmp_path / name
    for content in (b"first", b"second"):
        with atomic_write(path) as file:
            file.write(content)
            assert list_names(tmp_path) == ([name] if content == b"second" else [])
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]
