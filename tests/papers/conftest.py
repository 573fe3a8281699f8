"""For studies: a new folder to work in, and datasets of which the papers know nothing."""

from __future__ import annotations

import pytest

from tests.conftest import make_folder
from vitling.papers import locations as datasets


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLING_COMMIT", "abc123")
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 12, 6))
    monkeypatch.setitem(datasets.DATASETS, "pool", datasets.StudyDataset("images to pre-train on", 6, 0))


@pytest.fixture
def data(tmp_path):
    make_folder(tmp_path / "data" / "made", each=4, split="train")
    make_folder(tmp_path / "data" / "made", each=2, split="test", first=50)
    return str(tmp_path / "data")
