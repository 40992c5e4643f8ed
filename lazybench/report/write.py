"""Write a report: tables, figures, the page, and compact records from which `report` can make it again."""

import base64
import json
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from lazybench.analysis.grouping import Block
from lazybench.analysis.labels import label, title_of
from lazybench.analysis.paired import compare
from lazybench.analysis.run_data import Run
from lazybench.analysis.run_files import write_compact
from lazybench.report import tables
from lazybench.report.caveats import notes
from lazybench.report.latex import latex
from lazybench.store.writing import replacing

_PAIRED = "paired"
_TITLES = {spec.name: spec.title for spec in tables.SPECS} | {_PAIRED: "Paired tests at equal speed"}
# A report replaces only a folder that holds nothing else; earlier versions wrote `times` and `..._by_length`.
_OURS = re.compile(
    rf"({'|'.join(_TITLES)}|times|score_by_length)\.(md|csv|tex)|(figure\d|depth_by_length|speed_against_[a-z]+)_.*\.(png|pdf)"
    r"|records|report\.html"
)
# Of the paired tests in LaTeX; `reading.md` has more.
_CAPTION = (
    "KL ratio: below 1 the first is nearer to the unmodified model. p: Wilcoxon's signed-rank test over records, "
    "Holm-corrected for {} comparisons. Score difference: first minus second. Brackets: 95% confidence intervals."
)
_Body = tuple[pd.DataFrame, str, str]  # a table of a block: its numbers, Markdown and LaTeX


def write(out: Path, blocks: Sequence[Block], warnings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Write everything into `out`, replacing an earlier report.

    Args:
        out: the folder.
        blocks: the runs to report.
        warnings: shown before the numbers.

    Returns:
        The names of the written files, and the figures that lack runs, each with the runs that it needs.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it is then unchanged.
    """
    with replacing(out, _OURS) as folder:
        write_compact((run for block in blocks for run in block.runs), folder / "records")
        bodies: dict[str, list[_Body]] = {name: [] for name in _TITLES}
        sections, undrawn = [], []
        for block in blocks:
            drawn, lacking = _draw(folder, block)
            sections.append(_section(block, bodies) | {"drawings": drawn})
            undrawn += lacking
        for name, parts in bodies.items():
            if parts:
                _write_table(folder / name, warnings, parts)
        (folder / "report.html").write_text(_page(sections, warnings), "utf-8")
        return sorted(path.name for path in folder.iterdir()), list(dict.fromkeys(undrawn))


def _section(block: Block, bodies: dict[str, list[_Body]]) -> dict[str, Any]:
    """Add a block's tables to `bodies`, and return its section of the page."""
    from lazybench.report.figures.style import subtitle  # matplotlib takes long to import

    facts = subtitle(block, block.rows).removeprefix(f"{block.title}; ")
    section: dict[str, Any] = {"block": block, "facts": facts, "notes": notes(block), "tables": []}
    numbers, pairs = tables.numbers(block), compare(block)
    for spec in tables.specs(block):
        lines = tables.select(spec, numbers)
        if len(lines):
            cells = tables.shown(spec.measures, lines)
            section["tables"].append((spec.title, cells))
            printed = [measure for measure in spec.measures if measure.key in spec.in_paper] or spec.measures
            tex = _latex(spec.name, block, tables.shown(printed, lines), f"†: see the remark in {spec.name}.md.")
            tex = "".join(f"% {note}\n" for note in section["notes"]) + tex
            bodies[spec.name].append((lines.drop(columns="title"), _markdown(block, cells, section["notes"]), tex))
    if len(pairs):
        cells = section["pairs"] = tables.pairs_shown(pairs)
        narrow = cells.drop(columns=["Records with KL", "Lower KL under first"], errors="ignore")
        tex = _latex(_PAIRED, block, narrow, _CAPTION.format(pairs["comparisons"].iloc[0]))
        bodies[_PAIRED].append((pairs, _markdown(block, cells, []), tex))
    return section | {"runs": [_run(run) for run in block.runs]}


def _latex(name: str, block: Block, cells: pd.DataFrame, remark: str) -> str:
    return latex(f"{name}-{block.model}-{block.data}", f"{_TITLES[name]}: {block.title}. {remark}", cells)


def _write_table(path: Path, warnings: Sequence[str], bodies: Sequence[_Body]) -> None:
    numbers, texts, tex = zip(*bodies, strict=True)
    title = _TITLES[path.name]
    pd.concat(numbers).to_csv(path.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")
    warned = [f"> **Warning:** {warning}\n" for warning in warnings]
    text = "\n\n".join([f"# {title}", *warned, *texts, "## How to read the tables", tables.READING])
    path.with_suffix(".md").write_text(text, "utf-8")
    head = [title, "Needs \\usepackage{booktabs}.", *(f"Warning: {warning}" for warning in warnings)]
    comments = [f"% {' '.join(line.split())}" for line in head]
    path.with_suffix(".tex").write_text("\n".join([*comments, *tex]), "utf-8")


def _markdown(block: Block, cells: pd.DataFrame, notes: Sequence[str]) -> str:
    texts = cells.replace({r"\n": " ", r"\|": r"\\|"}, regex=True)
    if "Task" in texts:
        texts["Task"] = texts["Task"].mask(texts["Task"].duplicated(), "")
    sides = ["left"] * 2 + ["right"] * (len(texts.columns) - 2)
    table = texts.to_markdown(index=False, disable_numparse=True, colalign=sides)
    # Columns are not aligned: one long label would widen all lines, and one number change them.
    table = re.sub("-{4,}(?=:?[|])", "---", re.sub(" {2,}", " ", table))
    return "\n".join([f"## {block.title}\n", table, "", *(f"- {note}" for note in notes)])


def _draw(folder: Path, block: Block) -> tuple[list[dict[str, str]], list[str]]:
    """Draw the figures of a block; return those for the page, and those that lack runs with the runs they need."""
    # matplotlib takes long to import.
    from lazybench.report.figures.drawings import FIGURES
    from lazybench.report.figures.style import save, styled

    captions = yaml.safe_load(files("lazybench.report.figures").joinpath("captions.yaml").read_text("utf-8"))
    drawn, lacking = [], []
    with styled():
        for draw in FIGURES:
            name, figure = draw.__name__, draw(block)
            if figure is not None:
                png, _ = save(figure, folder / f"{name}_{block.model}_{block.data}")
                data = base64.b64encode(png.read_bytes()).decode()
                drawn.append({"name": name, "caption": captions[name]["caption"], "data": data})
            else:
                lacking.append(f"{name} ({captions[name]['needs']})")
    return drawn, lacking


def _page(sections: Sequence[dict[str, Any]], warnings: Sequence[str]) -> str:
    """Render `page.html`: a page without external resources."""
    template = Environment(loader=PackageLoader("lazybench.report", ""), autoescape=True).get_template("page.html")
    reading = [line.removeprefix("- ") for line in tables.READING.splitlines()]
    return template.render(sections=sections, warnings=warnings, reading=reading) + "\n"


def _run(run: Run) -> dict[str, str]:
    expected = "" if run.finished else f" of {sum(map(run.expected, run.datasets)):,}"
    words = run.environment.get("command")
    environment = {key: value for key, value in run.environment.items() if key != "command"}
    return {
        "label": label(run),
        "state": "finished" if run.finished else "unfinished",
        "facts": f"{title_of(str(run.settings['task']), 'task')}, {len(run.records):,}{expected} records",
        "command": shlex.join(["python", "-m", "lazybench", *words]) if words else "",
        "settings": yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True),
        "environment": json.dumps(environment, indent=2),
    }
