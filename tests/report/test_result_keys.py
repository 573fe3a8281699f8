"""Nothing in results/ is typed in: every key is one that the code writes, every commit is in the history."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vitling.loading import read_json
from vitling.settings.config import FinetuneConfig, PretrainConfig, TrainConfig
from vitling.settings.names import leaves

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vitling"
FILES = sorted((ROOT / "results").glob("*.json"))
DYNAMIC = {"settings", "terms", "curves", "watched", "chosen", "each", "packages", "rounds", "formats", "first_look"}
DYNAMIC |= {
    "sets",
    "unfamiliar",
    "left_out",
    "seconds_of_a_short_fit_by_threads",
}  # keys below are names of terms, settings, packages, ...
FORMER = {"data_hashes_from", "judged_at"}  # written by earlier versions
SHARED = (SOURCE / "training" / "rundir.py", ROOT / "benchmarks" / "pages" / "measure_files.py")
RUN = (*(SOURCE / "runs").glob("*.py"), *(SOURCE / "evaluation").glob("*.py"))  # write result.json


def list_writers(content: dict[str, Any]) -> tuple[Path, ...]:
    """List the modules that write a file, found by its command."""
    benchmarks = tuple((ROOT / "benchmarks").glob("*.py"))
    if "study" in content:
        return (*(SOURCE / "papers").rglob("*.py"), *SHARED)
    script = re.match(r"python benchmarks/(\w+)\.py", content["command"])
    if script:
        assert (ROOT / "benchmarks" / f"{script[1]}.py").exists()
        return (*benchmarks, *(SOURCE / "papers").glob("*.py"), SOURCE / "dense" / "metrics.py", *SHARED)
    if content["command"].startswith("python -m tests."):  # several campaigns add to one file
        return (*(ROOT / "tests").glob("*_campaign.py"), ROOT / "tests" / "faults.py", *SHARED)
    if content["command"].startswith("vitling "):
        return (ROOT / "benchmarks" / "collect.py", *RUN, *SHARED)
    return SHARED


@cache
def list_names(path: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """List names that a module may use as keys: strings, keywords, fields, flags; and f-strings as patterns."""
    names, patterns = set(), []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value, node.value.removeprefix("--").replace("-", "_")}
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Dict | ast.DictComp | ast.Subscript):
            keys = node.keys if isinstance(node, ast.Dict) else [getattr(node, "key", getattr(node, "slice", None))]
            for key in (key for key in keys if isinstance(key, ast.JoinedStr)):
                texts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in key.values]
                patterns += ["".join(texts)] if any(text != ".+" for text in texts) else []
    return frozenset(names), tuple(patterns)


def is_known(key: str, writers: tuple[Path, ...]) -> bool:
    found = [list_names(path) for path in writers]
    key = re.sub(r"^(box|mask)_(?=ap)", "", key)  # `AveragePrecision` of boxes and of masks
    return any(key in names for names, _ in found) or any(
        re.fullmatch(pattern, key) for _, patterns in found for pattern in patterns
    )


def walk_keys(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key with the path to it, except those below DYNAMIC ones."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield path, key
            if key not in DYNAMIC:
                yield from walk_keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from walk_keys(inner, path)


def is_column(key: str, writers: tuple[Path, ...]) -> bool:
    """Return whether `benchmarks/collect.py` may have written a column: a setting, or a path in result.json."""
    settings = {name for config in (TrainConfig, PretrainConfig, FinetuneConfig) for name, _ in leaves(config())}
    inner = key.removeprefix("pretrain/")
    return inner in settings or all(is_known(word, writers) for word in inner.split("."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_is_one_that_the_writers_know(path):
    content = read_json(path)
    writers = list_writers(content)
    keys = {(place, key) for place, key in walk_keys(content) if key not in FORMER}
    assert {
        f"{place}.{key}" for place, key in keys if not is_known(key, writers) and not is_column(key, writers)
    } == set()


def test_a_key_that_nobody_writes_is_found():
    content = read_json(ROOT / "results" / "train-8-minutes-h200.json")
    for key in ("seconds_in_all", "top1_at_224", "gpu_busy_percent_while_training"):
        assert not is_column(key, list_writers(content))


def list_commits(value: Any) -> set[str]:
    if isinstance(value, list):
        return {commit for inner in value for commit in list_commits(inner)}
    if not isinstance(value, dict):
        return set()
    own = {str(value["commit"]).removesuffix("-dirty")} if value.get("commit") else set()
    return own | {commit for inner in value.values() for commit in list_commits(inner)}


def test_every_commit_is_in_the_history():
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)

    if run("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the whole history")
    commits = {commit for path in FILES for commit in list_commits(read_json(path))}
    assert {commit for commit in commits if run("merge-base", "--is-ancestor", commit, "HEAD").returncode} == set()


def test_every_measured_row_on_data_names_its_content():
    for path in FILES:
        content = read_json(path)
        for run in content.get("rows", []) if "study" in content else []:
            about = next((one for one in content["runs"] if one["run"] == run["run"]), {})
            assert not about.get("data") or "value" not in run or run["data_hashes"], (path.name, run["run"])
