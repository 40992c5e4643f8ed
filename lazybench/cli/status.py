"""`lazybench status`: show the state of each run."""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.cli.arguments import BOTH_FORMS, add_runs, read
from lazybench.errors import LazyBenchError
from lazybench.store.journal import PREDICTIONS, TIMES, read_rows
from lazybench.store.run_folder import FAILURE, RunFolder, read_settings
from lazybench.store.survey import run_folders

STATES = RUNNING, FAILED, STOPPED, DONE = "running", "failed", "stopped", "done"


def main(argv: Sequence[str]) -> int:
    """Print a table of the runs in some output folders, and the number of runs in each state."""
    parser = ArgumentParser(
        "lazybench status",
        usage="%(prog)s [runs=FOLDER,...]",
        description="Show the state of each run: running; failed, with the reason; stopped, or with records missing; "
        "done. The command that started a run resumes it. For jobs that have not started, see lazybench plan.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "output folders of runs")
    rows = [row for output in read(parser, argv).runs for row in _rows(output)]
    rows.sort(key=lambda row: STATES.index(row[0]))
    print(table(["state", "task", "model", "data", "method", "", "records"], rows, left=6))
    print("\n" + ", ".join(f"{count} {state}" for state, count in Counter(row[0] for row in rows).items()))
    return 0


def _rows(output: Path) -> Iterator[list[str]]:
    # Folders of runs are four levels deep.
    folders = [folder for folder in run_folders(output) if len(folder.relative_to(output).parts) == 4]
    if not folders:
        raise LazyBenchError(f"runs={output}: no runs there; make one: lazybench run method=lazyllm task=code")
    for folder in folders:
        settings, _ = read_settings(folder)
        model, data, method, digest = folder.relative_to(output).parts
        method = f"{method} {setting_of(method, settings.get('method') or {}) or digest}"
        state, note, records = _state(folder, settings)
        yield [state, str(settings.get("task", "")), model, data, method, note, records]


def _state(folder: Path, settings: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a run's state, a note, and its answered records and all its records. A killed run counts as stopped."""
    notes = [path.read_text("utf-8") for path in sorted(folder.glob(f"{Path(FAILURE).stem}*.txt"))]
    counts, per_dataset = settings.get("records_of") or {}, (settings.get("timing") or {}).get("per_dataset")
    state, done, expected = FAILED if notes else STOPPED, "?", sum(counts.values())
    try:
        rows, times = read_rows(folder, PREDICTIONS), read_rows(folder, TIMES)
    except LazyBenchError as error:
        notes.append(str(error))
    else:
        done, failed = str(len(rows)), sum("error" in row for row in rows.values())
        to_time = sum(count if per_dataset is None else min(count, per_dataset) for count in counts.values())
        if not notes and len(rows) >= expected > 0:
            # A record that cannot be answered is not timed.
            state = DONE if len(times) >= to_time - failed else STOPPED
            notes += [f"{len(times)} of {to_time} records timed"] * (state == STOPPED)
    if RunFolder(folder).is_busy:
        state = RUNNING
    return state, "; ".join(notes), f"{done}/{expected or '?'}"
