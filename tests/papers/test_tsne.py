"""t-SNE before and after fine-tuning, on made images, from the command to the picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_folder
from tests.made_runs import lines
from tests.papers.short_stages import FIRST, SECOND
from vitling.errors import UserError
from vitling.papers import locations as datasets
from vitling.papers.reproduce import reproduce
from vitling.papers.stages import FinetuneTask
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.papers.tsne import TsneTask

pytestmark = pytest.mark.usefixtures("elsewhere")

TWO = TsneTask(FinetuneTask(SECOND, FIRST), classes=2)
STUDY = Study(
    "looked-at",
    "t-SNE of two classes",
    "nowhere Figure 2",
    (
        StudyRun("random", TsneTask(FinetuneTask(SECOND), classes=2), "made", cell=("", "random start")),
        StudyRun("idmm", TWO, "made", baseline="random", cell=("", "IDMM")),
    ),
    "5-NN, %",
    picture="tsne",
)


@pytest.fixture
def uneven(tmp_path, monkeypatch):
    """Three classes with 4, 6 and 6 test images."""
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 12, 16))
    make_folder(tmp_path / "data" / "made", each=4, split="train")
    make_folder(tmp_path / "data" / "made", each=6, split="test", first=50)
    for i in (54, 55):
        (tmp_path / "data" / "made" / "test" / "class-0" / f"image-{i}.png").unlink()
    return str(tmp_path / "data")


def test_from_images_to_a_picture(uneven, tmp_path):
    outcome = reproduce(STUDY, uneven)
    assert outcome.failed == ()
    random, idmm = outcome.results["rows"]
    for row in (random, idmm):
        assert 0 <= row["value"] <= 100
        assert 0 <= row["after"] <= 100
        assert (row["looked_at"], row["images"]) == (12, 12)
        assert row["environment"]["commit"] == "abc123"
    assert [stage["stage"] for stage in idmm["stages"]] == ["pretrain", "finetune"]
    folder = tmp_path / "runs" / "looked-at" / "idmm-seed0"
    with np.load(folder / "tsne.npz") as arrays:
        assert arrays["before"].shape == arrays["after"].shape == (12, 2)
        assert set(arrays["labels"]) == {1, 2}  # the two with most
        assert arrays["class_names"][1] == "class-1"
        kept = arrays["before"]
    assert [line["why"] for line in lines(folder / "test-openings.jsonl")] == ["t-SNE of 2 classes"]
    picture = tmp_path / "results" / "looked-at.png"
    assert outcome.picture.absolute() == picture
    assert Image.open(picture).width > 300

    (folder / "result.json").unlink()
    again = TWO(RunContext(folder, 0, *where(uneven), data="made", stages=tmp_path / "runs" / "stages"))
    assert again["value"] == idmm["value"]
    with np.load(folder / "tsne.npz") as arrays:
        assert np.array_equal(arrays["before"], kept)  # the same seed

    picture.unlink()
    (folder / "tsne.npz").unlink()
    assert reproduce(STUDY, uneven).picture is None  # a picture without one of its columns is none
    assert not picture.exists()


def where(data: str) -> tuple[str, str]:
    found = datasets.find_data("made", datasets.check_folder(data))
    assert found
    return found


def test_before_a_random_start_is_the_network_that_fine_tuning_starts_from(uneven, tmp_path):
    task = replace(
        STUDY.runs[0].task, task=FinetuneTask(replace(SECOND, epochs=1, optim=replace(SECOND.optim, lr=1e-12)))
    )
    row = task(RunContext(tmp_path / "run", 3, *where(uneven), data="made", stages=tmp_path / "stages"))
    before, after = task._load_models(RunContext(tmp_path / "run", 3, data="made", stages=tmp_path / "stages"))
    image = tmp_path / "data" / "made" / "test" / "class-1" / "image-50.png"
    assert np.allclose(before.embed(str(image)), after.embed(str(image)), atol=1e-4)
    assert row["value"] == row["after"]


def test_images_with_several_labels_are_refused(tmp_path):
    folder = make_folder(tmp_path / "several", each=4)
    rows = "".join(f"class-{c}/image-{i:02d}.png,a|b\n" for c in range(3) for i in range(4))
    (folder / "labels.csv").write_text("path,label\n" + rows)
    with pytest.raises(UserError, match="one label per image"):
        TWO._select_images(RunContext(tmp_path, 0, str(folder / "labels.csv"), str(folder / "labels.csv")))
