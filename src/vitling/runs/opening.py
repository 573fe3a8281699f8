"""Open the directory of a run: new, overwritten, or resumed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic

from vitling.console import Log
from vitling.data.sources import read_source
from vitling.data.sources.corrections import check_same_labels, hash_labels
from vitling.data.sources.source import Source
from vitling.data.splits import parse_fraction
from vitling.errors import UserError
from vitling.loading import read_record
from vitling.ranges import check_ranges
from vitling.records import RunResult
from vitling.settings.config import Config, RunConfig
from vitling.settings.layers import Draft
from vitling.settings.resolve import Resolved
from vitling.settings.saved import load_resolved, reopen, resume_run, to_json
from vitling.shortage import stop_on_shortage
from vitling.training.processes import Processes, init_processes
from vitling.training.rundir import RunDirectory
from vitling.training.signals import raise_on_signal
from vitling.training.trackers import check_trackers

EVALUATED = "evaluated.json"  # exists only while a run goes from its evaluation to a further stage


def check_request(request: RunConfig, verb: str) -> None:
    """Raise UserError if no data is named, or --val is no fraction."""
    if not request.source:
        if request.resume:
            raise UserError(
                f"{request.out} has no run to resume: no settings are saved there. To begin it, name the images: "
                f"vitling {verb} DATA --out {request.out} --resume"
            )
        raise UserError(f"No images given. Pass a folder, a CSV, a Parquet file, a tar or an npz: vitling {verb} DATA")
    if request.val is not None:
        parse_fraction(str(request.val))


@contextmanager
def start_processes(request: RunConfig, verb: str) -> Iterator[Processes]:
    """Join the processes of torchrun, after checking that data and output are named."""
    if not request.resume:
        check_request(request, verb)
    if not request.out:
        raise UserError("No output directory given. Pass --out DIR, for example --out runs/first.")
    with init_processes(request.loop.device) as processes:
        yield processes


@dataclass
class OpenRun(Generic[Config]):
    """A run directory in use."""

    draft: Draft[Config]  # what the user passed, or the saved settings of a resumed run
    directory: RunDirectory
    processes: Processes
    verb: str = "train"
    saved: Resolved[Config] | None = None  # settings of the start that this one resumes
    result: dict[str, Any] | None = None  # of a run that has finished already
    prepared: bool = False
    data: Source | None = None  # once it was read

    @property
    def has_checkpoint(self) -> bool:
        return any(self.directory.checkpoints.glob("step-*.pt"))

    @property
    def source(self) -> Source:
        """The data of the run, which is read once."""
        if self.data is None:
            config = self.draft.config
            self.data = read_source(config.source, config.data, config.labels)
        return self.data

    @property
    def has_gpu(self) -> bool:
        return self.processes.device.type != "cpu"

    @property
    def start(self) -> str | None:
        """Weights to start from; a run with a checkpoint has its own."""
        return None if self.saved is not None and self.has_checkpoint else self.draft.config.from_

    def prepare(self) -> None:
        """Create or clear the directory, once; all processes wait for it."""
        if self.processes.is_main and not self.prepared:
            self.directory.prepare(self.draft.config.resume, self.draft.config.overwrite)
        self.prepared = True
        self.processes.barrier()

    def write_settings(self, resolved: Resolved, trackers: tuple[str, ...] | None = None) -> None:
        """Write config.json; with trackers, start the log and the trackers too."""
        values = {"verb": self.verb} | to_json(resolved)
        if trackers is None:
            self.directory.write("config.json", values)
        else:
            self.directory.start(values, trackers)

    @property
    def evaluated(self) -> dict[str, Any] | None:
        """The entries of result.json that an earlier start kept, before a further stage was interrupted."""
        path = self.directory.path / EVALUATED
        return read_record(path, RunResult) if self.saved is not None and path.exists() else None

    def keep_evaluation(self, result: dict[str, Any]) -> None:
        self.directory.write(EVALUATED, result)

    def finish(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write result.json, which marks the run as finished."""
        self.directory.write("result.json", result)
        self.forget_evaluation()
        return result

    def forget_evaluation(self) -> None:
        if self.directory.writes:
            (self.directory.path / EVALUATED).unlink(missing_ok=True)


@contextmanager
def open_run(
    request: Config | Draft[Config], verb: str, processes: Processes, parent: OpenRun | None = None
) -> Iterator[OpenRun[Config]]:
    """Open a run, or a stage of one, for a training command; a run that fails on its input leaves nothing behind.

    A stage of a `parent` run resumes whenever it has begun, with the settings it has saved, and shares its data.
    """
    draft = request if isinstance(request, Draft) else Draft(request)
    directory = RunDirectory(draft.config.out, writes=processes.is_main)
    run = OpenRun(draft, directory, processes, verb, data=None if parent is None else parent.source)
    try:
        with stop_on_shortage(), raise_on_signal("Stopped; continue with --resume."):
            _resume(run, is_stage=parent is not None)
            yield run
            processes.barrier()
    except UserError:
        run.directory.abandon()
        raise
    except Exception:
        run.directory.log.debug(traceback.format_exc())
        raise
    finally:
        run.directory.close()


def _resume(run: OpenRun[Config], is_stage: bool) -> None:
    config, path = run.draft.config, run.directory.path
    if config.resume and (path / "config.json").exists():
        run.prepare()
        values = run.directory.read("config.json")
        if (verb := values.get("verb", run.verb)) != run.verb:
            raise UserError(
                f"{path} is a run of vitling {verb}. Resume it with that command, or pass a different --out."
            )
        saved = load_resolved(type(config), values, path / "config.json")
        if is_stage:  # the settings of a stage that has begun are those it has saved
            config = replace(saved.config, out=config.out, allow_bad=config.allow_bad)
        run.saved = resume_run(config, saved)
        run.draft = reopen(run.saved)
        if (path / "result.json").exists():
            run.directory.log.info(f"{path} has finished; there is nothing to resume.")
            run.result = read_record(path / "result.json", RunResult)
            run.forget_evaluation()  # the start that finished may have been killed before it did so
            return
    elif "resume" in config.explicit and config.source:
        Log(silent=not run.directory.writes).info(f"{path} has nothing to resume; starting a new run.")
    check_request(run.draft.config, run.verb)
    check_ranges(run.draft.config)
    check_trackers(run.draft.config.loop.trackers)
    _record_labels(run)


def _record_labels(run: OpenRun) -> None:
    """Record the content of --labels in the settings; raise UserError if it has changed since the run began."""
    config = run.draft.config
    if config.labels is None:
        return
    if run.saved is not None:
        check_same_labels(config.labels, config.labels_hash, config.out)
    run.draft.override("labels_hash", hash_labels(config.labels), "plan", "content of --labels")
