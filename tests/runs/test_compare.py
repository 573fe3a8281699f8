"""`vitling compare` and `--seeds`: which run is better, and whether the difference may be chance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import make_folder
from tests.made_runs import TINY, make_run_folder, read, refused, train, write_run
from vitling.cli import run
from vitling.commands.results import run_training
from vitling.errors import Interrupted, UserError
from vitling.evaluation.intervals import format_interval, wilson_interval
from vitling.evaluation.predictions import make_predictions, save_predictions
from vitling.files import write_json
from vitling.runs.compare import compare
from vitling.runs.group import resumes_group, train_seeds
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.training.rundir import RunDirectory

IMAGES = 400


def draw_correct(seed, accuracy):
    return np.random.default_rng(seed).random(IMAGES) < accuracy


def test_a_clear_difference_and_one_that_may_be_chance(tmp_path):
    good, alike, bad = (write_run(tmp_path / str(i), draw_correct(i, s)) for i, s in enumerate((0.9, 0.89, 0.5)))
    result = compare((bad, good, alike))
    assert [row["run"] for row in result["runs"]][-1] == bad
    close, clear = result["differences"]
    assert "cannot tell" in close["in_words"]
    assert close["mcnemar_p"] > 0.05
    assert "is better than" in clear["in_words"]
    assert clear["mcnemar_p"] < 1e-6
    assert clear["interval"][0] < clear["difference"] < clear["interval"][1]
    assert "--seeds 3" in clear["in_words"]


def test_few_disagreements_are_not_a_difference(tmp_path):
    """Five of 200: the interval is above 0, McNemar's exact test has p = 0.0625."""
    right = np.ones(200, bool)
    one, other = write_run(tmp_path / "one", right), write_run(tmp_path / "two", right & (np.arange(200) >= 5))
    found = compare((one, other))["differences"][0]
    assert found["interval"][0] > 0
    assert found["mcnemar_p"] == pytest.approx(0.0625)
    assert not found["told_apart"]
    assert "cannot tell" in found["in_words"]


def test_images_of_a_group_count_as_one(tmp_path):
    groups, labels, names = np.arange(60) // 10, np.arange(60) % 3, [str(i) for i in range(60)]
    for name, wrong in (("one", groups < 0), ("two", groups == 2)):
        logits = np.eye(3)[np.where(wrong, (labels + 1) % 3, labels)]
        save_predictions(
            make_run_folder(tmp_path / name), {"last/test": make_predictions(logits, labels, names, groups)}
        )
    found = compare((str(tmp_path / "one"), str(tmp_path / "two")))["differences"][0]
    assert found["difference"] == pytest.approx(1 / 6)
    assert not found["told_apart"]
    assert "mcnemar_p" not in found


def test_rare_labels(tmp_path):
    random = np.random.default_rng(0)
    labels = np.zeros((60, 3), bool)
    labels[:2, 0] = True
    for name, noise in (("sharp", 0.1), ("blurred", 2.0)):
        scores = labels + noise * random.normal(size=labels.shape)
        made = make_predictions(scores, labels, [str(i) for i in range(60)])
        save_predictions(make_run_folder(tmp_path / name), {"last/test": made})
    found = compare((str(tmp_path / "blurred"), str(tmp_path / "sharp")))["differences"][0]
    assert found["better"].endswith("sharp")
    assert found["interval"][0] < found["difference"] <= found["interval"][1] <= 1


def test_images_are_matched_by_name(tmp_path):
    """In another order, and with one image that the other run does not have."""
    right = draw_correct(0, 0.7)
    names = [f"{i}.png" for i in range(IMAGES)]
    order = np.random.default_rng(1).permutation(IMAGES)[:-1]
    one = write_run(tmp_path / "one", right)
    other = write_run(tmp_path / "two", right[order], [names[i] for i in order], labels=(np.arange(IMAGES) % 3)[order])
    result = compare((one, other))
    assert result["images"] == IMAGES - 1
    assert result["differences"][0]["difference"] == 0


def test_multi_label_runs(tmp_path):
    random = np.random.default_rng(0)
    labels = random.random((100, 4)) < 0.3
    for name, noise in (("sharp", 0.3), ("blurred", 3.0)):
        scores = labels + noise * random.normal(size=labels.shape)
        made = make_predictions(scores, labels, [str(i) for i in range(100)])
        save_predictions(make_run_folder(tmp_path / name), {"last/test": made})
    result = compare((str(tmp_path / "blurred"), str(tmp_path / "sharp")))
    assert result["metric"] == "mean_average_precision"
    assert result["runs"][0]["run"].endswith("sharp")
    assert "is better" in result["differences"][0]["in_words"]


def test_runs_that_cannot_be_compared_are_refused(tmp_path, capsys):
    one, other = (
        write_run(tmp_path / "a", draw_correct(0, 0.5)),
        write_run(tmp_path / "b", draw_correct(0, 0.5), split="last/val"),
    )
    elsewhere = write_run(tmp_path / "c", draw_correct(0, 0.5), [f"other{i}" for i in range(IMAGES)])
    relabelled = write_run(tmp_path / "d", draw_correct(0, 0.5), labels=np.zeros(IMAGES, dtype=int))
    assert "two runs" in refused(capsys, "compare", one)
    assert "named twice" in refused(capsys, "compare", one, f"{one}/")
    write_json(tmp_path / "seeds.json", {"seeds": [0]})
    write_run(tmp_path / "seed0", draw_correct(0, 0.5))
    assert "folder of seeds" in refused(capsys, "compare", tmp_path, tmp_path / "seed0")
    (tmp_path / "seeds.json").unlink()
    assert "last/val" in refused(capsys, "compare", one, other)
    assert "in common" in refused(capsys, "compare", one, elsewhere)
    assert "classes are not the same" in refused(capsys, "compare", one, relabelled)
    assert "not a run" in refused(capsys, "compare", one, tmp_path)


def test_overwrite_deletes_the_predictions_of_the_earlier_run(tmp_path, capsys):
    one, other = write_run(tmp_path / "one", draw_correct(0, 0.5)), write_run(tmp_path / "two", draw_correct(1, 0.5))
    write_json(Path(one) / "config.json", {"checkpoint": {}, "loop": {}})
    RunDirectory(one).prepare(resume=False, overwrite=True)  # and the run stops before it is evaluated
    make_run_folder(Path(one))
    assert "no answers.npz" in refused(capsys, "compare", one, other)


def test_seeds_side_by_side(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", each=12)
    assert train(folder, tmp_path / "three", "--seeds", "3", "--seed", "5", "--val", "0.5") == 0
    shown = capsys.readouterr().out
    assert "std" in shown
    found = read(tmp_path / "three" / "seeds.json")
    assert found["seeds"] == [5, 6, 7]
    values = [read(tmp_path / "three" / f"seed{s}" / "result.json")["last"]["val"]["top1"] for s in found["seeds"]]
    assert found["scores"]["last val top1"]["values"] == values
    assert found["scores"]["last val top1"]["mean"] == pytest.approx(np.mean(values))
    assert found["scores"]["last val top1"]["images"] == 18
    assert found["scores"]["last val top1"]["interval"] == pytest.approx(wilson_interval(np.mean(values), 18))
    assert "interval" not in found["scores"]["last val mean_per_class"]
    assert format_interval(np.mean(values), 18) in shown
    held = {(tmp_path / "three" / f"seed{s}" / "log.txt").read_text().count("seed 5.") for s in found["seeds"]}
    assert held == {1}  # the same images are held out
    assert train(folder, tmp_path / "one", "--seed", "5", "--val", "0.5") == 0
    capsys.readouterr()
    assert run(["compare", str(tmp_path / "three"), str(tmp_path / "one"), "--out", str(tmp_path / "c.json")]) == 0
    assert "McNemar" not in capsys.readouterr().out
    assert [len(row["values"]) for row in read(tmp_path / "c.json")["runs"]] in ([3, 1], [1, 3])


def test_seeds_end_with_one_report(monkeypatch):
    written: list[str] = []
    monkeypatch.setattr("vitling.runs.report.report_group", written.append)
    monkeypatch.setattr("vitling.runs.group.train_seeds", lambda config, train: {"scores": {}})
    for report in (True, False):
        run_training(TrainConfig(source="images", out="runs/x", seeds=2, report=report), dict, print)
    assert written == ["runs/x"]


def test_warns_of_seeds_with_different_methods(tmp_path, capsys):
    """Each run skips the first stage if the time is too short for it."""
    methods = iter(["idmm", "idmm", "supervised"])

    def trained(config):
        return {"seed": config.seed, "method": next(methods), "last": {"test": {"top1": 0.5, "n": 10}}}

    train_seeds(TrainConfig(source="images", out=str(tmp_path), seeds=2), trained)
    assert "Pass --" not in capsys.readouterr().err
    methods = iter(["idmm", "supervised"])
    train_seeds(TrainConfig(source="images", out=str(tmp_path), seeds=2, resume=True), trained)
    assert "different methods: idmm and supervised. Pass --method" in capsys.readouterr().err


def test_warns_of_seeds_with_different_test_sizes(tmp_path, capsys):
    sizes = iter([288, 288, 224])

    def trained(config):
        return {"seed": config.seed, "size": 224, "evaluated_at": next(sizes), "last": {"test": {"top1": 0.5, "n": 10}}}

    train_seeds(TrainConfig(source="images", out=str(tmp_path), seeds=2), trained)
    assert "Pass --" not in capsys.readouterr().err
    sizes = iter([288, 224])
    train_seeds(TrainConfig(source="images", out=str(tmp_path), seeds=2, resume=True), trained)
    assert "evaluated at 224 and 288 px. Pass --test-size" in capsys.readouterr().err


def test_seeds_resume(tmp_path):
    folder = make_folder(tmp_path / "images", each=6)
    assert train(folder, tmp_path / "two", "--seeds", "2") == 0
    before = (tmp_path / "two" / "seed0" / "result.json").stat().st_mtime_ns
    assert train(folder, tmp_path / "two", "--seeds", "3", "--resume") == 0
    assert (tmp_path / "two" / "seed0" / "result.json").stat().st_mtime_ns == before
    assert read(tmp_path / "two" / "seeds.json")["seeds"] == [0, 1, 2]


def test_a_seed_that_is_a_link_is_not_written_through(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", each=6)
    assert train(folder, tmp_path / "two", "--seeds", "2") == 0
    (tmp_path / "two" / "seed1").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "result.json").unlink()
    (tmp_path / "two" / "seed1").symlink_to(tmp_path / "elsewhere")
    assert "seed1 is a link" in refused(capsys, "train", "--out", tmp_path / "two", "--resume")
    assert not (tmp_path / "elsewhere" / "result.json").exists()


def test_resumed_seeds_need_no_settings(tmp_path, capsys):
    """Images, settings and number of seeds are stored; other settings are refused."""
    out = tmp_path / "two"
    settings = {"source": "images", "out": str(out), "seeds": 2, "epochs": 7, "explicit": ("epochs",)}
    begun = []

    def stopped(config):
        begun.append(config)
        Path(config.out).mkdir(parents=True)
        if len(begun) == 2:
            raise Interrupted("Stopped.", 130)
        return {"seed": config.seed, "last": {}}

    with pytest.raises(Interrupted):
        train_seeds(TrainConfig(**settings), stopped)
    with pytest.raises(UserError, match="not empty"):
        train_seeds(TrainConfig(**settings), stopped)
    again = []
    config = TrainConfig(out=str(out), resume=True)
    assert resumes_group(config)
    train_seeds(config, lambda config: again.append(config) or {"seed": config.seed, "last": {}})
    assert [(c.source, c.epochs, c.explicit, c.seed) for c in again] == [
        ("images", 7, ("epochs",), seed) for seed in (0, 1)
    ]
    with pytest.raises(UserError, match="--epochs 9 differs"):
        train_seeds(TrainConfig(out=str(out), resume=True, epochs=9), stopped)
    assert not resumes_group(PretrainConfig(out=str(out), resume=True))
    with pytest.raises(UserError, match="runs of vitling train"):
        train_seeds(PretrainConfig(source="images", out=str(out), seeds=2, overwrite=True), stopped)


def test_refusal_keeps_the_stored_request(tmp_path):
    out = tmp_path / "two"
    (out / "seed0").mkdir(parents=True)

    def refuses(config):
        raise UserError("Which images?")

    with pytest.raises(UserError, match="Which images"):
        train_seeds(TrainConfig(out=str(out), seeds=3, resume=True), refuses)
    assert not (out / "request.json").exists()
    train_seeds(TrainConfig(source="a", out=str(out), seeds=2, resume=True), lambda c: {"seed": c.seed, "last": {}})
    before = (out / "request.json").read_bytes()
    with pytest.raises(UserError, match="Which images"):
        train_seeds(TrainConfig(source="b", out=str(out), seeds=2, overwrite=True), refuses)
    assert (out / "request.json").read_bytes() == before
    (out / "request.json").write_text("")
    with pytest.raises(UserError, match=r"not valid JSON.* Delete it"):
        resumes_group(TrainConfig(out=str(out), resume=True))


def test_refused_seeds_leave_nothing_behind(tmp_path, capsys):
    out = tmp_path / "out"
    assert "does not exist" in refused(capsys, "train", tmp_path / "none", "--out", out, *TINY, "--seeds", "2")
    assert not out.exists()


def test_unfinished_seeds_cannot_be_compared(tmp_path):
    def stopped(config):
        Path(config.out).mkdir(parents=True)
        raise Interrupted("Stopped.", 130)

    with pytest.raises(Interrupted):
        train_seeds(TrainConfig(source="images", out=str(tmp_path / "two"), seeds=2), stopped)
    with pytest.raises(UserError, match="with --resume"):
        compare((str(tmp_path / "two"), str(tmp_path / "one")))


def test_seeds_of_pretraining(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", each=6)
    flags = [flag for flag in TINY if flag not in ("--method", "supervised", "--objective.drop-path", "0")]
    assert run(["pretrain", str(folder), "--out", str(tmp_path / "pre"), *flags, "--seeds", "2"]) == 0
    assert any(name.startswith("knn/") for name in read(tmp_path / "pre" / "seeds.json")["scores"])


def test_wrong_number_of_seeds(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", each=6)
    assert "--seeds 0: must be at least 1" in refused(
        capsys, "train", folder, "--out", tmp_path / "x", *TINY, "--seeds", "0"
    )
    assert train(folder, tmp_path / "one") == 0
    assert "one seed" in refused(capsys, "train", folder, "--out", tmp_path / "one", *TINY, "--seeds", "2")
    assert json.loads((tmp_path / "one" / "config.json").read_text())["seeds"] == 1
