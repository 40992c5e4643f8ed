"""The command that tells what has become of each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lazybench.cli import words
from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.report.console import table
from lazybench.store import states
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES, RunFolder, run_folders
from lazybench.store.states import State

_DEFAULTS = {"runs": "results/runs"}
_USAGE = """\
lazybench status: what has become of each job

  python -m lazybench status
  python -m lazybench status runs=FOLDER,OTHER

  runs  output folders of runs, several with commas (default results/runs)

done; running; stopped (a person or a scheduler ended it, or records of it have gone); failed, with the last line of
why; missing (planned by a sweep and not begun, or all of its records have gone). The command that started a job goes on
where it stopped."""
# How a state is shown, in the order of the table.
_SHOWN = {
    states.RUNNING: "running",
    states.FAILED: "failed",
    states.STOPPED: "stopped",
    states.PLANNED: "missing",
    states.DONE: "done",
}


def main(argv: Sequence[str]) -> int:
    """Print the jobs of some output folders.

    Args:
        argv: `key=value` words, or `--help`.

    Returns:
        0.

    Raises:
        LazyBenchError: a word is unknown, or a folder has no jobs.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(_USAGE)
        return 0
    places = words.settings(argv, _DEFAULTS)["runs"].split(",")
    jobs = [(job, done) for place in places if place for job, done in _jobs(Path(place))]
    order = list(_SHOWN)
    jobs.sort(key=lambda job: order.index(job[0].state))
    print(table(["state", "task", "model", "data", "method", "", "records"], [_row(*job) for job in jobs], left=6))
    counts = Counter(job.state for job, _ in jobs)
    print("\n" + ", ".join(f"{counts[state]} {shown}" for state, shown in _SHOWN.items() if counts[state]))
    return 0


def _jobs(output: Path) -> list[tuple[State, int]]:
    """The jobs of an output folder, and how many records each has done."""
    if not output.is_dir():
        raise LazyBenchError(f"runs={output}: no such folder")
    known = [state for path in sorted((output / states.FOLDER).glob("*.json")) if (state := states.read(path))]
    jobs = [_looked_at(state, output) for state in known]
    jobs += _older(output, {state.folder for state in known})
    if not jobs:
        raise LazyBenchError(
            f"runs={output}: no runs there; make one: python -m lazybench run method=lazyllm task=code"
        )
    return jobs


def _looked_at(state: State, output: Path) -> tuple[State, int]:
    """The state as it is now: a job that was killed could not say so."""
    if state.folder is None:
        return state, 0
    folder = RunFolder(output / state.folder, Shard.parse(state.shard))
    done, damage = folder.survey(state.records)
    if folder.is_busy:
        return replace(state, state=states.RUNNING), done
    if state.state == states.RUNNING:
        state = replace(state, state=states.FAILED, why=f"killed, or its machine went down ({state.where})")
    if state.state == states.DONE and not done:
        return replace(state, state=states.PLANNED, why=damage), 0
    if state.state == states.DONE and done < (state.records or 0):
        state = replace(state, state=states.STOPPED)
    if (again := folder.rerun_records) is not None:
        damage = damage or f"run anew, {again} records so far, rerun=true goes on"
    return replace(state, why="; ".join(filter(None, (state.why, damage))) or None), done


def _older(output: Path, known: set[str | None]) -> Iterator[tuple[State, int]]:
    """Runs that are there without a state, as after a copy."""
    for folder in run_folders(output):
        inside = folder.relative_to(output)
        if str(inside) in known or len(inside.parts) != 4:
            continue
        model, data, method, digest = inside.parts
        count, why = RunFolder(folder).survey(None)
        gone = [name for name in (CONFIG, ENVIRONMENT) if not (folder / name).is_file()]
        why = f"{' and '.join(gone)} missing: a report leaves it out" if gone else why
        finished = (folder / SCORES).is_file() and not why
        yield (
            State(
                model,
                data,
                method,
                "",
                None,
                digest,
                state=states.DONE if finished else states.STOPPED,
                folder=str(inside),
                records=count if finished else None,
                why=why,
            ),
            count,
        )


def _row(state: State, done: int) -> list[str]:
    task = state.task + (f" {state.shard}" if state.shard else "")
    records = f"{done}/{'?' if state.records is None else state.records}"
    method = f"{state.method} {state.settings}".strip()
    note = state.why or (state.where if state.state == states.RUNNING else "") or ""
    return [_SHOWN[state.state], task, state.model, state.data, method, note, records]
