"""`vitling report --watch`: a running training, in headless Chromium."""

from __future__ import annotations

import http.client
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import make_folder
from tests.made_runs import TINY, make_run_folder, refused
from vitling.files import claim_folder
from vitling.runs.watch import describe_progress, make_server

CONFIG = '{"verb": "train", "epochs": 10, "batch": 8}'


def make_run(folder: Path, *epochs: int) -> Path:
    """Write the files of a run that has trained these epochs, of two steps each."""
    (make_run_folder(folder) / "config.json").write_text(CONFIG)
    lines = [
        f'{{"kind": "epoch", "epoch": {e}, "step": {2 * e}, "loss": {1 / e}, "images_per_second": 4}}' for e in epochs
    ]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    with make_server(str(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def request(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_known_paths_are_answered_and_only_to_get(tmp_path):
    folder = make_run(tmp_path / "run", 1)
    (folder / "secret.txt").write_text("x")
    with serving(folder) as port:
        assert [request(port, path) for path in ("/", "/data.json")] == [200, 200]
        for path in ("/secret.txt", "/config.json", "/../run/config.json", "/report.html", "/%2e%2e/x"):
            assert request(port, path) == 404
        assert {request(port, "/", method) for method in ("POST", "PUT", "DELETE", "HEAD")} == {501}
        assert request(port, "/", Host="evil.example") == 403
        assert request(port, "/", Host=f"localhost:{port}") == 200
        (folder / "report.html").write_text("done")
        assert request(port, "/report.html") == 200


def test_other_addresses_are_refused(tmp_path):
    """127.0.0.2 is this computer too; a server on all addresses would answer there."""
    with serving(make_run(tmp_path / "run")) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "epoch", "epoch": 0, "step": 2}',
        '{"kind": "epoch", "epoch": 1, "step": 0}',
        '{"kind": "epoch", "epoch": 1, "step": 2, "images_per_second": 1e-308}',
        '{"kind": "epoch", "epoch": []}',
    ],
)
def test_damaged_metrics_end_no_request(tmp_path, line, capfd):
    folder = make_run(tmp_path / "run", 1)
    (folder / "metrics.jsonl").write_text(line + "\n")
    with serving(folder) as port:
        assert request(port, "/data.json") in (200, 404)
        assert request(port, "/") == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_changed_length_is_shown(tmp_path):
    folder = make_run(tmp_path / "run", 1, 2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "length", "epoch": 2, "step": 4, "epochs": 40}\n')
    found = describe_progress(folder)
    assert "Epoch 2 of 40." in found["state"]
    assert "left in this stage, at 4 images/s" in found["state"]
    assert found["progress"] == pytest.approx(2 / 40)


def test_progress_of_the_stages(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    release = claim_folder(run)
    assert describe_progress(run)["state"] == "Starting."
    make_run(run / "pretrain", 1, 2)
    found = describe_progress(run)
    assert found["state"] == "First stage: epoch 2 of 10. About 32 s left in this stage, at 4 images/s."
    assert found["progress"] == 0.2
    assert [chart["title"] for chart in found["charts"].values()] == ["First stage: training loss"]
    (run / "pretrain" / "result.json").write_text("{}")
    make_run(run, 1, 2, 3, 4, 5)
    found = describe_progress(run)
    assert (found["state"].split(".")[0], found["progress"]) == ("Second stage: epoch 5 of 10", 0.5)
    release()
    assert describe_progress(run)["state"].startswith("Not running. Epoch 5 of 10.")
    (run / "result.json").write_text("{}")
    assert (describe_progress(run)["state"], describe_progress(run)["progress"]) == ("Finished.", 1)


def test_what_is_not_a_run_is_refused(tmp_path, capsys):
    assert "is not a run" in refused(capsys, "report", "--watch", tmp_path)
    assert "one run" in refused(capsys, "report", "--watch", tmp_path, tmp_path)


def test_page_follows_a_training_until_its_end(browser, tmp_path):
    images, out = make_folder(tmp_path / "images"), tmp_path / "run"
    flags = [*TINY, "--epochs", "60", "--val", "none", "--loop.log-every", "1", "--no-cache"]
    command = [sys.executable, "-m", "vitling"]
    training = subprocess.Popen([*command, "train", str(images), "--out", str(out), *flags], stderr=subprocess.DEVNULL)
    try:
        while not (out / "metrics.jsonl").exists():
            assert training.poll() is None
            time.sleep(0.05)
        watching = subprocess.Popen(
            [*command, "report", "--watch", str(out)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        line = watching.stdout.readline()
        page, problems = browser.new_page(), []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(line.split()[3])
        page.wait_for_selector("html[data-ready]")
        points = "vitling.data.charts['curve-training-loss'].spec.data.values.length"
        first = page.evaluate(points)
        assert first > 0
        training.wait()
        for _ in range(200):
            if page.locator(".state").text_content() == "Finished.":
                break
            page.wait_for_timeout(100)
        assert page.locator(".state").text_content() == "Finished."
        assert page.evaluate(points) == 60 > first
        assert page.locator("figure[data-chart] svg.marks").count() == 2
        assert not problems
        page.close()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    finally:
        training.kill()


@pytest.mark.parametrize(
    "text", [b"GET /x HTTP/1.1\r\n\r\n", b"G", b"GET /data.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
)
def test_a_dropped_connection_prints_nothing(tmp_path, capfd, text):
    linger = struct.pack("ii", 1, 0)  # closing sends a reset instead of an orderly end
    with serving(make_run(tmp_path / "run", 1)) as port:
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(text)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
        assert request(port, "/", Host=f"127.0.0.1:{port}") == 200
    assert capfd.readouterr().err == ""
