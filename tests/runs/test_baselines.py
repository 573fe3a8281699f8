"""`vitling train --baselines`: alternatives beside a run, on the same images."""

from __future__ import annotations

from tests.conftest import make_folder
from tests.made_runs import read, refused
from vitling.cli import run
from vitling.runs.baselines import _make_request
from vitling.settings.config import TrainConfig

TINY = [
    *("--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", "--val", "0.3"),
    *("--method", "idmm", "--pretrain-epochs", "2", "--epochs", "2"),
    *("--loop.device", "cpu", "--loop.trackers", "none"),
]


def test_baselines_are_trained_and_shown_beside_the_run(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", str(make_folder(tmp_path / "images")), "--out", str(out), *TINY]
    assert run([*command, "--baselines", "random"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name}: accuracy" in shown for name in ("this run", "random"))
    found, result = read(out / "baselines" / "random" / "result.json"), read(out / "result.json")
    assert found["backbone"] == result["backbone"]
    assert found["data_hashes"] == result["data_hashes"]
    config = read(out / "baselines" / "random" / "config.json")
    assert (config["method"], config["pretrain_epochs"]) == ("supervised", None)
    assert config["epochs"] <= 2  # as many as fit into the time of the run
    page = (out / "report.html").read_text()
    assert page.index("<h3>run</h3>") < page.index("<h3>run/baselines/random</h3>")
    assert '"scores"' in page
    assert run(["report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    assert "run/baselines/random" in (tmp_path / "again.html").read_text()


def test_unknown_baselines_are_refused_before_training(tmp_path, capsys):
    folder, out = make_folder(tmp_path / "images"), tmp_path / "run"
    assert "resnett" in refused(capsys, "train", folder, "--out", out, *TINY, "--baselines", "resnett")
    assert "--seeds" in refused(capsys, "train", folder, "--out", out, *TINY, "--baselines", "random", "--seeds", "2")
    assert "needs DATA" in refused(capsys, "train", "--out", out, "--resume", "--baselines", "random")
    assert not out.exists()


def test_a_random_start_has_the_time_of_the_run_and_no_other_weights(tmp_path):
    config = TrainConfig(source="x", out=str(tmp_path), from_="runs/other", minutes=None, pretrain_epochs=9, epochs=5)
    request = _make_request(config, "random", "vit_tiny", 2.5)
    assert (request.from_, request.minutes, request.pretrain_epochs, request.epochs) == (None, 2.5, None, 5)
    assert request.backbone == "vit_tiny"
    assert "backbone" in request.explicit
    assert "resume" not in request.explicit
    assert _make_request(config, "resnet50", "vit_tiny", 2.5).backbone == "resnet50"
