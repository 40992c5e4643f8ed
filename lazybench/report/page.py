"""The report as one page of HTML that loads nothing from anywhere: `page.html` is its template."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import label, method_title, task_title
from lazybench.analysis.run_data import Run
from lazybench.report.caveats import notes
from lazybench.report.tables import READING, SPECS, pairs_caption, pairs_shown, tasks_note

# Which figure says most of a block, before those that are not named.
_FIRST = ("figure5", "depth_by_length", "figure7", "figure1", "figure2")
_SHOWN = 3  # values of one kind before the others are only counted


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn: whose runs it shows, its module's name, its caption and its PNG."""

    block: Block
    name: str
    caption: str
    png: Path

    @property
    def data(self) -> str:
        """The PNG as text."""
        return base64.b64encode(self.png.read_bytes()).decode()


def page(sections: Sequence[dict[str, Any]], warnings: Sequence[str]) -> str:
    """The whole page, of sections that `section` makes, and warnings to know before comparing numbers."""
    template = Environment(loader=PackageLoader("lazybench.report", ""), autoescape=True).get_template("page.html")
    there = {title for of in sections for title, _, _ in of["tables"]}
    reading = [note for spec in SPECS if spec.title in there for note in spec.notes]
    return template.render(sections=sections, warnings=warnings, reading=[*reading, *READING]) + "\n"


def section(
    block: Block, tables: Sequence[tuple[str, pd.DataFrame, str]], paired: pd.DataFrame, drawings: Sequence[Drawing]
) -> dict[str, Any]:
    """What the page shows of a block: what was run, the figure that says most of it, tables, tests, the runs.

    Args:
        block: the model and data.
        tables: of each its title, its texts (`tables.shown`) and what is lacking (`tables.lacking`).
        paired: the paired tests' numbers (`paired.compare`).
        drawings: the figures.
    """
    return {
        "block": block,
        "about": _about(block),
        "tables": tables,
        "notes": [tasks_note(block), *notes(block)],
        "pairs": None if paired.empty else pairs_shown(paired),
        "pairs_caption": "" if paired.empty else pairs_caption(paired),
        "drawings": sorted(drawings, key=lambda of: _FIRST.index(of.name) if of.name in _FIRST else len(_FIRST)),
        "runs": [_run(run) for run in block.runs],
    }


def _about(block: Block) -> dict[str, str]:
    """What a reader wants to know before the numbers, by name; empty texts where it is not known."""
    met = block.records.drop_duplicates(["dataset", "_id"])
    tokens = met["prompt_tokens"].dropna()
    known = {
        name: _some(run.environment.get(name) for run in block.runs)
        for name in ("weights_format", "dtype", "device", "commit", "date")
    }
    return {
        "Weights": known["weights_format"],
        "Computed in": known["dtype"],
        "Methods": ", ".join(dict.fromkeys(method_title(row.runs[0]) for row in block.rows)),
        "Records": f"{len(met):,} of {met['dataset'].nunique()} datasets, in {len(block.runs)} runs",
        "Prompt length": f"median {tokens.median():,.0f}, longest {tokens.max():,.0f} tokens" if len(tokens) else "",
        "Device": known["device"],
        "Commit": known["commit"],
        "Date": known["date"],
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
