"""Names from files on the terminal and in CSV: no control characters, no markup, no formulas."""

from __future__ import annotations

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from tests.hostile import QUICK
from vitling.console import Console, echo
from vitling.files import make_csv
from vitling.formatting import escape_cell, escape_json, make_safe, unescape_cell

OWNED = "\x1b]0;owned\x07[red]x[/] \x9b2J \u202e"


@QUICK
@given(text=st.text())
def test_safe_text_can_be_encoded_and_has_no_control_characters(text):
    safe = make_safe(text)
    assert not {c for c in safe if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
    safe.encode()


def test_tables_show_names_as_they_are():
    text, table = io.StringIO(), Table(OWNED)
    table.add_row(OWNED)
    Console(file=text, width=200, force_terminal=True, highlight=False).print(table, OWNED)
    assert "\x1b]" not in text.getvalue()
    assert "\x9b" not in text.getvalue()
    assert text.getvalue().count("[red]x[/]") == 3


def test_lines_show_names_as_they_are(capsys):
    echo(OWNED)
    assert capsys.readouterr().out == "\\x1b]0;owned\\x07[red]x[/] \\x9b2J \\u202e\n"


def test_no_cell_is_a_formula():
    assert make_csv([["=1+1", "+1", "-x", "@x", "\tx", "a,b", "cat"]]) == "'=1+1,'+1,'-x,'@x,'\tx,\"a,b\",cat\n"
    assert make_csv([["-0.25", "'tis", "'=x"]]) == "-0.25,'tis,''=x\n"


@QUICK
@given(text=st.text("'=+-@\t1.x"))
def test_cells_are_read_back(text):
    assert unescape_cell(escape_cell(text)) == text


@given(st.text())
def test_escaped_json_is_equal_and_has_no_control_characters(text):
    written = escape_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(written) == text
    assert written == make_safe(written)
