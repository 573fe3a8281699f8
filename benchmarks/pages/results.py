"""docs/results.md: every file in results/ as a table.

python -m benchmarks.pages.results results docs/results.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.pages import data_files
from benchmarks.pages.causes import list_causes
from benchmarks.pages.markdown import make_table
from vitling.files import write_file
from vitling.formatting import describe_trial, format_count
from vitling.loading import convert, read_json
from vitling.metric_names import METRIC_NAMES
from vitling.papers.lines import make_lines, select_columns
from vitling.papers.pictures.draw import draw
from vitling.records import StudyResults

HEAD = """# Results

Generated from the files in `results/` by `make results`; do not edit. Each file stores every run with its settings,
versions, commit and machine. "ours" is the last epoch, as mean and standard deviation over seeds. The papers' figures
are as reported by their authors, and not necessarily of the last epoch.
"""

DATA_HEAD = """\
The images behind the figures. Some files differ from those that the authors distribute, so figures on them are not
figures on the original dataset: the Flowers-102 files are re-encoded as WebP, the training images with a shorter side
of 384 px, the test images cropped to 256 x 256, so "evaluated at 288 px" enlarges them. `vitling inspect DATA` prints
the hash of each split ([what it covers](data.md#content-hash)). Results recorded without hashes got theirs later; they
have the field `data_hashes_from`.
"""

AGAIN_HEAD = """Detected automatically from the results files."""


def render_results(folder: Path) -> str:
    """Render all files of a folder, studies first, as Markdown."""
    known = {path.name: _read(path) for path in sorted(folder.glob("*.json")) if path.name != data_files.FILE}
    data = data_files.read_known(folder)
    studies = [_render_study(folder, name, content, data) for name, content in known.items() if "study" in content]
    others = [_render_measurement(name, content, data) for name, content in known.items() if "study" not in content]
    return "\n".join([HEAD, *_render_data(data), *_render_again(known), *studies, *others])


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if isinstance(content, dict) and "study" in content:
        return convert(content, StudyResults, path)
    return content if isinstance(content, dict) else {}


def _render_data(data: data_files.Known) -> list[str]:
    titles = ["data", "split", "images", "files", "original", "content hash"]
    return [_make_section("Data", DATA_HEAD.strip(), make_table(titles, data_files.tabulate(data)))] if data else []


def _render_again(files: dict[str, dict[str, Any]]) -> list[str]:
    rows = [[f"[{name}](../results/{name})", "; ".join(found)] for name in files if (found := list_causes(files[name]))]
    return [_make_section("To be run again", AGAIN_HEAD, make_table(["file", "cause"], rows))] if rows else []


def _render_study(folder: Path, name: str, results: dict[str, Any], data: data_files.Known) -> str:
    rows = results["rows"]
    trial = f" {text.capitalize()}." if (text := describe_trial(results.get("trial"))) else ""
    found = make_lines(results)
    titles = {name: name for name in ("run", "ours", "paper", "gain")} | {"paper_gain": "paper's gain", "note": "note"}
    columns = select_columns(found, titles)
    table = make_table(columns.values(), ([getattr(line, name) for name in columns] for line in found))
    measured = len({row["run"] for row in rows if "value" in row})
    minutes, at_once = sum(row["minutes"] for row in rows), max((row.get("at_once", 1) for row in rows), default=1)
    together = f", with up to {at_once} runs at once on one machine" if at_once > 1 else ""
    where = _describe_machines([row.get("environment", {}) for row in rows]) + _describe_training_machines(rows)
    return _make_section(
        f"{results['study']}: {results['title']}",
        f"{results['source']}. {results['unit'][0].upper()}{results['unit'][1:]}.{trial}",
        _link_picture(folder / name, results),
        table,
        f"{measured} of {results['runs_in_all']} runs, {minutes:.1f} minutes in all{together}. {where}",
        data_files.describe_data(results, data),
        _cite_source(results, name),
    )


def _link_picture(path: Path, results: dict[str, Any]) -> str:
    """Link the picture next to the file, if there is one."""
    there = "picture" in results and path.with_suffix(".png").exists()
    return f"![{results['study']}](../results/{path.stem}.png)" if there else ""


def _render_measurement(name: str, content: dict[str, Any], data: data_files.Known) -> str:
    """Render whatever the keys of a file provide, at least its name and command."""
    parts = [content.get("caution", "")]
    if _get_keys(content.get("result")) >= _RUN:
        parts.append(_describe_run(content["result"]))
    if isinstance(content.get("rows"), list):
        parts.append(_tabulate_rows([row for row in content["rows"] if isinstance(row, dict)]))
    where = _describe_machines([content["environment"]]) if _get_keys(content.get("environment")) else ""
    parts += [where, data_files.describe_data(content, data)]
    return _make_section(content.get("what", Path(name).stem), *parts, _cite_source(content, name))


_RUN = {"backbone", "size", "images", "epochs", "seconds", "images_per_second", "seed", "last"}


def _get_keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _describe_run(result: dict[str, Any]) -> str:
    values = [(split, result["last"][split]["top1"]) for split in ("val", "test") if split in result["last"]]
    name = METRIC_NAMES["top1"].display
    evaluated_at = result.get("evaluated_at", result.get("judged_at", result["size"]))  # judged_at: earlier versions
    size = f" at {evaluated_at} px" if evaluated_at != result["size"] else ""
    top1 = "".join(f", {split} {name}{size} {100 * value:.2f} %" for split, value in values)
    return (
        f"{result['backbone']} at {result['size']} px, {result['images']:,} images, "
        f"{format_count(result['epochs'], 'epoch')}, {result['seconds']:.0f} s, "
        f"{result['images_per_second']:,.0f} images/s, seed {result['seed']}{top1}."
    )


def _tabulate_rows(rows: list[dict[str, Any]]) -> str:
    """Tabulate a list of measurements: a column for each key with plain values, empty where a row has none."""
    rows = [_flatten({key: value for key, value in row.items() if key != "data_hashes"}) for row in rows]
    columns = dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, str | int | float))
    titles = [column.replace("_", " ") for column in columns]
    return make_table(titles, ([_format_cell(row.get(column, "")) for column in columns] for row in rows))


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested values: {"overhead": {"l1": 0.01}} becomes the column "overhead, l1"."""
    inner = {
        f"{key}, {name}": cell for key, some in row.items() if isinstance(some, dict) for name, cell in some.items()
    }
    return {key: value for key, value in row.items() if not isinstance(value, dict)} | inner


def _format_cell(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _describe_machines(environments: list[dict[str, Any]]) -> str:
    """List machines, versions and commits, each once."""
    machines = {e.get("gpu") or f"{e.get('cpus', '?')} CPU cores" for e in environments}
    packages = [e.get("packages", {}) for e in environments]
    versions = {f"{name} {p[name]}" for p in packages for name in ("torch", "timm") if p.get(name)}
    commits = {e.get("commit") or "unknown" for e in environments}
    where, what, which = (", ".join(sorted(found)) for found in (machines, versions, commits))
    return f"On {where}; {what}; commit {which}."


def _describe_training_machines(rows: list[dict[str, Any]]) -> str:
    """List the machines of training if they differ from those of evaluation."""
    others = {
        f"{stage['gpu']}, commit {stage['commit']}"
        for row in rows
        for stage in row.get("stages", [])
        if stage.get("gpu") not in (None, row.get("environment", {}).get("gpu"))
    }
    return f" Trained on {'; '.join(sorted(others))}." if others else ""


def _cite_source(content: dict[str, Any], name: str) -> str:
    command = f"`{content['command']}`, " if content.get("command") else ""
    return f"{command}[results/{name}](../results/{name})"


def _make_section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)]) + "\n"


def main(folder: str, out: str) -> None:
    for path in sorted(Path(folder).glob("*.json")):
        content = _read(path)
        if "picture" in content and draw(content, path.with_suffix(".png")):
            print(f"Saved to {path.with_suffix('.png')}")
    write_file(out, render_results(Path(folder)))
    print(f"Saved to {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
