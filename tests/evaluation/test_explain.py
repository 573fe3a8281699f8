from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.made_runs import refused
from vitling.cli import run

DRAWN = {"correspondence.png", "attention-masks.png", "attention-maps.png", "entropy.png"}


@pytest.fixture
def image(pictures):
    return str(pictures / "0.png")


@pytest.mark.parametrize("classes", [("cat", "dog"), ()])
def test_image_and_its_mirrored_view(make_bundle, tmp_path, image, capsys, classes):
    make_bundle(tmp_path / "m", classes=classes, task="single" if classes else "none")
    assert run(["explain", str(tmp_path / "m"), image, "--out", str(tmp_path / "out")]) == 0
    assert "of the regions are matched correctly" in capsys.readouterr().out
    for name in DRAWN:
        assert Image.open(tmp_path / "out" / name).width >= 400
        assert (tmp_path / "out" / name).stat().st_size < 500_000
    found = json.loads((tmp_path / "out" / "explained.json").read_text())
    assert len(found["correspondence"]["first"]) == 10
    assert 0 <= found["correspondence"]["accuracy"] <= 1
    assert len(found["attention"]["entropy_bits"]) == 4
    assert 0 <= found["attention"]["redundant"] < 4


def test_weights_that_overflow_are_named(make_bundle, tmp_path, image, capsys):
    make_bundle(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    save_file({name: torch.full_like(value, 3e38) for name, value in weights.items()}, tmp_path / "m/model.safetensors")
    assert run(["explain", str(tmp_path / "m"), image, "--out", str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_control_characters_of_a_name_do_not_reach_the_terminal(bundle, tmp_path, image, capfd):
    odd = Path(image).rename(tmp_path / "\x1b[31mred$x.png")
    assert run(["explain", str(bundle), str(odd), "--out", str(tmp_path / "out")]) == 0
    shown = capfd.readouterr()
    assert "\x1b" not in shown.out + shown.err


def test_two_images_and_an_explicit_query(make_bundle, tmp_path, pictures):
    make_bundle(tmp_path / "m", "swin_tiny_patch4_window7_224", size=64, channels=1)
    names = [str(pictures / "0.png"), str(pictures / "1.png")]
    assert run(["explain", str(tmp_path / "m"), *names, "--query", "1,0", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "explained.json").read_text())
    assert "accuracy" not in found["correspondence"]
    assert found["attention"]["query"] == [1, 0]
    assert found["images"] == names


def test_folder_is_measured(bundle, tmp_path, pictures, capsys):
    assert run(["explain", str(bundle), str(pictures), "--grey", "released", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "6 images" in shown
    assert "(95 %: " in shown
    found = json.loads((tmp_path / "out" / "explained.json").read_text())
    assert found["correspondence"]["grey"] == "released"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["explained.json"]


def test_network_without_attention_is_reported(make_bundle, tmp_path, image, capsys):
    make_bundle(tmp_path / "m", "resnet18", size=64)
    assert run(["explain", str(tmp_path / "m"), image, "--out", str(tmp_path / "out")]) == 0
    assert "no attention to show" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["correspondence.png", "explained.json"]
    found = json.loads((tmp_path / "out" / "explained.json").read_text())
    assert "accuracy" in found["correspondence"]
    assert "no attention to show" in found["no_attention"]


def test_unreadable_images_are_named(bundle, tmp_path, image, capsys):
    (tmp_path / "mixed").mkdir()
    Image.open(image).save(tmp_path / "mixed" / "good.png")
    (tmp_path / "mixed" / "broken.png").write_bytes(b"no image")
    assert run(["explain", str(bundle), str(tmp_path / "mixed"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "Mirrored view of 1 image:" in shown
    assert "broken.png" in shown.partition("Skipped: ")[2]
    found = json.loads((tmp_path / "out" / "explained.json").read_text())["correspondence"]
    assert (found["images"], len(found["unread"])) == (1, 1)


def test_earlier_pictures_are_deleted(bundle, tmp_path, pictures, image, capsys):
    out = tmp_path / "out"
    assert run(["explain", str(bundle), image, "--out", str(out)]) == 0
    (out / "mine.txt").write_text("kept")
    assert run(["explain", str(bundle), str(pictures), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["explained.json", "mine.txt"]


def test_wrong_input_is_named(bundle, tmp_path, pictures, image, capsys):
    out = ["--out", str(tmp_path / "out" / "deeper")]
    assert "3,5" in refused(capsys, "explain", str(bundle), image, "--query", "left", *out)
    assert "no images at" in refused(capsys, "explain", str(bundle), str(tmp_path / "none.png"), *out)
    assert "Give one folder" in refused(capsys, "explain", str(bundle), str(pictures), image, *out)
    broken = Path(tmp_path / "broken.png")
    broken.write_bytes(b"no image")
    assert "cannot be read" in refused(capsys, "explain", str(bundle), str(broken), *out)
    assert not (tmp_path / "out").exists()
    assert "8 x 8 regions" in refused(capsys, "explain", str(bundle), image, "--query", "8,0", *out)
    made = sorted(path.name for path in (tmp_path / "out" / "deeper").iterdir())
    assert made == ["correspondence.png", "explained.json"]
    beneath = ["--out", image + "/out"]
    assert "cannot be written" in refused(capsys, "explain", str(bundle), image, *beneath)
