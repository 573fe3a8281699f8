"""Imports go one way, and the package is quick to import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitling"
ORDER = (  # each package may import those further down and the modules beside the packages
    {"commands"},
    {"papers"},
    {"runs"},
    {"settings"},
    {"methods"},
    {"training", "evaluation", "dense"},
    {"objectives"},
    {"backbones", "views"},
    {"data"},
)
ROOM = {part: set().union(*ORDER[i + 1 :]) for i, parts in enumerate(ORDER) for part in parts}
ROOM["report"] = set()  # it reads files
for part in ("commands", "papers", "runs"):
    ROOM[part].add("report")
SHARED = {"errors", "files", "keys", "console", "lazy", "formatting", "metric_names", "__version__"}


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "vitling" else {node.module}
            )
    return {name.split(".")[1] for name in found if name and name.startswith("vitling.")}


@pytest.mark.parametrize("part", [p.name for p in sorted(SOURCE.iterdir()) if p.is_dir() and p.name != "__pycache__"])
def test_imports_go_one_way(part):
    for path in (SOURCE / part).rglob("*.py"):
        wrong = imported_parts(path) - ROOM[part] - SHARED - {part}
        assert not wrong, f"{path.relative_to(SOURCE)} imports {sorted(wrong)}"


def test_shared_modules_import_no_part():
    for path in SOURCE.glob("*.py"):
        if path.stem not in ("cli", "__main__", "__init__"):
            assert imported_parts(path) <= SHARED, path


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_leaves_torch_alone():
    code = "import sys, vitling, vitling.data, vitling.views, vitling.training, vitling.backbones, vitling.evaluation"
    assert run_python(f"{code}; print('torch' in sys.modules, 'numpy' in sys.modules)").split() == ["False", "False"]


def test_settings_need_no_torch():
    """--help of every verb is made from these."""
    code = "import sys; from vitling.settings.config import TrainConfig; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"


def best_of(command: list[str], tries: int = 5) -> float:
    """User and system time of the quickest: the machine may be busy with other tests."""
    times = []
    for _ in range(tries):
        before = os.times()
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        busy = after.children_user - before.children_user + after.children_system - before.children_system
        times.append(min(busy, time.perf_counter() - started))
    return min(times)


def test_import_takes_less_than_300_ms():
    assert best_of([sys.executable, "-c", "import vitling"]) < 0.3


def test_help_takes_less_than_500_ms():
    assert best_of([sys.executable, "-m", "vitling", "--help"]) < 0.5
