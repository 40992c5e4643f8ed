"""`lazybench report`: write tables, figures and records of runs into a folder."""

from argparse import ArgumentParser
from collections.abc import Sequence

from lazybench.cli.arguments import BOTH_FORMS, add_runs, folder, folders, read
from lazybench.errors import LazyBenchError, suggest


def main(argv: Sequence[str]) -> int:
    """Write a report and print its warnings, notes and files."""
    given = read(_parser(), argv)
    print(f"reading the runs in {', '.join(map(str, given.runs))}", flush=True)  # the imports below take a second
    from lazybench.analysis.grouping import group
    from lazybench.analysis.run_files import find, with_times
    from lazybench.report.caveats import between_models, notes, warnings
    from lazybench.report.tables import MEASURES
    from lazybench.report.write import write

    for key in given.columns:
        if key not in MEASURES:
            raise LazyBenchError(f"columns={key} is none of {', '.join(MEASURES)}")
    runs, unreadable = find(given.runs)
    if given.times:
        timed, others = find(given.times, "times")
        runs, unreadable = with_times(runs, timed), unreadable + others
    methods = dict.fromkeys(run.method for run in runs)
    for name in given.methods:
        if name not in methods:
            raise LazyBenchError(f"methods={name}: no run of it; {suggest(name, methods)}")
    runs = [run for run in runs if run.method in (given.methods or methods)]
    if given.calibrated == "refuse" and (flattered := [run for run in runs if run.calibrated_on]):
        raise LazyBenchError(
            f"{flattered[0].name} ran on {flattered[0].calibrated_on} records that its schedule was calibrated on"
            f"{f', and {len(flattered) - 1} more runs did so' if len(flattered) > 1 else ''}: leave it out with runs=, "
            "or set calibrated=mark to report it, marked"
        )
    blocks = group(runs)
    warned = unreadable + between_models(blocks) + [text for block in blocks for text in warnings(block)]
    noted = [f"{block.title}: {text}" for block in blocks for text in notes(block)]
    written, undrawn = write(given.output, blocks, warned, given.columns)
    for kind, texts in (("warning", warned), ("note", noted)):
        for text in texts:
            print(f"{kind}: {text}")
    print(f"{len(runs)} runs, {sum(len(run.records) for run in runs)} records; written to {given.output}:")
    print(f"  {', '.join(written)}")
    if undrawn:
        print(f"not drawn for every model and data, for lack of runs: {'; '.join(undrawn)}")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "lazybench report",
        usage="%(prog)s [runs=FOLDER,...] [output=FOLDER] [methods=NAME,...] [columns=KEY,...] [KEY=VALUE]",
        description="Tables, figures and one HTML page from run folders.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "folders that hold run folders, or the records/ of an earlier report")
    out = "folder to write; an earlier report in it is replaced (default: %(default)s)"
    times = "folders of runs that were timed apart: theirs are the times of the same methods on the same records"
    parser.add_argument("--times", metavar="FOLDER,...", type=folders, default=[], help=times)
    parser.add_argument("--output", metavar="FOLDER", type=folder, default="results/report", help=out)
    methods = "report these methods alone, by their names (default: all there are)"
    parser.add_argument("--methods", metavar="NAME,...", type=_words, default=[], help=methods)
    columns = "what table1.tex shows, by names of the CSV files' columns such as score,kl (default: as the paper's)"
    parser.add_argument("--columns", metavar="KEY,...", type=_words, default=[], help=columns)
    calibrated = "refuse runs on records that their schedule was calibrated on, or mark them (default: %(default)s)"
    parser.add_argument("--calibrated", choices=("refuse", "mark"), default="refuse", help=calibrated)
    return parser


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
