"""The report as one page of HTML that loads nothing from anywhere."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import yaml

from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import label
from lazybench.analysis.paired import TITLE, Comparison
from lazybench.analysis.run_data import Run
from lazybench.report import about
from lazybench.report.columns import columns
from lazybench.report.commands import FOLDER, again
from lazybench.report.gaps import Gap
from lazybench.report.page_filter import controls, script
from lazybench.report.page_style import STYLE
from lazybench.report.tables import Body, Table

# Which figure says most of a block, before those that are not named.
_FIRST = ("figure5", "depth_by_length", "figure7", "figure1", "figure2")
_LONG = 120  # characters of warnings that may stand above the numbers


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn: whose runs it shows, its module's name, its caption and its PNG."""

    block: Block
    name: str
    caption: str
    png: Path


def page(
    blocks: Sequence[Block],
    tables: Sequence[Table],
    comparisons: Sequence[Comparison],
    drawings: Sequence[Drawing],
    warnings: Sequence[str],
    gaps: Sequence[Gap],
) -> str:
    """The whole page: for each model and data what was run, the figure that says most of it, tables, tests, the runs.

    Args:
        blocks: all runs.
        tables: the filled tables.
        comparisons: methods at equal speed, two by two.
        drawings: the figures.
        warnings: what to know before comparing numbers.
        gaps: what is missing.
    """
    lines = [line for table in tables for body in table.bodies for line in body.lines]
    form = controls(blocks, dict.fromkeys(line.title for line in lines), len(lines))
    title = f"LazyBench report: {'; '.join(block.title for block in blocks)}"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>LazyBench report</h1>",
        form,
        _warnings(warnings),
        *(
            _block(
                block,
                tables,
                [of for of in comparisons if of.block is block],
                [of for of in drawings if of.block is block],
            )
            for block in blocks
        ),
        _reading(tables),
        _gaps(gaps),
        "</main>",
        script(form),
        "</body>\n</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _warnings(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    shown = " open" if sum(map(len, texts)) <= _LONG else ""
    count = "1 warning" if len(texts) == 1 else f"{len(texts)} warnings"
    summary = f"<summary>{count}, before you compare</summary>"
    return f"<details class=warnings{shown}>{summary}<ul>{_items(texts)}</ul></details>"


def _block(block: Block, tables: Sequence[Table], comparisons: Sequence[Comparison], drawings: list[Drawing]) -> str:
    drawings = sorted(drawings, key=lambda of: _FIRST.index(of.name) if of.name in _FIRST else len(_FIRST))
    bodies = [(table, body) for table in tables for body in table.bodies if body.block is block]
    notes = list(dict.fromkeys(note for _, body in bodies for note in body.notes))
    further = drawings[1:]
    return "\n".join(
        [
            f'<section data-model="{escape(block.model)}" data-data="{escape(block.data_title)}">',
            f"<h2>{escape(block.title)}</h2>",
            _terms(about.of_block(block)),
            *(_figure(of, " class=main") for of in drawings[:1]),
            "<h3>Tables</h3>",
            *(_table(table, body) for table, body in bodies if body.lines),
            f"<ul class=notes>{_items(notes)}</ul>",
            *map(_paired, comparisons),
            *(["<h3>Further figures</h3>"] if further else []),
            *map(_figure, further),
            "<h3>Runs</h3>",
            *(_run(run) for row in block.rows for run in row.runs),
            "</section>",
        ]
    )


def _table(table: Table, body: Body) -> str:
    shown = columns(table.spec, body)
    rows = []
    for title, lines in groupby(body.lines, key=lambda line: line.title):
        task, width = escape(title), len(shown) + 1
        rows.append(f'<tbody data-task="{task}">\n<tr><th scope=rowgroup colspan="{width}">{task}</th></tr>')
        rows += [_row(line.label, [column.text(line) for column in shown]) for line in lines]
        rows.append("</tbody>")
    missing = f"\n<p class=missing>{escape(body.missing)}</p>" if body.missing else ""
    return _wide(table.spec.title, ["Method", *(column.title for column in shown)], rows) + missing


def _paired(of: Comparison) -> str:
    """Methods at equal speed, two by two."""
    rows = ["<tbody>", *map(_row, [pair.label for pair in of.pairs], of.texts), "</tbody>"]
    table = _wide("First method against second", ["Methods", *of.heads], rows)
    return f"<h3>{escape(TITLE)}</h3>\n{table}\n<p class=notes>{escape(of.caption)}</p>"


def _wide(title: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table that scrolls by itself where it is too wide."""
    name, head = escape(title), "".join(f"<th scope=col>{escape(text)}</th>" for text in heads)
    return (
        f'<div class=wide tabindex=0 role=region aria-label="{name}"><table>\n<caption><span>{name}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n" + "\n".join(rows) + "\n</table></div>"
    )


def _row(label: str, texts: Iterable[str]) -> str:
    found = []
    for text in texts:
        number, _, beside = text.partition(" ")
        beside = re.sub(r" (?=[\[(])", "\n", beside)  # deviation, interval and note in a line each
        found.append(f"<td>{escape(number)}{f'<small>{escape(beside)}</small>' if beside else ''}</td>")
    lines = "<br>".join(map(escape, label.splitlines()))
    return f"<tr><th scope=row>{lines}</th>{''.join(found)}</tr>"


def _figure(of: Drawing, attributes: str = "") -> str:
    data = base64.b64encode(of.png.read_bytes()).decode()
    alt = escape(f"{of.name.replace('figure', 'Figure ')} of {of.block.title}; what it shows is said below it")
    image = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
    return f"<figure{attributes}>{image}\n<figcaption>{escape(of.caption)}</figcaption></figure>"


def _reading(tables: Sequence[Table]) -> str:
    notes = dict.fromkeys(note for table in tables if any(body.lines for body in table.bodies) for note in table.notes)
    return f"<section>\n<h2>How to read the tables</h2>\n<ul class=notes>{_items(notes)}</ul>\n</section>"


def _gaps(gaps: Sequence[Gap]) -> str:
    if not gaps:
        return ""
    commands = [f"<p>{escape(gap.what)}</p>{_command(gap.command)}" for gap in gaps]
    return (
        "<section>\n<h2>Missing</h2>\n"
        f"<details><summary>What is missing, and the commands that make it ({len(gaps)})</summary>\n"
        + "\n".join(commands)
        + "</details>\n</section>"
    )


def _run(run: Run) -> str:
    known = dict(about.of_run(run))
    short = [known["Task"], f"{len(run.records):,} records", known["Status"], *filter(None, [known.get("Date")])]
    settings = yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True)
    return (
        f"<details data-run><summary><strong>{escape(label(run))}</strong>: {escape(', '.join(short))}</summary>\n"
        f"{_terms(known.items())}\n<p>To run it again, or go on with it:</p>{_command(again(run, here=False))}\n"
        f"<details><summary>All settings, versions and the machine</summary>\n<pre>{escape(settings)}</pre>\n"
        f"<pre>{escape(json.dumps(run.environment, indent=2))}</pre></details></details>"
    )


def _command(text: str) -> str:
    where = f"<p class=notes>{FOLDER} stands for a folder of yours.</p>" if FOLDER in text else ""
    return f"<pre class=command>{escape(text)}</pre>{where}"


def _terms(terms: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>' for name, text in terms)}</dl>"


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)
