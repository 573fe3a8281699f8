"""--explain, and mistakes that are found before anything is trained or deleted."""

from __future__ import annotations

import pytest

from tests.conftest import make_folder
from tests.made_runs import PRETRAIN_TINY, TINY, lines, pretrain, read, refused, train
from vitling.cli import run
from vitling.errors import UserError
from vitling.runs import network
from vitling.training import loop


@pytest.fixture
def folder_with_test(tmp_path):
    make_folder(tmp_path / "images", each=6, split="train")
    return make_folder(tmp_path / "images", each=2, split="test", first=50)


def test_explain_prints_value_origin_and_reason_and_trains_nothing(folder, tmp_path, capsys):
    words = ["train", str(folder), "--out", str(tmp_path / "run"), "--epochs", "7", "--loop.device", "cpu", "--explain"]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "First stage" in shown
    assert "Second stage" in shown
    assert any("--pretrain-epochs" in line and "plan" in line for line in shown.splitlines())
    for setting, origin in (("--epochs", "explicit"), ("--backbone", "plan"), ("--optim.clip", "method")):
        assert any(setting in line and origin in line for line in shown.splitlines()), setting
    assert "--simclr." not in shown  # another method's
    assert not (tmp_path / "run").exists()


def test_explain_breaks_no_flag_in_a_narrow_terminal(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["train", str(folder), "--out", str(tmp_path / "run"), "--loop.device", "cpu", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    words = shown.split()
    for flag in ("--pretrain-optim.final-weight-decay", "--checkpoint.every-seconds", "--data.label-separator"):
        assert flag in words, flag


def test_explain_shows_what_is_saved_of_a_run(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "run", "--idmm.smoothing", "0.2") == 0
    capsys.readouterr()
    assert run(["pretrain", "--out", str(tmp_path / "run"), "--resume", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert any("--idmm.smoothing " in line and "0.2" in line and "explicit" in line for line in shown.splitlines())
    assert read(tmp_path / "run" / "config.json")["origins"]["idmm.smoothing"][0] == "explicit"


@pytest.mark.parametrize("verb", ["train", "pretrain", "finetune"])
def test_explain_refuses_what_training_refuses(folder, tmp_path, capsys, verb):
    assert "No images" in refused(capsys, verb, "--explain")
    assert "no run to resume" in refused(capsys, verb, "--resume", "--out", tmp_path / "none", "--explain")
    if verb == "finetune":
        assert "--from" in refused(capsys, verb, folder, "--explain")
        return
    small = ["--backbone", "vit_micro_patch4_32", "--loop.device", "cpu", "--explain"]
    assert "33 px" in refused(capsys, verb, folder, *small, "--size", "33")
    assert "nosuch" in refused(capsys, verb, folder, *small, "--from", "nosuch.pt", "--method", "idmm")


def test_a_wrong_final_size_is_found_before_training(folder, tmp_path, capsys):
    words = ["train", folder, "--out", tmp_path / "run", *TINY, "--final-size", "33"]
    assert "--final-size 33" in refused(capsys, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["supervised", "idmm"])
def test_a_final_size_is_checked_with_all_that_depends_on_it(folder, tmp_path, capsys, monkeypatch, method):
    """The size is planned, and a network of that size is made only for the stage that comes last."""
    monkeypatch.setattr(loop, "fit", lambda *_, **__: pytest.fail("nothing may be trained"))
    words = ["train", folder, "--out", tmp_path / "run", "--method", method, "--loop.device", "cpu", "--epochs", "1"]
    assert "is not larger than --size" in refused(
        capsys, *words, "--final-size", "4", "--backbone", "vit_micro_patch4_32"
    )
    original = network.build_backbone

    def fail_if_large(config, drop_path, **how):
        if config.size == 64:
            raise UserError("too large")
        return original(config, drop_path)

    monkeypatch.setattr(network, "build_backbone", fail_if_large)
    assert "--final-size 64: too large" in refused(capsys, *words, *TINY, "--method", method, "--final-size", "64")
    assert not (tmp_path / "run").exists()


def test_a_final_size_below_the_size_is_refused(folder, tmp_path, capsys):
    words = ["train", folder, "--out", tmp_path / "run", *TINY, "--final-size", "4"]
    assert "--final-size 4 is not larger than --size 8" in refused(capsys, *words)


def test_overwrite_deletes_nothing_if_the_first_stage_cannot_work(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run") == 0
    before = (tmp_path / "run" / "result.json").read_bytes()
    esvit = ["--method", "esvit", "--esvit.region-from", "5", "--pretrain-epochs", "1", "--esvit.hidden", "32"]
    words = ["train", folder, "--out", tmp_path / "run", *TINY, *esvit, "--overwrite"]
    assert "never" in refused(capsys, *words)
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_a_run_is_resumed_by_its_own_verb_only(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "run") == 0
    words = ["train", folder, "--out", tmp_path / "run", "--resume"]
    assert "a run of vitling pretrain" in refused(capsys, *words)


def test_an_interrupted_large_stage_opens_the_test_split_once(folder_with_test, tmp_path, monkeypatch):
    from vitling.errors import Interrupted

    def interrupted(*_):
        raise Interrupted("stopped", 143)

    with monkeypatch.context() as patch:
        patch.setattr("vitling.runs.train.finetune_in", interrupted)
        assert train(folder_with_test, tmp_path / "run", "--final-size", "16") == 143
    assert not (tmp_path / "run" / "result.json").exists()
    assert run(["train", "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert len(lines(tmp_path / "run" / "test-openings.jsonl")) == 1
    assert "large" in read(tmp_path / "run" / "result.json")["stages"]
    assert not (tmp_path / "run" / "evaluated.json").exists()


def test_resume_does_not_need_the_run_it_continued_from(folder, tmp_path):
    first = tmp_path / "first"
    assert pretrain(folder, first) == 0
    words = ["pretrain", str(folder), "--out", str(tmp_path / "second"), *PRETRAIN_TINY, "--continue-from", str(first)]
    assert run([*words, "--epochs", "4"]) == 0
    first.rename(tmp_path / "elsewhere")
    (tmp_path / "second" / "result.json").unlink()
    assert run(["pretrain", "--out", str(tmp_path / "second"), "--resume"]) == 0
