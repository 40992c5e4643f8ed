"""`lazybench status`: what has become of each run."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lazybench.analysis.console import table
from lazybench.cli.arguments import BOTH_FORMS, add_runs, read
from lazybench.errors import LazyBenchError
from lazybench.store.survey import DONE, FAILED, RUNNING, STOPPED, in_few_words, run_folders, state_of


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
        of = state_of(folder)
        model, data, method, digest = folder.relative_to(output).parts
        settings = in_few_words(of.settings.get("method") or {}) or digest
        records = "/".join("?" if count is None else str(count) for count in (of.done, of.records))
        yield [of.state, str(of.settings.get("task", "")), model, data, f"{method} {settings}", of.note, records]
