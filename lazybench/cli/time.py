"""`lazybench time`: time all finished runs of a model side by side."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from lazybench.analysis.labels import setting_of, title_of
from lazybench.cli.app import import_torch
from lazybench.cli.arguments import BOTH_FORMS, add_config_dir, add_runs, read
from lazybench.store.journal import TIMES, read_rows


def main(argv: Sequence[str]) -> int:
    """Time the runs, resuming an earlier start, and print a table of each model."""
    parser = ArgumentParser(
        "lazybench time",
        usage="%(prog)s [runs=FOLDER,...] [records=N]",
        description="Time all finished runs of a model side by side in one process: each record by every method once, "
        "and by the unmodified model first and last. The records are of all datasets in turn. A report then takes all "
        "speedups of a table from it. The same command resumes it.",
        epilog=BOTH_FORMS,
    )
    add_runs(parser, "output folders of runs")
    parser.add_argument("--records", metavar="N", type=int, default=16, help="records to time (default: %(default)s)")
    help_text = "untimed rounds before the first record (default: %(default)s)"
    parser.add_argument("--warmup", metavar="N", type=int, default=5, help=help_text)
    add_config_dir(parser, "where methods of your own are")
    flags = read(parser, argv)
    if flags.records < 1 or flags.warmup < 0:
        parser.error(f"records={flags.records} must be at least 1, and warmup={flags.warmup} at least 0")
    sys.path += [str(folder.absolute()) for folder in flags.config_dir]
    import_torch()
    from lazybench.run.resources import Resources
    from lazybench.run.summary import times_summary
    from lazybench.run.timing import finished_runs, time_together

    resources = Resources()
    for root in flags.runs:
        for jobs in finished_runs(root, resources):
            job = next(iter(jobs.values()))
            print(f"model {job.config.model.name}, data {job.config.data.name}, {len(jobs)} runs", flush=True)
            folder = time_together(jobs, resources, flags.records, flags.warmup)
            labels = {
                f"{path.parent.name}/{path.name}": f"{own.method.label or title_of(own.method.name)} "
                + setting_of(own.method.name, own.settings["method"])
                for path, own in jobs.items()
                if not own.is_baseline
            }
            summary = times_summary(read_rows(folder, TIMES).values(), labels, job.dataset_configs)
            print(f"\n{summary}\nsaved in {folder}")
    return 0
