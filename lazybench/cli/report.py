"""The command: words in, a folder of tables, figures and records out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazybench.cli import words
from lazybench.errors import LazyBenchError, suggest
from lazybench.report import records, render, tables
from lazybench.report.blocks import Block, blocks
from lazybench.report.gaps import Gap, gaps
from lazybench.report.notes import notes
from lazybench.report.page import page
from lazybench.report.run_data import Run
from lazybench.report.sources import find
from lazybench.report.warnings import warnings
from lazybench.store.output import replacing

_DEFAULTS = {"runs": "results/runs", "out": "results/report", "calibrated": "refuse"}
_USAGE = """\
lazybench report: tables, figures and one HTML page from run folders

  python -m lazybench report
  python -m lazybench report runs=results/runs,OTHER out=results/report

  runs  folders that hold run folders, or the records/ of an earlier report; several with commas
        (default results/runs)
  out   folder to write; an earlier report in it is replaced (default results/report)
  calibrated  refuse runs on records that their schedule was calibrated on, or mark them (default refuse)"""


def main(argv: Sequence[str]) -> int:
    """Write a report.

    Args:
        argv: `key=value` words, or `--help`.

    Returns:
        0.

    Raises:
        LazyBenchError: a word is unknown, there are no runs, a run cannot be read, or `out` cannot be written.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(_USAGE)
        return 0
    given = words.settings(argv, _DEFAULTS)
    if given["calibrated"] not in ("refuse", "mark"):
        raise LazyBenchError(f"calibrated={given['calibrated']}: {suggest(given['calibrated'], ['refuse', 'mark'])}")
    runs, met = find([place for place in given["runs"].split(",") if place])
    _refuse_calibrated(runs, given["calibrated"])
    grouped = blocks(runs)
    said = met + [text for block in grouped for text in warnings(block)]
    out = Path(given["out"])
    with replacing(out) as folder:
        missing = _write(folder, runs, grouped, said)
        written = sorted(str(path.relative_to(folder)) for path in folder.iterdir())
    _tell(out, runs, grouped, written, said, missing)
    return 0


def _refuse_calibrated(runs: list[Run], told: str) -> None:
    seen = [run for run in runs if run.calibrated_on]
    if seen and told == "refuse":
        raise LazyBenchError(
            f"{seen[0].name} ran on {seen[0].calibrated_on} records that its schedule was calibrated on"
            f"{f', and {len(seen) - 1} more runs did so' if len(seen) > 1 else ''}: leave it out with runs=, or set "
            "calibrated=mark to report it, marked"
        )


def _write(folder: Path, runs: list[Run], grouped: list[Block], said: list[str]) -> list[Gap]:
    """Write everything into `folder`, and return what is missing."""
    # Drawing is what takes long to import: bad words and places are told before it.
    from lazybench.report.figures import FIGURES
    from lazybench.report.figures.style import save, styled

    records.write(runs, folder / "records")
    filled = [tables.fill(spec, grouped) for spec in tables.SPECS]
    for table in filled:
        for suffix, text in render.FORMATS.items():
            (folder / f"{table.spec.name}.{suffix}").write_text(text(table, said), "utf-8")
    drawn, missing = [], []
    with styled():
        for block in grouped:
            undrawn = []
            for figure in FIGURES:
                drawing = figure.draw(block)
                if drawing is None:
                    undrawn.append((figure.name, figure.needs))
                else:
                    png, _ = save(drawing, folder / f"{figure.name}_{block.file_stem}")
                    drawn.append((f"{figure.caption}. {block.title}", png))
            missing += gaps(block, undrawn)
    (folder / "report.html").write_text(page(grouped, filled, drawn, said, missing), "utf-8")
    return missing


def _tell(
    out: Path, runs: list[Run], grouped: list[Block], written: list[str], said: list[str], missing: list[Gap]
) -> None:
    for text in said:
        print(f"warning: {text}")
    for block in grouped:
        for text in notes(block):
            print(f"note: {block.title}: {text}")
    print(f"{len(runs)} runs, {sum(len(run.records) for run in runs)} records; written to {out}:")
    print(f"  {', '.join(written)}")
    if missing:
        print("missing:")
        for gap in missing:
            print(f"  {gap.what}\n    {gap.here}")
