"""The report as one page of HTML that loads nothing from anywhere: `page.html` is its template."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import label, method_title, task_title
from lazybench.analysis.run_data import Run
from lazybench.report.caveats import notes
from lazybench.report.tables import READING, pairs_shown

# Which figure says most of a block, before those that are not named.
_FIRST = ("figure5", "depth_by_length", "figure7", "figure1", "figure2")
_SHOWN = 3  # values of one kind before the others are only counted


def page(sections: Sequence[dict[str, Any]], warnings: Sequence[str]) -> str:
    """The whole page, of sections that `section` makes, and warnings to know before comparing numbers."""
    template = Environment(loader=PackageLoader("lazybench.report", ""), autoescape=True).get_template("page.html")
    reading = [line.removeprefix("- ") for line in READING.splitlines()]
    return template.render(sections=sections, warnings=warnings, reading=reading) + "\n"


def section(
    block: Block,
    tables: Sequence[tuple[str, pd.DataFrame, str]],
    paired: pd.DataFrame,
    drawings: Sequence[dict[str, str]],
) -> dict[str, Any]:
    """What the page shows of a block: what was run, the figure that says most of it, tables, tests, the runs.

    Args:
        block: the model and data.
        tables: of each its title, its texts (`tables.shown`) and what is lacking (`tables.lacking`).
        paired: the paired tests' numbers (`paired.compare`).
        drawings: of each figure its `name`, its `caption`, and its PNG as `data`.
    """
    return {
        "block": block,
        "about": _about(block),
        "tables": tables,
        "notes": notes(block),
        "pairs": None if paired.empty else pairs_shown(paired),
        "drawings": sorted(drawings, key=lambda of: (*_FIRST, of["name"]).index(of["name"])),
        "runs": [_run(run) for run in block.runs],
    }


def _about(block: Block) -> dict[str, str]:
    """What a reader wants to know before the numbers, by name; empty texts where it is not known."""
    met = block.records.drop_duplicates(["dataset", "_id"])
    tokens = met["prompt_tokens"].dropna()
    known = {"Computed in": "dtype", "Device": "device", "Commit": "commit", "Date": "date"}
    return {
        "Methods": ", ".join(dict.fromkeys(method_title(row.runs[0]) for row in block.rows)),
        "Records": f"{len(met):,} of {met['dataset'].nunique()} datasets, in {len(block.runs)} runs",
        "Prompt length": f"median {tokens.median():,.0f}, longest {tokens.max():,.0f} tokens" if len(tokens) else "",
        **{name: _some(run.environment.get(key) for run in block.runs) for name, key in known.items()},
    }


def _run(run: Run) -> dict[str, Any]:
    said = [task_title(str(run.settings["task"])), f"{len(run.records):,} records"]
    said += ["finished" if run.finished else "unfinished", str(run.environment.get("date") or "")]
    words = run.environment.get("command")
    environment = {key: value for key, value in run.environment.items() if key != "command"}
    return {
        "label": label(run),
        "said": ", ".join(filter(None, said)),
        "command": shlex.join(["python", "-m", "lazybench", *words]) if words else "",
        "settings": yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True),
        "environment": json.dumps(environment, indent=2),
    }


def _some(values: Iterable[object]) -> str:
    """Each value once, at most a few of them."""
    found = sorted({str(value) for value in values if value})
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
