"""The campaign of hostile files: every reader takes part, and tracebacks are counted."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.hostile_campaign import Reader, list_readers
from vitling.errors import UserError


def test_no_reader_ends_in_a_traceback(tmp_path):
    for name, reader in list_readers(tmp_path).items():
        tried, errors = reader.run(2, 0)
        assert tried >= 1, name
        assert not errors, name


def test_tracebacks_are_counted_and_refusals_are_not(tmp_path):
    def read() -> None:
        raise (UserError("damaged") if path.read_bytes() == b"a" else KeyError("size"))

    path = tmp_path / "file"
    tried, errors = Reader(path, st.sampled_from([b"a", b"b"]), read).run(20, 0)
    assert 0 < errors.total() < tried
    assert "KeyError in test_hostile_campaign.py" in next(iter(errors))
