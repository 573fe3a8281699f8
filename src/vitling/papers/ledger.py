"""results/NAME.json: measured rows, from any number of sessions and machines. No torch here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.files import lock_folder, write_json
from vitling.formatting import describe_trial
from vitling.loading import read_record
from vitling.papers.study import Study, StudyRun, matches_name
from vitling.records import StudyResults

Row = dict[str, Any]  # run, seed, and value, failed or stopped
Rows = dict[tuple[str, int], Row]  # by run and seed
NAMED_LATER = {"esvit.match": "argmax"}  # settings that older rows did not name, with their value then


class Ledger:
    """Rows by run and seed. A row with a value is never replaced, even if its run directory is gone."""

    def __init__(self, path: Path, study: Study, trial: int | None):
        self.path, self.study, self.trial = path, study, trial
        found = read_record(path, StudyResults) if path.exists() else None
        if found is not None and (found.get("study"), found.get("trial")) != (study.name, trial):
            kind = describe_trial(found.get("trial")) or "the study itself"
            raise UserError(f"{path} holds results of {found.get('study')}, {kind}. Name a different file with --out.")

    def rows(self) -> Rows:
        """Read the rows from the file each time: another session may write it too."""
        rows = read_record(self.path, StudyResults)["rows"] if self.path.exists() else []
        return {(row["run"], row["seed"]): row for row in rows}

    def record(self, row: Row) -> None:
        """Write a row, unless it has a value already; other processes may write the same file.

        The `minutes` of unfinished starts are added up; `at_once` is the most processes that were running.
        """
        with lock_folder(self.path.parent):
            rows, key = self.rows(), (row["run"], row["seed"])
            old = rows.get(key, {})
            if "value" in old:
                return
            at_once = max(row.get("at_once", 1), old.get("at_once", 1))
            minutes = round(row["minutes"] + old.get("minutes", 0), 3)
            rows[key] = row | {"minutes": minutes} | ({"at_once": at_once} if at_once > 1 else {})
            write_json(self.path, self.make_content(rows))

    def find_stale(self) -> list[str]:
        """List runs whose rows were measured with other settings than the study has now."""
        now = {run.name: fingerprint(run) for run in self.study.runs}
        return sorted({row["run"] for row in self.rows().values() if row["fingerprint"] != now.get(row["run"])})

    def make_content(self, rows: Rows | None = None) -> dict[str, Any]:
        """Make the content of the file, with its present rows by default."""
        rows = self.rows() if rows is None else rows
        order = {run.name: i for i, run in enumerate(self.study.runs)}
        listed = sorted(rows.values(), key=lambda row: (order.get(row["run"], len(order)), row["run"], row["seed"]))
        shown = {row["run"] for row in listed}
        shown |= {run.baseline for run in self.study.runs if run.name in shown}
        return {
            "study": self.study.name,
            "title": self.study.title,
            "source": self.study.source,
            "unit": self.study.unit,
            "command": self._make_command(listed),
            **({"trial": self.trial} if self.trial else {}),
            **self._describe_picture(),
            "runs_in_all": len(self.study.runs),
            "runs": [_describe_run(run) for run in self.study.runs if run.name in shown],
            "rows": listed,
        }

    def _describe_picture(self) -> dict[str, Any]:
        """Describe the picture: the cell of every run, measured or not."""
        if not self.study.picture:
            return {}
        placed = [(run, *run.cell) for run in self.study.runs if run.cell]
        cells = [{"run": run.name, "row": row, "column": column, "paper": run.paper} for run, row, column in placed]
        return {"picture": self.study.picture, "cells": cells}

    def _make_command(self, rows: list[Row]) -> str:
        """Return the command that measures these rows again, with --only if they are a part of the runs."""
        seeds, present = 1 + max((row["seed"] for row in rows), default=0), {row["run"] for row in rows}
        runs, others = ([run.name for run in self.study.runs if (run.name in present) == has] for has in (True, False))
        data = " --data DIR" if self.study.data else ""
        only = f" --only {' '.join(_choose_parts(runs, others))}" if runs and others else ""
        trial = f" --epochs {self.trial}" if self.trial else ""
        return f"vitling reproduce {self.study.name}{data}{only} --seeds {seeds}{trial}"


def _choose_parts(runs: list[str], others: list[str]) -> list[str]:
    """Choose a few words for --only, each matching one or more of these runs and none of the others."""
    left, parts = runs, []
    while left:
        words = left[0].split("-")
        spans = ["-".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
        own = [span for span in spans if not any(span in other for other in others)] or [f"={left[0]}"]
        parts.append(max(own, key=lambda span: (sum(matches_name(name, span) for name in left), len(span))))
        left = [name for name in left if not matches_name(name, parts[-1])]
    return parts


def fingerprint(run: StudyRun) -> str:
    """Hash everything that defines a run's figure."""
    settings, pretrain_data = drop_later_names(run.task.settings), [run.pretrain_data] if run.pretrain_data else []
    return digest([settings, run.data, run.weights, *pretrain_data])


def drop_later_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop settings that the first rows did not name, where they have the value they had then.

    Fingerprints and the folders of stages stay the same; results files name the settings.
    """

    def is_later(name: str, value: Any) -> bool:
        return any(name.endswith(later) and value == then for later, then in NAMED_LATER.items())

    return {name: value for name, value in settings.items() if not is_later(name, value)}


def digest(what: Any) -> str:
    """Hash anything that JSON can hold to 8 letters."""
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _describe_run(run: StudyRun) -> dict[str, Any]:
    kept = {"data": run.data, "before": run.pretrain_data, "against": run.baseline, "note": run.note}
    return {
        "run": run.name,
        "paper": run.paper,
        **{name: value for name, value in kept.items() if value},
        "fingerprint": fingerprint(run),
        "settings": run.task.settings,
    }
