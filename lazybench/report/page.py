"""The report as one page of HTML that loads nothing from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

import yaml

from lazybench.report import render
from lazybench.report.blocks import Block
from lazybench.report.gaps import Gap
from lazybench.report.run_data import Run
from lazybench.report.tables import Table

_CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 0 auto;
  padding: 1rem; }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 2px solid #0072b2; padding-bottom: .2rem; }
.warnings { border-left: .4rem solid #d55e00; background: #fdf1e9; padding: .5rem 1rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; border-bottom: 2px solid #1a1a1a; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
th.task { border-bottom: 1px solid #999; padding-top: .8rem; }
.notes { font-size: .85rem; color: #444; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #444; }
pre { overflow-x: auto; background: #f4f4f4; padding: .6rem; font-size: .8rem; }
summary { cursor: pointer; overflow-wrap: anywhere; padding: .2rem 0; }
"""


def page(
    blocks: Sequence[Block],
    tables: Sequence[Table],
    figures: Sequence[tuple[str, Path]],
    warnings: Sequence[str],
    gaps: Sequence[Gap],
) -> str:
    """The whole page.

    Args:
        blocks: all runs.
        tables: the filled tables.
        figures: caption and PNG of each figure.
        warnings: what to know before comparing numbers.
        gaps: what is missing.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>LazyBench report</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<h1>LazyBench report</h1>",
        f"<p>{escape('; '.join(block.head for block in blocks))}</p>",
        _warnings(warnings),
        *(render.html(table) for table in tables),
        "<h2>Figures</h2>" if figures else "",
        *(_figure(caption, path) for caption, path in figures),
        _gaps(gaps),
        "<h2>Runs</h2>\n<p>Settings and machine of each run.</p>",
        *(_run(run) for block in blocks for run in block.runs),
        "</body>\n</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _warnings(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    return f"<div class=warnings><strong>Warnings</strong>\n<ul>{''.join(map(_item, texts))}</ul></div>"


def _figure(caption: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}">\n<figcaption>{text}</figcaption></figure>'


def _gaps(gaps: Sequence[Gap]) -> str:
    if not gaps:
        return ""
    items = "\n".join(f"{_item(gap.what)}<pre>{escape(gap.command)}</pre>" for gap in gaps)
    return f"<h2>Missing</h2>\n<ul>{items}</ul>"


def _run(run: Run) -> str:
    state = "finished" if run.finished else "unfinished"
    machine = run.environment
    summary = f"{run.name}: {len(run.records)} records, {state}; {machine.get('device')}, {machine.get('dtype')}"
    settings = yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True)
    return (
        f"<details><summary>{escape(summary)}</summary>\n<pre>{escape(settings)}</pre>\n"
        f"<pre>{escape(json.dumps(machine, indent=2))}</pre></details>"
    )


def _item(text: str) -> str:
    return f"<li>{escape(text)}</li>"
