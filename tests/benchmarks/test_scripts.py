"""Benchmarks start as scripts, from any directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMPORT = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def test_scripts_find_what_they_import(tmp_path):
    names = [path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "__init__"]
    words = [sys.executable, "-c", IMPORT, str(BENCHMARKS), *names]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
