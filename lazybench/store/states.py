"""What has become of each job: planned, running, done, stopped or failed, kept next to the run folders."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lazybench.config import RunConfig, plain
from lazybench.errors import LazyBenchError
from lazybench.store import writing
from lazybench.store.locks import Busy
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, digest

FOLDER = ".jobs"
# Settings of a calibrated method that say more than its budget does in a few words.
_LONG = ("folds", "found")
PLANNED, RUNNING, DONE, STOPPED, FAILED = "planned", "running", "done", "stopped", "failed"


@dataclass(frozen=True)
class State:
    """A job and what has become of it.

    Attributes:
        model: the model's name.
        data: the data's name.
        method: the method's name.
        task: the task.
        shard: `i/n`, or None for a whole run.
        settings: the method's settings in a few words, which tell apart jobs of one method.
        state: `planned`, `running`, `done`, `stopped` or `failed`.
        why: for a failed job, the line it ended with.
        folder: the run's folder, below the output folder; None while it is not known.
        records: how many records the job has; None while it is not known.
        where: host, process, and the scheduler's job where there is one.
        since: when it came to this state, UTC.
    """

    model: str
    data: str
    method: str
    task: str
    shard: str | None
    settings: str
    state: str = PLANNED
    why: str | None = None
    folder: str | None = None
    records: int | None = None
    where: str | None = None
    since: str | None = None


class StateFile:
    """The state of one job, in `<output>/.jobs/`; `LazyBenchError` where that cannot be written.

    Args:
        config: the job's settings.

    Attributes:
        path: the file.
        summary: the job as it is before anything is known of it.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = Path(config.output) / FOLDER / f"{_key(config)}.json"
        self._output = Path(config.output)
        self._where: str | None = None
        settings = " ".join(
            f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
            for key, value in config.method.items()
            if key not in ("_target_", "name", *_LONG) and value is not None and value is not False
        )
        method = str(config.method.get("name"))
        self.summary = State(config.model.name, config.data.name, method, config.task, config.shard, settings)

    def plan(self) -> None:
        """Note that the job is to run, unless more is known of it."""
        if read(self.path) is None:
            self._write(self.summary)

    @contextmanager
    def following(self) -> Iterator[StateFile]:
        """Note how the job ends, unless it is killed.

        A job that fails before it has a folder leaves no trace, unless it was planned.
        """
        try:
            yield self
        except Busy:
            raise  # the other process says how it goes
        except (KeyboardInterrupt, SystemExit):
            self._note(STOPPED)
            raise
        except Exception as error:
            self._note(FAILED, why=(str(error).strip().splitlines() or [type(error).__name__])[-1])
            raise
        self._note(DONE)

    def found(self, folder: Path, records: int, settings: Mapping[str, Any], where: Mapping[str, Any]) -> None:
        """Note where the job's records go, if anything was noted of the job before it started.

        Args:
            folder: the run's folder.
            records: how many records the job has.
            settings: the run's settings, as its `config.yaml` has them.
            where: what the run runs on, as its `environment.json` has it.
        """
        before, inside = read(self.path), os.path.relpath(folder, self._output)
        if before is None or before.state == RUNNING or before.folder == inside:
            return
        if before.folder is not None:
            changed = ", ".join(_changes(self._output / before.folder, settings, where))
            print(
                f"begun in {before.folder}; since then {changed or 'what decides its results'} changed: results would "
                f"not compare, so it begins anew in {inside}"
            )
        with suppress(LazyBenchError):  # a finished run may lie where nothing can be written
            self._write(replace(before, folder=inside, records=records))

    def running(self, folder: Path, records: int) -> None:
        """Note that the job is at work in `folder`."""
        job = os.environ.get("SLURM_JOB_ID")
        self._where = f"{platform.node()} process {os.getpid()}" + (f" job {job}" if job else "")
        inside = os.path.relpath(folder, self._output)
        self._write(replace(self.summary, state=RUNNING, folder=inside, records=records, where=self._where))

    def _note(self, state: str, why: str | None = None) -> None:
        before = read(self.path)
        if before is None:
            return
        others = before.state == RUNNING and before.where != self._where
        if others or (before.state == DONE and state != DONE and self._where is None):
            return  # another process is at work or has finished: its state stays
        with suppress(LazyBenchError):  # a full disk must not hide what went wrong
            self._write(replace(before, state=state, why=why))

    def _write(self, state: State) -> None:
        with writing.writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        writing.replace(self.path, json.dumps(asdict(replace(state, since=now)), indent=2) + "\n")


def _changes(folder: Path, settings: Mapping[str, Any], where: Mapping[str, Any]) -> list[str]:
    """In what a run differs from the earlier one of its job in `folder`; empty where that cannot be told."""
    try:
        before = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
        code, place = before.get("code") or {}, json.loads((folder / ENVIRONMENT).read_text("utf-8"))
        return [
            *(f"the code of {name}" for name, now in settings["code"].items() if code.get(name, now) != now),
            *(f"the {key}" for key in ("weights", "records") if before.get(key) != settings[key]),
            *(key for key in where if key not in ("commit", "versions") and place.get(key) != where[key]),
            *(name for name, version in where["versions"].items() if place["versions"].get(name) != version),
        ]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError):
        return []


def read(path: Path) -> State | None:
    """The state in a file, or None where there is none that can be read."""
    try:
        state = State(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return state if state.state in (PLANNED, RUNNING, DONE, STOPPED, FAILED) else None


def _key(config: RunConfig) -> str:
    """What tells a job from others: its settings alone, which are the same on the node that plans and that runs."""
    settings = plain(config)
    for free in ("output", "trace", "retry_failed", "rerun"):
        del settings[free]
    return digest(settings)
