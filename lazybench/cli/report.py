"""`lazybench report`: write tables, figures and records of runs into a folder."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from lazybench.cli.arguments import BOTH_FORMS, add_runs, read


def main(argv: Sequence[str]) -> int:
    """Write a report and print its notes and files."""
    parser = ArgumentParser(
        "lazybench report",
        usage="%(prog)s [runs=FOLDER,...] [output=FOLDER]",
        description="Tables, figures and one HTML page from run folders.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "folders that hold run folders, or earlier reports")
    out = "folder to write; an earlier report in it is replaced (default: %(default)s)"
    parser.add_argument("--output", metavar="FOLDER", type=Path, default="results/report", help=out)
    flags = read(parser, argv)
    print(f"reading the runs in {', '.join(map(str, flags.runs))}", flush=True)  # the imports below take a second
    from lazybench.analysis.blocks import group
    from lazybench.analysis.records import find
    from lazybench.report.write import write

    blocks = group(*find(flags.runs))
    written = write(flags.output, blocks)
    for block in blocks:
        print("\n  ".join([f"{block.title}, {block.conditions}", *block.notes()]))
    print(f"{sum(len(block.runs) for block in blocks)} runs; written to {flags.output}:")
    print(f"  {', '.join(written)}")
    return 0
