"""The picture of views, and the commands show-views and list."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from vitling.cli import run
from vitling.methods import METHODS
from vitling.views.plan import Plan
from vitling.views.policies import POLICY_OF_METHOD, make_plan
from vitling.views.sheet import CELL, GAP, HEAD, draw_sheet

STEP = CELL + GAP


def cell(picture: np.ndarray, row: int, column: int) -> np.ndarray:
    top, left = HEAD + STEP * row, GAP + STEP * column
    return picture[top : top + CELL, left : left + CELL]


def draw_picture(folder, tmp_path, **settings) -> np.ndarray:
    path = draw_sheet(str(folder), out=str(tmp_path / "views.png"), images=3, draws=5, **settings)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_originals_are_beside_their_views(folder, tmp_path):
    picture = draw_picture(folder, tmp_path, policy="simclr", size=32)
    assert picture.shape == (HEAD + STEP * 3 + GAP, STEP * 6 + GAP, 3)
    original = np.asarray(Image.open(folder / "class-0" / "image-00.png").resize((CELL, round(CELL * 16 / 20)))).astype(
        int
    )
    shown = cell(picture, 0, 0)
    height = original.shape[0]
    top = (CELL - height) // 2
    assert np.abs(shown[top : top + height] - original).mean() < 12
    assert (shown[: top - 1] == 255).all()  # the image keeps its shape within the cell
    columns = [cell(picture, 0, c) for c in range(1, 6)]
    assert all(np.abs(a - b).mean() > 3 for a, b in pairwise(columns))


def test_local_views_are_shown_in_proportion(folder, tmp_path):
    picture = draw_picture(folder, tmp_path, policy="dino")
    local, side = cell(picture, 0, 3), CELL * 96 // 224
    margin = (CELL - side) // 2
    assert (local[: margin - 1] == 255).all()
    assert (local[margin : margin + side, margin : margin + side] != 255).any()


def test_all_views_of_a_policy_are_shown(folder, tmp_path):
    path = draw_sheet(str(folder), "dino", str(tmp_path / "views.png"), images=1)
    assert Image.open(path).width == STEP * (1 + 2 + 8) + GAP  # the image, two global views and eight local ones


def test_boxes_are_drawn_on_the_original_only(folder, tmp_path):
    plain, boxed = (draw_picture(folder, tmp_path, policy="byol", size=32, boxes=b) for b in (False, True))
    assert (cell(plain, 0, 0) != cell(boxed, 0, 0)).any()
    assert (plain[:, STEP:] == boxed[:, STEP:]).all()


def test_same_seed_same_picture(folder, tmp_path):
    one, again, other = (draw_picture(folder, tmp_path, size=32, seed=seed) for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).any()


def test_show_views(folder, tmp_path, capsys):
    out = tmp_path / "made" / "views.png"
    assert run(["show-views", str(folder), "--policy", "moco-v2", "--size", "32", "--out", str(out)]) == 0
    assert out.exists()
    assert run(["show-views", str(folder), "--policy", "nothing", "--out", str(out)]) == 2
    assert "idmm-pretrain" in capsys.readouterr().err
    assert run(["show-views", str(folder), "--out", str(tmp_path / "views.txt")]) == 2
    for flag in ("--draws", "--images"):
        assert run(["show-views", str(folder), flag, "0", "--out", str(out)]) == 2
        assert f"{flag} 0: must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["backbones", "policies"])
def test_list(what, capsys):
    assert run(["list", what]) == 0
    expected = {"backbones": "swin_tiny_patch4_window7_224", "policies": "idmm-finetune"}
    assert expected[what] in capsys.readouterr().out


def test_error_names_the_policy_of_a_method(folder, tmp_path, capsys):
    for name, message in (("esvit", "The views of esvit are dino."), ("dinoo", "Did you mean dino?")):
        assert run(["show-views", str(folder), "--policy", name, "--out", str(tmp_path / "x.png")]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("method", ["idmm", "supcon", "esvit", "densecl"])
def test_policy_of_a_method_equals_its_views(method):
    own = METHODS[method].views(METHODS[method].config(), 224)
    shown = Plan(tuple(replace(group, return_boxes=False) for group in own.groups))
    assert shown == make_plan(POLICY_OF_METHOD[method], 224)


def test_planned_views_are_drawn_for_each_stage(folder, tmp_path, capsys):
    out = tmp_path / "views.png"
    assert run(["show-views", str(folder), "--out", str(out), "--images", "1"]) == 0
    shown = capsys.readouterr().out
    paths = [tmp_path / "views-pretrain.png", out]
    assert all(str(path) in shown for path in paths)
    assert Image.open(paths[0]).width > STEP * 8


def test_show_views_of_four_channels(folder, tmp_path):
    out = tmp_path / "views.png"
    flags = ["--policy", "eval", "--size", "16", "--data.channels", "4", "--out", str(out)]
    assert run(["show-views", str(folder), *flags]) == 0
