"""`lazybench status`: what has become of each job."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lazybench.analysis.console import table
from lazybench.cli.arguments import BOTH_FORMS, add_runs, read
from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store import RunFolder, states
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES
from lazybench.store.states import State
from lazybench.store.survey import rerun_records, run_folders, survey

_ORDER = (states.RUNNING, states.FAILED, states.STOPPED, states.PLANNED, states.DONE)


def main(argv: Sequence[str]) -> int:
    """Print the jobs of some output folders."""
    jobs = [job for output in read(_parser(), argv).runs for job in _jobs(output)]
    jobs.sort(key=lambda job: _ORDER.index(job[0].state))
    print(table(["state", "task", "model", "data", "method", "", "records"], [_row(*job) for job in jobs], left=6))
    print(
        "\n" + ", ".join(f"{count} {_shown(state)}" for state, count in Counter(job.state for job, _ in jobs).items())
    )
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "lazybench status",
        usage="%(prog)s [runs=FOLDER,...]",
        description="What has become of each job: done; running; stopped (a person or a scheduler ended it, or records "
        "of it have gone); failed, with the last line of why; missing (planned by a sweep and not begun, or all of its "
        "records have gone). The command that started a job goes on where it stopped.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "output folders of runs")
    return parser


def _jobs(output: Path) -> list[tuple[State, int]]:
    """The jobs of an output folder, and how many records each has done."""
    if not output.is_dir():
        raise LazyBenchError(f"runs={output}: no such folder")
    known = [state for path in sorted((output / states.FOLDER).glob("*.json")) if (state := states.read(path))]
    jobs = [_looked_at(state, output) for state in known]
    jobs += _older(output, {state.folder for state in known})
    if not jobs:
        raise LazyBenchError(f"runs={output}: no runs there; make one: lazybench run method=lazyllm task=code")
    return jobs


def _looked_at(state: State, output: Path) -> tuple[State, int]:
    """The state as it is now: a job that was killed could not say so."""
    if state.folder is None:
        return state, 0
    folder, shard = output / state.folder, Shard.parse(state.shard)
    done, damage = survey(folder, shard, state.records)
    if RunFolder(folder, shard).is_busy:
        return replace(state, state=states.RUNNING), done
    if state.state == states.RUNNING:
        state = replace(state, state=states.FAILED, why=f"killed, or its machine went down ({state.where})")
    if state.state == states.DONE and not done:
        return replace(state, state=states.PLANNED, why=damage), 0
    if state.state == states.DONE and done < (state.records or 0):
        state = replace(state, state=states.STOPPED)
    if (again := rerun_records(folder)) is not None:
        damage = damage or f"rerun under way: {again} records so far; rerun=true continues it"
    return replace(state, why="; ".join(filter(None, (state.why, damage))) or None), done


def _older(output: Path, known: set[str | None]) -> Iterator[tuple[State, int]]:
    """Runs that are there without a state, as after a copy."""
    for folder in run_folders(output):
        inside = folder.relative_to(output)
        if str(inside) in known or len(inside.parts) != 4:
            continue
        model, data, method, digest = inside.parts
        count, why = survey(folder)
        gone = [name for name in (CONFIG, ENVIRONMENT) if not (folder / name).is_file()]
        why = f"{' and '.join(gone)} missing: a report leaves it out" if gone else why
        state = State(model, data, method, "", None, digest, states.STOPPED, why, str(inside))
        if (folder / SCORES).is_file() and not why:
            state = replace(state, state=states.DONE, records=count)
        yield state, count


def _row(state: State, done: int) -> list[str]:
    task = state.task + (f" {state.shard}" if state.shard else "")
    records = f"{done}/{'?' if state.records is None else state.records}"
    method = f"{state.method} {state.settings}".strip()
    note = state.why or (state.where if state.state == states.RUNNING else "") or ""
    return [_shown(state.state), task, state.model, state.data, method, note, records]


def _shown(state: str) -> str:
    return "missing" if state == states.PLANNED else state
