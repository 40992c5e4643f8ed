"""Writes a report: tables, figures, the page, and the records that make it again."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lazybench.analysis.blocks import Block
from lazybench.analysis.paired import compare
from lazybench.analysis.run_data import write_compact
from lazybench.report import tables
from lazybench.report.caveats import notes
from lazybench.report.latex import latex, latex_pairs
from lazybench.report.page import page, section
from lazybench.store.writing import replacing

# A report only replaces a folder that holds nothing but these.
_OURS = re.compile(
    r"(table\d|times|fidelity|longbench|score_by_length|paired)\.(md|csv|tex)|(figure\d|depth_by_length)_.*\.(png|pdf)|records|report\.html"
)
_PAIRED = "paired"
_TITLES = {spec.name: spec.title for spec in tables.SPECS} | {_PAIRED: "Paired tests at equal speed"}
# Of a table about a block: its numbers, its Markdown and its LaTeX.
_Body = tuple[pd.DataFrame, str, str]


def write(
    out: Path, blocks: Sequence[Block], warnings: Sequence[str], columns: Sequence[str] = (), heading: bool = True
) -> tuple[list[str], list[str]]:
    """Write everything into `out`, in place of an earlier report.

    Args:
        out: the folder.
        blocks: all runs.
        warnings: what to know before comparing numbers.
        columns: keys of the measures in `table1.tex`; none for those of the paper's Table 1.
        heading: whether figures as PNG say what they rest on.

    Returns:
        the names of what was written, and of each figure that there are no runs for with what it needs.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it then stays as it was.
    """
    with replacing(out, _OURS) as folder:
        write_compact((run for block in blocks for run in block.runs), folder / "records")
        bodies: dict[str, list[_Body]] = {name: [] for name in _TITLES}
        sections, undrawn = [], []
        for block in blocks:
            said, shown, lines = notes(block), [], tables.numbers(block)
            for spec in tables.SPECS:
                if (chosen := tables.select(spec, lines)).empty:
                    continue
                cells, lacking = tables.shown(spec, block, chosen), tables.lacking(spec, block, chosen)
                shown.append((spec.title, cells, lacking))
                named = [tables.MEASURES[key] for key in columns if spec.name == "table1" and key in lines]
                tex = [
                    *map(_comment, said),
                    latex(spec, named, block, lines[~lines["by_dataset"]] if named else chosen),
                ]
                text = _markdown(block, cells, [lacking, *(f"- {note}" for note in said)])
                bodies[spec.name].append((chosen.drop(columns="title"), text, "\n".join(tex)))
            pairs = compare(block)
            if len(pairs):
                text = _markdown(block, tables.pairs_shown(pairs), [])
                bodies[_PAIRED].append((pairs, text, latex_pairs(block, pairs)))
            drawn, lacks = _draw(folder, block, heading)
            undrawn += lacks
            sections.append(section(block, shown, pairs, drawn))
        for name, of in bodies.items():
            if of:
                _put(folder / name, warnings, of)
        (folder / "report.html").write_text(page(sections, warnings), "utf-8")
        return sorted(path.name for path in folder.iterdir()), list(dict.fromkeys(undrawn))


def _put(path: Path, warnings: Sequence[str], bodies: Sequence[_Body]) -> None:
    """Write a table as CSV, Markdown and LaTeX."""
    numbers, texts, tex = zip(*bodies, strict=True)
    title = _TITLES[path.name]
    pd.concat(numbers).to_csv(path.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")
    warned = [f"> **Warning:** {warning}\n" for warning in warnings]
    text = "\n\n".join([f"# {title}", *warned, *texts, "## How to read the tables", tables.READING])
    path.with_suffix(".md").write_text(text, "utf-8")
    head = [title, "Needs \\usepackage{booktabs,graphicx}.", *(f"Warning: {warning}" for warning in warnings)]
    path.with_suffix(".tex").write_text("\n".join([*map(_comment, head), *tex]) + "\n", "utf-8")


def _markdown(block: Block, cells: pd.DataFrame, said: Sequence[str]) -> str:
    texts = cells.map(lambda cell: (cell if isinstance(cell, str) else " ".join(cell)).replace("|", "\\|"))
    if "Task" in texts:
        texts["Task"] = texts["Task"].mask(texts["Task"].duplicated(), "")
    sides = ["left"] * 2 + ["right"] * (len(texts.columns) - 2)
    # Without what aligns the columns: one long label would widen all lines, and one number change them.
    table = texts.to_markdown(index=False, disable_numparse=True, colalign=sides)
    table = re.sub("-{4,}(?=:?[|])", "---", re.sub(" {2,}", " ", table))
    return "\n".join([f"## {block.title}\n", table, "", *filter(None, said)])


def _comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def _draw(folder: Path, block: Block, heading: bool) -> tuple[list[dict[str, str]], list[str]]:
    """Draw every figure that there are runs for; returns what the page shows of each, and what could not be drawn."""
    # matplotlib takes long to import: not before all else has been read.
    from lazybench.report.figures import FIGURES
    from lazybench.report.figures.style import save, styled

    drawn, undrawn = [], []
    with styled():
        for figure in FIGURES:
            name = figure.__name__.rpartition(".")[2]
            drawing = figure.draw(block)
            if drawing is not None:
                png, _ = save(drawing, folder / f"{name}_{block.model}_{block.data}", heading)
                data = base64.b64encode(png.read_bytes()).decode()
                drawn.append({"name": name, "caption": figure.CAPTION, "data": data})
            elif figure.NEEDS and block.of_longbench:
                undrawn.append(f"{name} ({figure.NEEDS})")
    return drawn, undrawn
