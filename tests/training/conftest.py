from __future__ import annotations

import pytest

from tests.training.helpers import open_store
from vitling.data.store import Store


@pytest.fixture
def store(folder) -> Store:
    return open_store(folder)
