"""`lazybench report`: words in, a folder of tables, figures and records out."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lazybench.cli.arguments import BOTH_FORMS, add_runs, folder, read
from lazybench.errors import LazyBenchError

if TYPE_CHECKING:
    from lazybench.analysis.run_data import Run


def main(argv: Sequence[str]) -> int:
    """Write a report, and say what is in it and what is missing."""
    given = read(_parser(), argv)
    print(f"reading the runs in {', '.join(map(str, given.runs))}", flush=True)  # the imports below take a second
    from lazybench.analysis.blocks import blocks
    from lazybench.analysis.reading import find
    from lazybench.report.caveats import notes, warnings
    from lazybench.report.write import write

    runs, met = find([str(place) for place in given.runs])
    _refuse_calibrated(runs, given.calibrated)
    grouped = blocks(runs)
    warned = met + [text for block in grouped for text in warnings(block)]
    noted = [f"{block.title}: {text}" for block in grouped for text in notes(block)]
    written, missing = write(given.output, grouped, warned, given.heading == "true")
    for kind, texts in (("warning", warned), ("note", noted)):
        for text in texts:
            print(f"{kind}: {text}")
    print(f"{len(runs)} runs, {sum(len(run.records) for run in runs)} records; written to {given.output}:")
    print(f"  {', '.join(written)}")
    if missing:
        print("missing:")
        for gap in missing:
            print(f"  {gap.what}\n    {gap.here}")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "lazybench report",
        usage="%(prog)s [runs=FOLDER,...] [output=FOLDER] [calibrated=refuse|mark] [heading=true|false]",
        description="Tables, figures and one HTML page from run folders.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "folders that hold run folders, or the records/ of an earlier report")
    out = "folder to write; an earlier report in it is replaced (default: %(default)s)"
    parser.add_argument("--output", metavar="FOLDER", type=folder, default="results/report", help=out)
    seen = "refuse runs on records that their schedule was calibrated on, or mark them (default: %(default)s)"
    parser.add_argument("--calibrated", choices=("refuse", "mark"), default="refuse", help=seen)
    said = "whether figures as PNG say above them what they rest on; those as PDF, for papers, never do (default: true)"
    parser.add_argument("--heading", choices=("true", "false"), default="true", help=said)
    return parser


def _refuse_calibrated(runs: list[Run], told: str) -> None:
    seen = [run for run in runs if run.calibrated_on]
    if seen and told == "refuse":
        raise LazyBenchError(
            f"{seen[0].name} ran on {seen[0].calibrated_on} records that its schedule was calibrated on"
            f"{f', and {len(seen) - 1} more runs did so' if len(seen) > 1 else ''}: leave it out with runs=, or set "
            "calibrated=mark to report it, marked"
        )
