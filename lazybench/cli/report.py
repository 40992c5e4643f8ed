"""`lazybench report`: write tables, figures and records of runs into a folder."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from lazybench.cli.arguments import BOTH_FORMS, add_runs, folders, read


def main(argv: Sequence[str]) -> int:
    """Write a report and print its warnings, notes and files."""
    parser = ArgumentParser(
        "lazybench report",
        usage="%(prog)s [runs=FOLDER,...] [output=FOLDER] [times=FOLDER,...]",
        description="Tables, figures and one HTML page from run folders.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "folders that hold run folders, or the records/ of an earlier report")
    out = "folder to write; an earlier report in it is replaced (default: %(default)s)"
    times = "folders of runs whose times replace those of the same methods on the same records"
    parser.add_argument("--times", metavar="FOLDER,...", type=folders, default=[], help=times)
    parser.add_argument("--output", metavar="FOLDER", type=Path, default="results/report", help=out)
    flags = read(parser, argv)
    print(f"reading the runs in {', '.join(map(str, flags.runs))}", flush=True)  # the imports below take a second
    from lazybench.analysis.grouping import group
    from lazybench.analysis.run_files import find, with_times
    from lazybench.report.caveats import notes, warnings
    from lazybench.report.write import write

    runs, unreadable = find(flags.runs)
    if flags.times:
        timed, others = find(flags.times, "times")
        runs, unreadable = with_times(runs, timed), unreadable + others
    blocks = group(runs)
    warned = unreadable + [text for block in blocks for text in warnings(block)]
    noted = [f"{block.title}: {text}" for block in blocks for text in notes(block)]
    written, undrawn = write(flags.output, blocks, warned)
    for kind, texts in (("warning", warned), ("note", noted)):
        for text in texts:
            print(f"{kind}: {text}")
    print(f"{len(runs)} runs, {sum(len(run.records) for run in runs)} records; written to {flags.output}:")
    print(f"  {', '.join(written)}")
    if undrawn:
        print(f"not drawn for every model and data, for lack of runs: {'; '.join(undrawn)}")
    return 0
