"""`lazybench status`: what has become of each run."""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.cli.arguments import BOTH_FORMS, add_runs, read
from lazybench.errors import LazyBenchError
from lazybench.store.journal import PREDICTIONS, read_rows
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, FAILURE, RunFolder
from lazybench.store.survey import about, run_folders, scored_records

RUNNING, FAILED, STOPPED, DONE = "running", "failed", "stopped", "done"


def main(argv: Sequence[str]) -> int:
    """Print the runs of some output folders."""
    parser = ArgumentParser(
        "lazybench status",
        usage="%(prog)s [runs=FOLDER,...]",
        description="What has become of each run: running; failed, with the last line of why; stopped (by a person or "
        "a scheduler, or records of it have gone); done. The command that started a run goes on where it stopped. "
        "What a sweep has not begun yet, lazybench plan shows.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "output folders of runs")
    rows = [row for output in read(parser, argv).runs for row in _rows(output)]
    rows.sort(key=lambda row: (RUNNING, FAILED, STOPPED, DONE).index(row[0]))
    print(table(["state", "task", "model", "data", "method", "", "records"], rows, left=6))
    print("\n" + ", ".join(f"{count} {state}" for state, count in Counter(row[0] for row in rows).items()))
    return 0


def _rows(output: Path) -> Iterator[list[str]]:
    if not output.is_dir():
        raise LazyBenchError(f"runs={output}: no such folder")
    # Other folders that hold a `config.yaml` are no runs.
    folders = [folder for folder in run_folders(output) if len(folder.relative_to(output).parts) == 4]
    if not folders:
        raise LazyBenchError(f"runs={output}: no runs there; make one: lazybench run method=lazyllm task=code")
    for folder in folders:
        settings, environment = about(folder)
        model, data, method, digest = folder.relative_to(output).parts
        method = f"{method} {setting_of(method, settings.get('method') or {}) or digest}"
        state, note, records = _state(folder, settings, environment)
        yield [state, str(settings.get("task", "")), model, data, method, note, records]


def _state(folder: Path, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[str, str, str]:
    """State, note and records of a run. One that was killed is stopped: it could not say so."""
    notes = [path.read_text("utf-8") for path in sorted(folder.glob(f"{Path(FAILURE).stem}*.txt"))]
    state, done, scored = FAILED if notes else STOPPED, None, scored_records(folder)
    try:
        rows = read_rows(folder, PREDICTIONS)
        done = len(rows)
        # Earlier versions gave such a run scores.
        if scored and rows and all(row.get("error") for row in rows.values()):
            state = FAILED
            notes.append("all records failed")
        if lost := max(0, (scored or 0) - done):
            notes.append(f"{lost} of the {scored} records that its scores are about are gone")
    except LazyBenchError as error:
        notes.append(str(error))
    if missing := " and ".join(name for name, said in ((CONFIG, settings), (ENVIRONMENT, environment)) if not said):
        notes.append(f"{missing} missing: a report leaves it out")
    if RunFolder(folder).is_busy:
        state = RUNNING
    elif scored is not None and not notes:
        state = DONE
    counts = done, sum((settings.get("records_of") or {}).values()) or scored
    return state, "; ".join(notes), "/".join("?" if count is None else str(count) for count in counts)
