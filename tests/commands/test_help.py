"""`--help` on one screen, docs/flags.md, and messages for mistyped flags and values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages.flags import make_page
from tests.made_runs import refused
from vitling.cli import run
from vitling.commands.flag_docs import list_flags
from vitling.commands.short_help import SHORT
from vitling.commands.verbs import VERBS

SCREEN = 45  # lines


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_on_one_screen(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 100
    assert (f"vitling {verb} --help-all" in lines[-1]) == (verb in SHORT)


def test_train_shows_the_twenty_flags_that_matter():
    names = " ".join(SHORT["train"].values()).split()
    assert 18 <= len(names) <= 24


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_those_that_tyro_parses(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run([verb, "--help-all"]) == 0
    shown = capsys.readouterr().out
    parsed = re.findall(r"^[│ ]{1,6}(--[a-z][\w.-]*)", shown, re.MULTILINE)
    flags = list_flags(VERBS[verb])
    assert {flag.name for flag in flags if flag.name.startswith("--")} == {*parsed} - {"--help"}
    text = "".join(re.sub(r"[│─╭╮╰╯]", "", shown).split())
    for flag in flags:
        assert "".join(flag.help.split()) in text, flag
        if flag.values == 1:
            assert "".join(flag.default.replace("'", "").split()) in text.replace("'", ""), flag


def test_the_page_of_flags_is_current():
    page = Path(__file__).parents[2] / "docs" / "flags.md"
    assert page.read_text(encoding="utf-8") == make_page(), "run `make flags`"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--method", "idm"], ["--method idm", "choose from auto, idmm", "Did you mean idmm"]),
        (["--method=esvitt"], ["Did you mean esvit?"]),
        (["--aux", "drlok"], ["choose from none, drloc. Did you mean drloc?"]),
        (["--epochs", "many"], ["--epochs many: must be a whole number"]),
        (["--epochs", "2.5"], ["--epochs 2.5: must be a whole number"]),
        (["--minutes", "ten"], ["--minutes ten: must be a number"]),
        (["--epohcs", "3"], ["no flag --epohcs", "Did you mean --epochs"]),
        (["--clip", "3"], ["--optim.clip"]),
        (["--plan"], ["no flag --plan", "Use --explain"]),
        (["--batch-size", "8"], ["Use --batch."]),
        (["--no-such"], ["no flag --no-such"]),
    ],
)
def test_mistyped_flags_and_values(folder, tmp_path, capsys, flags, words):
    message = refused(capsys, "train", folder, "--out", tmp_path / "run", *flags)
    assert all(word in message for word in words), message
    assert message.count("\n") <= 1


def test_values_are_those_of_the_flag_before(folder, tmp_path, capsys):
    """A word after a complete flag is a positional argument."""
    assert "lineer" in refused(capsys, "evaluate", tmp_path, folder, "--with", "knn", "lineer")
    assert "does not exist" in refused(capsys, "train", "--epochs", "1", tmp_path / "none", "--out", tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "predict",
            "Missing: RUN, IMAGES. Type `vitling predict RUN IMAGES ...`; `vitling predict --help` explains them.",
        ),
        ("predict --top 3 runs/a", "Missing: IMAGES. Type `vitling predict RUN"),
        ("predict runs/a --top 3", "Missing: IMAGES."),
        ("predict --abstain 0.5 runs/a --abstain 0.6", "Missing: IMAGES."),
        ("predict --abstain 0.5 runs/a --abstain 0.6 x.png", "runs/a does not exist"),
        ("evaluate runs/a --with knn logistic", "Missing: DATA."),
        ("export", "Missing: RUN, --out. Type `vitling export RUN --out PATH`"),
        ("export --out= runs/a", "--out is empty"),
        ("train d --out", "--out DIR: the value is missing."),
        ("train data", "--out"),
        ("export --out=a runs/a --onnx", "There is no flag --onnx. Use --format."),
        ("list", "Type `vitling list {methods,"),
    ],
)
def test_missing_arguments_are_named(words, message, capsys):
    assert message in refused(capsys, *words.split())
