"""Write a report: tables, figures, the page, and compact records from which `report` can make it again."""

import base64
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from lazybench.analysis.averages import Measure
from lazybench.analysis.grouping import Block
from lazybench.analysis.labels import label, title_of
from lazybench.analysis.paired import compare
from lazybench.analysis.run_data import Run
from lazybench.analysis.run_files import write_compact
from lazybench.report import paper, tables
from lazybench.report.caveats import gaps, notes, settings
from lazybench.report.latex import latex
from lazybench.store.writing import replacing

_PAIRED, _INTERVALS = "paired", "intervals"
_TITLES = {spec.name: spec.title for spec in tables.SPECS} | {_INTERVALS: "All numbers, with 95% intervals"}
_TITLES[_PAIRED] = "Paired tests at equal speed"
# A report replaces only a folder that holds nothing else; earlier versions wrote `times` and `..._by_length`.
_OURS = re.compile(
    rf"({'|'.join(_TITLES)}|times|score_by_length)\.(md|csv|tex)|(figure\d|depth_by_length|speed_against_[a-z]+)_.*\.(png|pdf)"
    r"|records|report\.html"
)
# Of the paired tests in LaTeX; `reading.md` has more.
_HOW = (
    "KL ratio: below 1 the first is nearer to the unmodified model. p: Wilcoxon's signed-rank test over records, "
    "Holm-corrected for {} comparisons. Score difference: first minus second. Brackets: 95% confidence intervals"
)
_BOLD = "bold: the best method of a task, where its 95% interval excludes the second best's value"
_PAPER = f"{paper.TITLE}: all of LongBench on an A100; in a method's first row, as it states no settings"
_TEXTS = ("Measure", "Task", "Method", "First", "Second")  # columns to align left
_Table = tuple[str, Sequence[Measure], pd.DataFrame, pd.DataFrame]  # title, measures, lines of `numbers`, and cells
_Body = tuple[pd.DataFrame, str, str]  # a part of a table's files: its numbers, Markdown and LaTeX


def write(out: Path, blocks: Sequence[Block], warnings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Write everything into the folder `out`, replacing an earlier report.

    `warnings` are shown before the numbers on the page, and below them in tables.

    Returns:
        The names of the written files, and the figures that lack runs, each with the runs that it needs.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it is then unchanged.
    """
    lines = pd.concat(map(tables.numbers, blocks))
    with replacing(out, _OURS) as folder:
        write_compact((run for block in blocks for run in block.runs), folder / "records")
        bodies: dict[str, list[_Body]] = {name: [] for name in _TITLES}
        for data in dict.fromkeys(block.data for block in blocks):
            group = [block for block in blocks if block.data == data]
            for spec in tables.specs(group):
                size = 2 if spec.as_paper else 1
                for start in range(0, len(group), size):
                    bodies[spec.name] += _body(spec, group[start : start + size], lines, warnings)
        sections, undrawn = [], []
        for block in blocks:
            drawn, lacking = _draw(folder, block)
            sections.append(_section(block, lines, warnings, bodies) | {"drawings": drawn})
            undrawn += lacking
        for name, parts in bodies.items():
            if parts:
                _write_table(folder / name, parts)
        (folder / "report.html").write_text(_page(sections, warnings), "utf-8")
        return sorted(path.name for path in folder.iterdir()), list(dict.fromkeys(undrawn))


def _tables(spec: tables.Spec, blocks: Sequence[Block], selected: pd.DataFrame) -> list[_Table]:
    """Format the selected lines of models on the same data, side by side: one table, two, or none without lines."""
    is_longbench = all(run.settings["data"].get("source") == "longbench" for block in blocks for run in block.runs)
    return [
        (title, measures, own, tables.shown(measures, own, beside_paper=is_longbench and measures == spec.as_paper))
        for title, measures, own in (tables.split(spec, selected) if len(selected) else ())
    ]


def _note(blocks: Sequence[Block], made: Sequence[_Table]) -> list[str]:
    """Return the sentences below tables; one about a single model of several begins with the model's title."""
    from lazybench.report.figures.style import subtitle  # matplotlib takes long to import

    measures, lines = made[-1][1], pd.concat(lines for _, _, lines, _ in made)
    texts = {}
    for block in blocks:
        own = lines[lines["model"] == block.model]
        facts = subtitle(block, block.rows).removeprefix(f"{block.title}; ")
        texts[block.model] = [facts, *gaps(own, measures), *settings(block, own), *notes(block)]
    note = [text for text in texts[blocks[0].model] if all(text in own for own in texts.values())]
    for model, own in texts.items():
        different = [text for text in own if text not in note]
        note += [f"{title_of(model, 'model')}: {'. '.join(different)}"] * bool(different)
    note += [_BOLD] * any(text.startswith("**") for *_, cells in made for text in cells.to_numpy().flat)
    return note + [_PAPER] * (paper.TITLE in made[0][3])


def _body(spec: tables.Spec, blocks: Sequence[Block], lines: pd.DataFrame, warnings: Sequence[str]) -> list[_Body]:
    """Format a table's part of its files, if there is any: one or two tables, and the note below them."""
    selected = tables.select(spec, blocks, lines)
    made = _tables(spec, blocks, selected)
    if not made:
        return []
    title = f"{' and '.join(block.model_title for block in blocks)} on {blocks[0].data_title}"
    name, tex = "-".join([spec.name, *(block.model for block in blocks), blocks[0].data]), ""
    for part in made:
        caption = f"{part[0].removeprefix(f'Table {spec.name[-1]}. ')}: {title}."
        tex += latex(name + "-other" * (part[0] != spec.title), caption, part[3], _note(blocks, [part]), warnings)
    note = [*_note(blocks, made), *warnings]
    markdown = _markdown(title, {heading: _flat(cells) for heading, *_, cells in made}, note)
    return [(selected.filter(spec.columns), markdown, tex)]


def _section(
    block: Block, lines: pd.DataFrame, warnings: Sequence[str], bodies: dict[str, list[_Body]]
) -> dict[str, Any]:
    """Return a block's section of the page; add its intervals and paired tests to `bodies`."""
    made = [_tables(spec, [block], tables.select(spec, [block], lines)) for spec in tables.specs([block])]
    facts, *texts = dict.fromkeys(text for several in made if several for text in _note([block], several))
    section: dict[str, Any] = {"block": block, "facts": facts, "notes": texts}
    section["tables"] = [(title, _flat(cells)) for several in made for title, *_, cells in several]
    values = tables.intervals(block, lines[(lines["model"] == block.model) & (lines["data"] == block.data)])
    cells = values.iloc[:, 5:].rename(columns={"title": "task", "name": "method"}).rename(columns=str.capitalize)
    cells = cells.dropna(axis=1, how="all").map(_text)
    values = values.drop(columns=["title", "name"])
    if len(values):
        bodies[_INTERVALS].append((values, _markdown(block.title, {"": cells}, warnings), ""))
    pairs = compare(block)
    if len(pairs):
        cells = section["pairs"] = tables.pairs_shown(pairs)
        title, note = f"{_TITLES[_PAIRED]}: {block.title}.", [_HOW.format(pairs["comparisons"].iloc[0])]
        tex = latex(f"{_PAIRED}-{block.model}-{block.data}", title, cells, note, warnings)
        bodies[_PAIRED].append((pairs, _markdown(block.title, {"": cells}, warnings), tex))
    return section | {"runs": [_run(run) for run in block.runs]}


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else tables.NONE if pd.isna(value) else f"{value:.4g}"


def _flat(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells with one title a column, with the model's where there are several."""
    is_single = cells.columns.get_level_values(0).nunique() <= 2
    titles = [title if is_single or not model else f"{model}: {title}" for model, title in cells.columns]
    return cells.set_axis(titles, axis=1)


def _write_table(path: Path, bodies: Sequence[_Body]) -> None:
    numbers, texts, tex = zip(*bodies, strict=True)
    title = _TITLES[path.name]
    pd.concat(numbers).to_csv(path.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")
    text = "\n\n".join([f"# {title}", *texts, "## How to read the tables", tables.READING])
    path.with_suffix(".md").write_text(text, "utf-8")
    if any(tex):
        head = [f"% {title}", "% Needs \\usepackage{booktabs}."]
        path.with_suffix(".tex").write_text("\n".join([*head, *tex]), "utf-8")


def _markdown(title: str, parts: Mapping[str, pd.DataFrame], note: Sequence[str]) -> str:
    """Format tables by title, and the note below them; repeated texts in a table's first column are blank."""
    texts = [f"## {title}"]
    for heading, cells in parts.items():
        rows = cells.replace({r"\n": " ", r"\|": r"\\|"}, regex=True)
        rows.isetitem(0, rows.iloc[:, 0].mask(rows.iloc[:, 0] == rows.iloc[:, 0].shift(), ""))
        lines = [[*rows], [":---" if name in _TEXTS else "---:" for name in rows], *rows.to_numpy().tolist()]
        texts += [f"### {heading}"] * (len(texts) > 1) + ["\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*texts, "\n".join(f"- {text}" for text in note)])


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
