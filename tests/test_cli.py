"""The command line itself: commands, help, errors and exit codes."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch

import vitling
from tests.conftest import make_folder
from tests.made_runs import read, refused, train
from vitling.__main__ import main as entry_point
from vitling.cli import main, run
from vitling.console import is_main_process
from vitling.errors import INTERRUPTED, TERMINATED, Interrupted

FLAGS = {
    "demo": ["--out", "--epochs", "--pretrain-epochs", "--seed", "--resume", "--overwrite"],
    "inspect": ["DATA", "--out", "--data.channels", "--data.label-column"],
    "train": [
        *("DATA", "--out", "--backbone", "--epochs", "--val", "--resume", "--overwrite", "--store", "--optim.lr"),
        *("--aux", "--from", "--drloc.variant", "--drloc.weight", "--optim.schedule-epochs"),
    ],
    "pretrain": ["DATA", "--out", "--method", "--preset", "--on-collapse", "--idmm.smoothing"],
    "finetune": ["DATA", "--out", "--from", "--keep-head", "--preset", "--optim.lr"],
    "compare": ["RUN RUN", "--split", "--weights", "--out"],
    "compare-methods": ["DATA", "--out", "--methods", "--minutes", "--val"],
    "evaluate": [
        *("RUN", "DATA", "--split", "--weights", "--out", "--allow-bad", "--device", "--with", "--metric", "--val"),
        *("--seed", "--knn.k", "--linear.lr", "--linear.augment", "--logistic.backend", "--few-shot.shots"),
    ],
    "suite": ["RUN", "--data-root", "--with", "--table", "--only", "--out", "--weights", "--device"],
    "predict": ["RUN", "IMAGES", "--top", "--abstain", "--format", "--out", "--weights"],
    "embed": ["RUN", "IMAGES", "--out", "--weights", "--data.label-column"],
    "export": ["RUN", "--out", "--format", "--weights"],
    "explain": ["RUN", "IMAGE", "IMAGE2", "--out", "--query", "--grey", "--weights"],
    "reproduce": ["NAME", "--data", "--seeds", "--only", "--minutes", "--epochs", "--runs-out", "--out"],
    "list": ["backbones", "datasets", "tables", "methods"],
}


@pytest.mark.parametrize("verb", FLAGS)
def test_every_command_has_help(verb, capsys):
    assert run([verb, "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in FLAGS[verb])
    assert "None" not in shown or verb in (
        "train",
        "pretrain",
        "finetune",
        "compare-methods",
    )  # their nested settings have such defaults


def test_help_lists_the_verbs(capsys):
    for argv in ([], ["--help"], ["-h"], ["help"]):
        assert run(argv) == 0
        shown = capsys.readouterr().out
        assert all(f"\n  {verb} " in shown for verb in FLAGS)
        assert max(map(len, shown.splitlines())) <= 80


def test_help_imports_no_torch():
    code = (
        "import sys; from vitling.cli import run\n"
        f"for verb in {list(FLAGS)!r}: assert run([verb, '--help']) == 0\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("given", "cores", "expected"), [(None, 2, "2"), ("5", 2, "5"), (None, 64, None)])
def test_torch_gets_as_many_threads_as_the_container_has_cores(monkeypatch, given, cores, expected):
    monkeypatch.setattr("vitling.cli.count_cores", lambda: cores)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    run(["list", "methods"])
    assert os.environ.get("OMP_NUM_THREADS") == expected


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == vitling.__version__


def test_unknown_verbs(capsys):
    assert "Did you mean 'train'?" in refused(capsys, "trian")
    assert "vitling --help" in refused(capsys, "cook")


def test_unknown_flags_and_invalid_values(folder, tmp_path, capsys):
    start = ["train", folder, "--out", tmp_path / "run"]
    assert "--optim.lr " in refused(capsys, *start, "--optim.lrr", "1")
    assert "--epochs" in refused(capsys, *start, "--epochs", "many")
    assert "backbones" in refused(capsys, "list", "dishes")
    assert not (tmp_path / "run").exists()


WRONG = {  # flags after `vitling train FOLDER --out RUN`, and words of the message
    "backbone": (["--backbone", "vit_tinny_patch16_224"], ["vit_tiny_patch16_224", "vitling list backbones"]),
    "size": (["--size", "9", "--backbone", "vit_micro_patch4_32"], ["9 px", "8 px"]),
    "size 0": (["--size", "0"], ["--size"]),
    "val": (["--val", "1.5"], ["--val 1.5", "none", "0.2"]),
    "val word": (["--val", "some"], ["--val some"]),
    "folds": (["--data.folds", "3", "--data.fold", "3"], ["from 0"]),
    "device": (["--loop.device", "toaster"], ["toaster", "cpu"]),
    "tracker": (["--loop.trackers", "diary"], ["diary", "tensorboard"]),
    "epochs": (["--epochs", "0"], ["--epochs"]),
    "batch": (["--batch", "0"], ["--batch"]),
    "scale": (["--views.scale", "1", "0.5"], ["--views.scale"]),
    "flip": (["--views.flip", "2"], ["--views.flip"]),
    "parts": (["--views.mix-parts", "0"], ["--views.mix-parts", "at least 1"]),
    "parts before": (["--pretrain-views.mix-parts", "0"], ["--pretrain-views.mix-parts", "at least 1"]),
    "learning rate": (["--optim.lr", "-1"], ["--optim.lr"]),
    "betas": (["--optim.name", "sgd", "--optim.betas", "0.8", "0.9"], ["--optim.betas", "--optim.momentum"]),
    "momentum": (["--optim.name", "adamw", "--optim.momentum", "0.5"], ["--optim.momentum", "--optim.betas"]),
    "crop fraction": (["--views.crop-fraction", "0"], ["--views.crop-fraction"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_settings(folder, tmp_path, capsys, what):
    flags, words = WRONG[what]
    message = refused(capsys, "train", folder, "--out", tmp_path / "run", *flags)
    assert all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


NUMBERS = {  # command lines whose last number is out of range
    "minutes 0": ("train DATA --out RUN --minutes 0", "--minutes 0.0: must be above 0"),
    "minutes inf": ("train DATA --out RUN --minutes inf", "--minutes inf: must be a finite number, above 0"),
    "minutes nan": ("pretrain DATA --out RUN --minutes nan", "--minutes nan: must be a finite number, above 0"),
    "minutes 1e308": ("train DATA --out RUN --minutes 1e308", "--minutes 1e+308: must be above 0 and at most 1000000"),
    "crops": ("pretrain DATA --out RUN --method dino --dino.local-crops 101", "--dino.local-crops 101: must be"),
    "width": (f"pretrain DATA --out RUN --method simclr --simclr.dim {2**63 - 1}", "must be at least 1 and at most"),
    "study": ("reproduce esvit-t6 --minutes inf", "--minutes inf: must be a finite number, above 0"),
    "seed": ("finetune DATA --out RUN --seed -1", "--seed -1: must be at least 0 and at most 4294967295"),
    "seed, 33 bits": ("train DATA --out RUN --seed 4294967296", "--seed 4294967296: must be"),
    "demo": ("demo --out RUN --seed -1", "--seed -1: must be"),
    "evaluate": ("evaluate RUN DATA --size 0", "--size 0: must be at least 1"),
    "evaluate seed": ("evaluate RUN DATA --with knn --seed -1", "--seed -1: must be at least 0"),
    "evaluate nan": ("evaluate RUN DATA --with knn --knn.temperature nan", "--knn.temperature nan: must be"),
    "evaluate lr": ("evaluate RUN DATA --with linear --linear.lr 0.1 inf", "--linear.lr inf: must be"),
    "predict": ("predict RUN DATA --top 0", "--top 0: must be at least 1"),
    "predict nan": (
        "predict RUN DATA --abstain nan",
        "--abstain nan: must be a finite number, at least 0 and at most 1",
    ),
    "show-views": ("show-views DATA --out RUN --seed 18446744073709551616", "--seed 18446744073709551616: must be"),
    "show-views long seed": (f"show-views DATA --out RUN --seed {'9' * 400}", "must be at least 0"),
    "show-views size": ("show-views DATA --out RUN --size 100000", "--size 100000: must be at least 1"),
    "show-views draws": ("show-views DATA --out RUN --draws 1000000000000", "--draws 1000000000000: must be"),
    "explain": ("explain RUN DATA --seed -1", "--seed -1: must be"),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_out_of_range(folder, tmp_path, capsys, what):
    line, expected = NUMBERS[what]
    places = {"DATA": str(folder), "RUN": str(tmp_path / "run")}
    message = refused(capsys, *(places.get(word, word) for word in line.split()))
    assert expected in message
    assert message.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_a_mistyped_backbone_is_not_blamed_on_the_first_stage(folder, tmp_path, capsys):
    message = refused(capsys, "train", folder, "--out", tmp_path / "run", "--backbone", "pvt_v2_b00")
    assert "Did you mean pvt_v2_b0" in message
    assert "first stage" not in message


def test_an_interrupted_table_says_how_to_continue(monkeypatch, capsys):
    """The message of its run names --resume, which `reproduce` does not have."""

    def stop(*_: object) -> None:
        raise Interrupted("Stopped at step 1 of 2; continue with --resume.", INTERRUPTED)

    monkeypatch.setattr("vitling.papers.reproduce.reproduce", stop)
    assert run(["reproduce", "esvit-t6"]) == INTERRUPTED
    message = capsys.readouterr().err
    assert "Run the same command again" in message
    assert "--resume" not in message


@pytest.mark.parametrize(
    ("signal", "code"), [(Interrupted("Stopped.", TERMINATED), TERMINATED), (KeyboardInterrupt(), INTERRUPTED)]
)
def test_a_signal_that_torch_hides(signal, code, monkeypatch, capsys):
    """torch.save raises a RuntimeError of its own if a write is interrupted."""

    class File(io.BytesIO):
        def write(self, content):
            raise signal

    monkeypatch.setattr("vitling.cli._parse", lambda *_: partial(torch.save, {"features": torch.ones(9)}, File()))
    assert run(["suite"]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_missing_arguments(folder, tmp_path, capsys):
    assert "--out DIR" in refused(capsys, "train", folder)
    assert "No images given" in refused(capsys, "train", "--out", tmp_path / "run")


def no_such_path(root):
    make_folder(root / "images")
    return root / "imagse", ["does not exist", "images"]


def no_images(root):
    (root / "empty").mkdir()
    return root / "empty", ["no images", "Pass the folder"]


def one_class(root):
    return make_folder(root / "one", classes=1, each=20), ["train of one has images of one class only", "class-0"]


def csv_without_columns(root):
    (root / "list.csv").write_text("file,kind\na.png,cat\n")
    return root / "list.csv", ["path", "file, kind", "--data.path-column"]


def csv_without_labels(root):
    make_folder(root / "images")
    rows = [f"{p.relative_to(root)},x" for p in sorted(root.rglob("*.png"))]
    (root / "list.csv").write_text("\n".join(["path,kind", *rows]))
    return root / "list.csv", ["label"]


def labels_missing_in_train(root):
    source = make_folder(root / "images", classes=2, split="train")
    make_folder(source, classes=3, each=2, split="test", first=50)
    return source, ["test has classes that train does not have", "class-2"]


def only_a_test_split(root):
    return make_folder(root / "images", split="test"), ["train"]


def an_image(root):
    return next(make_folder(root / "images").rglob("*.png")), ["folder of images", ".csv"]


@pytest.mark.parametrize(
    "make",
    [
        no_such_path,
        no_images,
        one_class,
        csv_without_columns,
        csv_without_labels,
        labels_missing_in_train,
        only_a_test_split,
        an_image,
    ],
    ids=lambda make: make.__name__,
)
def test_wrong_data(tmp_path, capsys, make):
    source, words = make(tmp_path)
    message = refused(capsys, "train", source, "--out", tmp_path / "run")
    assert all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


def test_an_out_that_is_a_file(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(capsys, "train", folder, "--out", tmp_path / "file", "--overwrite")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_is_one_line_even_if_a_name_has_two(tmp_path, capsys):
    message = refused(capsys, "train", tmp_path / "no\nError: forged", "--out", tmp_path / "run")
    assert message.strip().count("\n") == 0
    assert "no\\nError: forged" in message


def test_an_interruption_while_modules_are_imported_is_one_line(monkeypatch, capsys):
    def interrupt(name, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "vitling.cli", None)
    monkeypatch.setattr("builtins.__import__", interrupt)
    with pytest.raises(SystemExit) as leave:
        entry_point()
    monkeypatch.undo()
    assert leave.value.code == INTERRUPTED
    assert capsys.readouterr().err == "Error: Interrupted.\n"


@pytest.mark.parametrize(("rank", "main"), [("", True), ("0", True), ("1", False), ("abc", True), ("1.5", True)])
def test_a_rank_that_is_no_number_counts_as_the_first(rank, main, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    assert is_main_process() is main


def test_libraries_write_only_to_the_cache(folder, tmp_path):
    """torch, matplotlib and onnxruntime would write to the home directory and the temporary one."""
    assert train(folder, tmp_path / "run") == 0
    places = {"HOME": "home", "TMPDIR": "tmp", "VITLING_CACHE": "cache"}
    for name in places.values():
        (tmp_path / name).mkdir()
    kept = {key: value for key, value in os.environ.items() if key not in ("TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")}
    kept |= {variable: str(tmp_path / name) for variable, name in places.items()}
    out = str(tmp_path / "model.onnx")
    for words in (["report", str(tmp_path / "run")], ["export", str(tmp_path / "run"), "--out", out]):
        subprocess.run([sys.executable, "-m", "vitling", *words], env=kept, check=True, capture_output=True)
    assert not [*(tmp_path / "home").rglob("*"), *(tmp_path / "tmp").rglob("*")]


def test_a_current_directory_that_was_deleted(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "The current directory no longer exists" in refused(capsys, "inspect", tmp_path)


def test_a_link_to_itself_is_named(tmp_path, capsys, monkeypatch):
    def resolve():
        raise RuntimeError("Symlink loop from 'loop'")  # by Path.resolve, up to Python 3.12

    monkeypatch.setattr("vitling.cli._parse", lambda verb, argv: partial(resolve))
    assert "Symlink loop from 'loop'." in refused(capsys, "list", "methods")


def test_list_backbones_fits_a_terminal(capsys):
    assert run(["list", "backbones"]) == 0
    shown = capsys.readouterr().out
    assert "swin_tiny_patch4_window7_224" in shown
    assert "27,519,354" in shown
    assert "pvt_v2_b0_small" in shown
    assert "870,320" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_inspect_prints_and_writes_its_findings(tmp_path, capsys):
    source = make_folder(tmp_path / "images", split="train")
    make_folder(source, each=3, split="test", first=50)
    shutil.copy(source / "train/class-1/image-03.png", source / "test/class-1/again.png")
    (source / "train/class-2/cut.png").write_bytes((source / "train/class-2/image-00.png").read_bytes()[:300])
    assert run(["inspect", str(source), "--out", str(tmp_path / "found.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "cut.png: truncated" in shown
    assert "again.png = train" in shown
    found = read(tmp_path / "found.json")
    assert {split: part["images"] for split, part in found["splits"].items()} == {"train": 31, "test": 10}
    assert found["splits"]["test"]["classes"] == {"class-0": 3, "class-1": 4, "class-2": 3}
    assert [leak["key"] for leak in found["leakage"]] == ["test/class-1/again.png"]
    assert found["bad"][0]["reason"] == "truncated"


def test_inspect_fails_early(folder, capsys):
    assert "does not exist" in refused(capsys, "inspect", "no/such/folder", "--out", "/tmp/x.json")
    assert "cannot be written" in refused(capsys, "inspect", folder, "--out", "/proc/nowhere/x.json")


@pytest.mark.parametrize("problem", [PermissionError(13, "Permission denied", "/data/x"), OSError("odd")])
def test_a_system_error_is_one_line(folder, tmp_path, capsys, monkeypatch, problem):
    def fail(*arguments, **named):
        raise problem

    monkeypatch.setattr("vitling.data.inspection.inspect", fail)
    message = refused(capsys, "inspect", folder, "--out", tmp_path / "x.json")
    assert message.startswith("Error: ")
    assert (problem.strerror or "odd") in message
    assert (problem.filename or "") in message


def test_an_empty_out_is_refused(capsys):
    assert "--out is empty" in refused(capsys, "export", "RUN", "--out", "")


def test_a_full_disk_ends_a_thread_without_a_traceback(monkeypatch, capsys):
    """As it ends TensorBoard's; other errors are printed."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    with pytest.raises(SystemExit):
        main(["--version"])

    def fail(problem):
        raise problem

    for problem in (OSError(errno.ENOSPC, "No space left on device"), ValueError("something else")):
        thread = threading.Thread(target=fail, args=(problem,))
        thread.start()
        thread.join()
    shown = capsys.readouterr().err
    assert "No space left" not in shown
    assert "ValueError: something else" in shown


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["list", "methods"]])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "vitling", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 3
    assert ended.stderr == "Error: The disk is full. Free some space.\n"


@pytest.mark.parametrize(
    ("closed", "code"), [("predict nowhere x.png >&-", 2), ("nothing 2>&-", 2), ("list methods >&-", 0)]
)
def test_closed_streams_are_no_error(closed, code):
    ended = subprocess.run(f"{sys.executable} -m vitling {closed}", shell=True, capture_output=True, text=True)
    assert ended.returncode == code
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


def test_an_argument_too_many_is_named_without_control_characters(capsys):
    message = refused(capsys, "doctor", "runs/pre", "--out", "d", "\x1b[31mX")
    assert "\x1b" not in message
    assert "[31mX is one argument too many. `vitling doctor --help`" in message
