"""Runs that continue from another run's checkpoint with additional parts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import make_folder
from tests.methods.helpers import make
from tests.tiny import Stop, StopAfter
from tests.training.helpers import latest, lines, open_store
from tests.training.momentum_run import settings
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.objectives.progress import Progress
from vitling.training import RunDirectory, fit
from vitling.training.continuing import load_checkpoint

PER_EPOCH = 5  # 33 images in batches of 8


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    folder = make_folder(tmp_path_factory.mktemp("images"), classes=3, each=11)
    return open_store(folder)


@pytest.fixture(scope="module", params=["dino", "esvit"])
def views_alone(request, store, tmp_path_factory) -> Path:
    """A run with the view loss, stopped after two of four epochs."""
    out = tmp_path_factory.mktemp(request.param)
    changes = {} if request.param == "dino" else {"region_weight": 0.0, "view_weight": 1.0}
    with pytest.raises(Stop):
        fit(make(request.param, **changes), store, settings("esvit"), [StopAfter(2)], run=RunDirectory(out))
    return out


def test_regions_are_added_to_a_run_with_views_only(views_alone, store, tmp_path):
    """Step, schedules, weights, teacher, centre and moments continue; new regions start equal in student and
    teacher."""
    before, objective = latest(views_alone), make("esvit")
    fresh = {name: value.clone() for name, value in objective.state_dict().items()}
    seen: dict = {}

    class Looks(StopAfter):
        def __call__(self, moment):
            seen.update({k: v.clone() for k, v in moment.objective.state_dict().items()})
            raise Stop

    began: dict = {}
    first = objective.before_step

    def before_step(progress: Progress) -> None:
        if not began:
            began.update({k: v.clone() for k, v in objective.state_dict().items()}, step=progress.step)
        first(progress)

    objective.before_step = before_step
    with pytest.raises(Stop):
        fit(objective, store, settings("esvit"), [Looks(0)], run=RunDirectory(tmp_path), start=views_alone)
    assert began.pop("step") == 2 * PER_EPOCH
    for name, value in began.items():
        assert torch.equal(value, before["objective"].get(name, fresh[name])), name
    new = {name for name in began if name not in before["objective"]}
    assert {name.split(".")[0] for name in new} >= {"region_head", "teacher"}
    assert all(torch.equal(began[f"region_head.{n}"], began[f"teacher.regions.{n}"]) for n in ("prototypes",))
    log = (tmp_path / "log.txt").read_text()
    assert re.search(r"Continuing at step 10 of 20; new in this run: (?=.*teacher\.regions)(?!.*teacher,)", log)
    assert any(not torch.equal(seen[name], began[name]) for name in new)


def test_moments_are_matched_by_name(views_alone, store, tmp_path):
    """At a learning rate of 0 the second moment is the decayed old one plus that of the new gradient."""
    before, objective = latest(views_alone), make("esvit")
    still = replace(settings("esvit", lr=0.0, clip=0.0), epochs=4)
    outcome = fit(objective, store, still, run=RunDirectory(tmp_path), start=views_alone)
    assert outcome.steps == 4 * PER_EPOCH
    after = latest(tmp_path)
    old = dict(zip(before["parameters"], range(len(before["parameters"]))))
    assert set(old) < set(after["parameters"])
    for i, name in enumerate(after["parameters"]):
        moments = after["optimiser"]["state"][i]
        slept = name in old and name.endswith("prototypes")  # in the first epoch
        assert moments["step"] == (4 - slept if name in old else 2) * PER_EPOCH
        if name in old:
            least = before["optimiser"]["state"][old[name]]["exp_avg_sq"] * 0.999 ** (2 * PER_EPOCH)
            assert (moments["exp_avg_sq"] >= least * (1 - 1e-4)).all()
    assert [line["epoch"] for line in lines(tmp_path)] == [3, 4]


def test_a_continued_run_is_resumed_from_its_own_checkpoint(views_alone, store, tmp_path):
    whole, parts = make("esvit"), make("esvit")
    for name in "ab":
        (tmp_path / name).mkdir()
    one, two = (RunDirectory(tmp_path / name) for name in "ab")
    fit(whole, store, settings("esvit"), run=one, start=views_alone)
    with pytest.raises(Stop):
        fit(make("esvit"), store, settings("esvit"), [StopAfter(3)], run=two, start=views_alone)
    fit(parts, store, settings("esvit"), run=two, start=views_alone)
    assert "Resuming at step 15" in (tmp_path / "b" / "log.txt").read_text()
    for (name, a), b in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_incompatible_checkpoints_are_refused(views_alone, store, tmp_path):
    def continue_run(objective, config, start=views_alone) -> None:
        fit(objective, store, config, run=RunDirectory(tmp_path), start=start)

    with pytest.raises(UserError, match=r"steps per epoch.*--batch"):
        continue_run(make("esvit"), replace(settings("esvit"), batch=11))
    with pytest.raises(UserError, match="Raise --epochs"):
        continue_run(make("esvit"), replace(settings("esvit"), epochs=2))
    with pytest.raises(UserError, match="a different shape"):
        continue_run(make("esvit", prototypes=20), settings("esvit"))
    with pytest.raises(UserError, match="is not part of this run"):
        continue_run(make("moco-v2"), settings("moco-v2"))
    with pytest.raises(UserError, match="no checkpoint"):
        continue_run(make("esvit"), settings("esvit"), tmp_path / "nothing")


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw"), ("adamw", "sgd"), ("sgd", "muon")])
def test_moments_of_another_optimiser_are_refused(store, tmp_path, before, after):
    def use(name):
        config = settings("esvit")
        return replace(config, optim=replace(config.optim, name=name, final_weight_decay=None))

    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    with pytest.raises(Stop):
        fit(make("esvit"), store, use(before), [StopAfter(2)], run=RunDirectory(tmp_path / "before"))
    checkpoint = next((tmp_path / "before" / "checkpoints").iterdir())
    with pytest.raises(UserError, match=r"different optimiser.*--optim\.name"):
        fit(make("esvit"), store, use(after), run=RunDirectory(tmp_path / "after"), start=checkpoint)


@pytest.mark.parametrize("damage", ["cut short", "empty", "text"])
def test_files_that_are_no_checkpoints_are_refused(views_alone, tmp_path, damage):
    """A file that was cut short has lost its digest."""
    whole = next((views_alone / "checkpoints").iterdir()).read_bytes()
    content = {"cut short": whole[: len(whole) // 2], "empty": b"", "text": b"no"}[damage]
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.pt is damaged or not a vitling checkpoint"):
        load_checkpoint(tmp_path / "a.pt", torch.device("cpu"), print)
