"""Writes a report: tables, figures, the page, and the records that make it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from lazybench.analysis.blocks import Block
from lazybench.analysis.paired import compare
from lazybench.analysis.run_data import write_compact
from lazybench.report import tables
from lazybench.report.caveats import notes
from lazybench.report.latex import latex, latex_pairs
from lazybench.report.page import Drawing, page, section
from lazybench.store.writing import replacing

# A report only replaces a folder that holds nothing but these.
_OURS = re.compile(
    r"(table\d|fidelity|score_by_length|paired)\.(md|csv|tex)|(figure\d|depth_by_length)_.*\.(png|pdf)|records|report\.html"
)
_PAIRED = "Paired tests at equal speed"
_CSV = {"index": False, "float_format": "%.6g", "lineterminator": "\n"}


def write(
    out: Path, blocks: Sequence[Block], warnings: Sequence[str], columns: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Write everything into `out`, in place of an earlier report.

    Args:
        out: the folder.
        blocks: all runs.
        warnings: what to know before comparing numbers.
        columns: keys of the measures in `table1.tex`; none for those of the paper's Table 1.

    Returns:
        the names of what was written, and of each figure that there are no runs for with what it needs.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it then stays as it was.
    """
    with replacing(out, _OURS) as folder:
        write_compact((run for block in blocks for run in block.runs), folder / "records")
        numbers = [tables.numbers(block) for block in blocks]
        drawn, undrawn = _draw(folder, blocks)
        shown: list[list[tuple[str, pd.DataFrame, str]]] = [[] for _ in blocks]
        reading: list[str] = []
        for spec in tables.SPECS:
            of_blocks = [
                (block, lines, tables.select(spec, lines), parts)
                for block, lines, parts in zip(blocks, numbers, shown, strict=True)
                if block.by_length or not spec.by_length
            ]
            if not of_blocks:
                continue
            every = pd.concat([chosen for _, _, chosen, _ in of_blocks])
            every.to_csv(folder / f"{spec.name}.csv", **_CSV)
            text, tex = [], []
            for block, lines, chosen, parts in of_blocks:
                cells, lacking = tables.shown(spec, block, chosen), tables.lacking(spec, block, chosen)
                said = [tables.tasks_note(block), *notes(block)]
                parts += [(spec.title, cells, lacking)] if len(chosen) else []
                text.append(_markdown(block, cells, [lacking, *(f"- {note}" for note in said)]))
                tex += [*map(_comment, said), _latex(spec, block, lines, chosen, columns)]
            explained = list(tables.explained(spec, blocks, every))
            reading += explained
            how = "\n".join(["## How to read it", "", *(f"- {note}" for note in explained)])
            _put(folder / spec.name, spec.title, warnings, [*text, how], tex)
        paired = [compare(block) for block in blocks]
        if found := [(block, pairs) for block, pairs in zip(blocks, paired, strict=True) if len(pairs)]:
            pd.concat([pairs for _, pairs in found]).to_csv(folder / "paired.csv", **_CSV)
            text = [_markdown(of, tables.pairs_shown(pairs), [tables.pairs_caption(pairs)]) for of, pairs in found]
            _put(folder / "paired", _PAIRED, warnings, text, [latex_pairs(block, pairs) for block, pairs in found])
        sections = [section(*of) for of in zip(blocks, shown, paired, drawn, strict=True)]
        (folder / "report.html").write_text(page(sections, warnings, dict.fromkeys(reading)), "utf-8")
        return sorted(path.name for path in folder.iterdir()), undrawn


def _put(path: Path, title: str, warnings: Sequence[str], text: Iterable[str], tex: Iterable[str]) -> None:
    """Write a table's Markdown and LaTeX."""
    warned = "".join(f"> **Warning:** {warning}\n>\n" for warning in warnings)
    path.with_suffix(".md").write_text(
        "\n".join([f"# {title}\n", *([warned] if warned else []), *text]) + "\n", "utf-8"
    )
    head = [title, "Needs \\usepackage{booktabs,graphicx}.", *(f"Warning: {warning}" for warning in warnings)]
    path.with_suffix(".tex").write_text("\n".join([*map(_comment, head), *tex]) + "\n", "utf-8")


def _markdown(block: Block, cells: pd.DataFrame, said: Sequence[str]) -> str:
    texts = cells.map(lambda cell: (cell if isinstance(cell, str) else " ".join(cell)).replace("|", "\\|"))
    first = texts.columns[0]
    if first == "Task":
        texts[first] = texts[first].mask(texts[first].duplicated(), "")
    sides = ["left"] * 2 + ["right"] * (len(texts.columns) - 2)
    table = texts.to_markdown(index=False, disable_numparse=True, colalign=sides) if len(texts) else "No runs."
    return "\n".join([f"## {block.head}\n", table, "", *filter(None, said), ""])


def _latex(spec: tables.Spec, block: Block, lines: pd.DataFrame, chosen: pd.DataFrame, columns: Sequence[str]) -> str:
    if spec.name == "table1" and columns:
        chosen, measures = lines, [tables.MEASURES[key] for key in columns]
    else:
        measures = [of for of in spec.measures if of.key in spec.in_paper or not spec.in_paper]
    measures = [of for of in measures if tables.taken(of, chosen)] if len(chosen) else []
    title = ", ".join(of.title.removesuffix(" (×)") for of in measures)
    return latex(spec.name, title, measures, block, chosen) if measures else _comment("nothing was measured")


def _comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def _draw(folder: Path, blocks: Sequence[Block]) -> tuple[list[list[Drawing]], list[str]]:
    """Draw every figure that there are runs for.

    Returns:
        what was drawn of each block, and what could not be.
    """
    # matplotlib takes long to import: not before all else has been read.
    from lazybench.report.figures import FIGURES
    from lazybench.report.figures.style import save, styled

    drawn: list[list[Drawing]] = [[] for _ in blocks]
    undrawn: dict[str, None] = {}
    with styled():
        for block, of_block in zip(blocks, drawn, strict=True):
            for figure in FIGURES:
                name = figure.__name__.rpartition(".")[2]
                drawing = figure.draw(block)
                if drawing is not None:
                    png, _ = save(drawing, folder / f"{name}_{block.model}_{block.data}")
                    of_block.append(Drawing(block, name, figure.CAPTION, png))
                elif figure.NEEDS and block.of_longbench:
                    undrawn[f"{name} ({figure.NEEDS})"] = None
    return drawn, list(undrawn)
