"""Imports point one way, within packages too, and importing vitling or printing a help loads no torch."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ORDER = (  # a package may import those further down, and the modules beside the packages
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
ALLOWED = {package: set().union(*ORDER[i + 1 :]) for i, level in enumerate(ORDER) for package in level}
ALLOWED["report"] = set()  # it renders plain data
ALLOWED["runs"].add("report")
ENTRY_POINTS = {"__init__", "__main__", "cli"}

Graph = Mapping[str, set[str]]


def module_name(path: Path) -> str:
    """`vitling.data.store`, or `vitling.data.__init__` for a package's own module."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def resolve(name: str) -> str | None:
    """Return the module that holds a dotted name, or None if that is not in vitling."""
    while name:
        for module in (name, f"{name}.__init__"):
            if module in MODULES:
                return module
        name = name.rpartition(".")[0]
    return None


def imported_names(path: Path) -> Iterator[str]:
    """Yield every import, wherever it stands: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTS: Graph = {
    module: {found for name in imported_names(path) if (found := resolve(name))} - {module}
    for module, path in MODULES.items()
}


def child_graph(package: str) -> Graph:
    """Return which modules and sub-packages directly in `package` import which, at any depth."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    prefix = f"{package}."
    for module, imports in IMPORTS.items():
        if module.startswith(prefix):
            child = module.removeprefix(prefix).split(".")[0]
            found = {name.removeprefix(prefix).split(".")[0] for name in imports if name.startswith(prefix)}
            graph[child] |= found - {child}
    return graph


PACKAGES = sorted(name.removesuffix(".__init__") for name in MODULES if name.endswith(".__init__"))
CHILDREN = sorted(path.name for path in (SOURCE / "vitling").iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycles(package):
    try:
        TopologicalSorter(child_graph(package)).prepare()
    except CycleError as cycle:
        pytest.fail(f"in {package}: {' <- '.join(cycle.args[1])}")


@pytest.mark.parametrize("package", CHILDREN)
def test_packages_import_in_order(package):
    packages = set(CHILDREN) - {package}
    for module, imports in IMPORTS.items():
        if module.startswith(f"vitling.{package}."):
            wrong = {name for name in imports if name.split(".")[1] in (packages | ENTRY_POINTS) - ALLOWED[package]}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_shared_modules_import_no_package():
    graph = child_graph("vitling")
    shared = set(graph) - set(CHILDREN) - ENTRY_POINTS
    assert all(graph[module] <= shared for module in shared)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_packages_loads_no_torch():
    code = "import sys, vitling, vitling.data, vitling.views, vitling.training, vitling.backbones, vitling.evaluation"
    assert run_python(f"{code}; print('torch' in sys.modules, 'numpy' in sys.modules)").split() == ["False", "False"]


def test_settings_load_no_torch():
    """The help of every command is made from these."""
    code = "import sys; from vitling.settings.config import TrainConfig; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"


def cpu_seconds(*arguments: str, tries: int = 5) -> float:
    """Return the shortest user and system time of a Python process: the machine may be busy with other tests."""
    times = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def test_importing_vitling_costs_little_more_than_starting_python():
    assert cpu_seconds("-c", "import vitling") < 3 * cpu_seconds("-c", "pass")


def test_help_costs_little_more_than_its_libraries():
    """It takes about twice as long as they do; torch alone would take more than four times as long."""
    libraries = "import msgspec, numpy, PIL.ExifTags, rich.console, rich.table, tyro"
    assert cpu_seconds("-m", "vitling", "--help") < 4 * cpu_seconds("-c", libraries)


def test_training_starts_without_the_libraries_of_its_end():
    """Plots, calibration and the comparison of images come later; importing them first would delay every start."""
    late = ("matplotlib", "scipy.optimize", "scipy.stats", "scipy.sparse", "sklearn", "tensorboard")
    code = f"import sys, vitling.runs.train; print([name for name in {late} if name in sys.modules])"
    assert run_python(code).strip() == "[]"
