"""Writes a report: tables, figures, the page, and the records that make it again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lazybench.analysis import paired
from lazybench.analysis.blocks import Block
from lazybench.analysis.run_data import write_compact
from lazybench.report import tables
from lazybench.report.gaps import Gap, gaps, not_run
from lazybench.report.latex import latex, latex_pairs
from lazybench.report.page import Drawing, page
from lazybench.report.render import csv_pairs, csv_text, markdown, markdown_pairs
from lazybench.store.writing import replacing

# A report only replaces a folder that holds nothing but these.
_OURS = re.compile(
    r"(table\d|fidelity|score_by_length|paired)\.(md|csv|tex)|(figure\d|depth_by_length)_.*\.(png|pdf)|records|report\.html"
)
_FORMATS = {"md": markdown, "csv": csv_text, "tex": latex}
_PAIRS = {"md": markdown_pairs, "csv": csv_pairs, "tex": latex_pairs}


def write(
    out: Path, blocks: Sequence[Block], warnings: Sequence[str], heading: bool = True
) -> tuple[list[str], list[Gap]]:
    """Write everything into `out`, in place of an earlier report.

    Args:
        out: the folder.
        blocks: all runs.
        warnings: what to know before comparing numbers.
        heading: whether figures as PNG say what they rest on.

    Returns:
        the names of what was written, and what is missing.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it then stays as it was.
    """
    with replacing(out, _OURS) as folder:
        write_compact((run for block in blocks for run in block.runs), folder / "records")
        lacking = [not_run(block) for block in blocks]
        filled = [table for spec in tables.SPECS if (table := tables.fill(spec, blocks, lacking)).bodies]
        for table in filled:
            for suffix, text in _FORMATS.items():
                (folder / f"{table.spec.name}.{suffix}").write_text(text(table, warnings), "utf-8")
        comparisons = paired.compare(blocks)
        for suffix, text in _PAIRS.items() if comparisons else ():
            (folder / f"{paired.NAME}.{suffix}").write_text(text(comparisons, warnings), "utf-8")
        drawn, missing = _draw(folder, blocks, heading)
        (folder / "report.html").write_text(page(blocks, filled, comparisons, drawn, warnings, missing), "utf-8")
        return sorted(path.name for path in folder.iterdir()), missing


def _draw(folder: Path, blocks: Sequence[Block], heading: bool) -> tuple[list[Drawing], list[Gap]]:
    """Draw every figure that there are runs for.

    Returns:
        what was drawn, and what is missing.
    """
    # matplotlib takes long to import: not before all else has been read and written.
    from lazybench.report.figures import FIGURES
    from lazybench.report.figures.style import save, styled

    drawn, missing = [], []
    with styled():
        for block in blocks:
            undrawn = []
            for figure in FIGURES:
                name = figure.__name__.rpartition(".")[2]
                drawing = figure.draw(block)
                if drawing is None:
                    undrawn += [(name, figure.NEEDS)] if figure.NEEDS else []
                else:
                    png, _ = save(drawing, folder / f"{name}_{block.model}_{block.data}", heading)
                    drawn.append(Drawing(block, name, figure.CAPTION, png))
            missing += gaps(block, undrawn)
    return drawn, missing
