"""What a reader chooses among many rows of the page with: a model, data, a task, words of a row's label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lazybench.analysis.blocks import Block

# Below this there is nothing to choose among.
_FEW = 12

_SCRIPT = """
const form = document.querySelector("form.filter");
const meets = (row, words) => words.every((word) => row.textContent.toLowerCase().includes(word));
const choose = () => {
  const words = form.words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0, all = 0;
  for (const section of document.querySelectorAll("section[data-model]")) {
    const other = ["model", "data"].some((key) => form[key].value && form[key].value !== section.dataset[key]);
    let found = 0;
    for (const body of section.querySelectorAll("tbody")) {
      const rows = [...body.rows].filter((row) => row.cells[0].scope === "row");
      for (const row of rows) row.hidden = !meets(row.cells[0], words);
      const task = form.task.value && body.dataset.task && form.task.value !== body.dataset.task;
      body.hidden = task || rows.every((row) => row.hidden);
      if (!body.dataset.task) continue;
      all += rows.length;
      if (!body.hidden) found += rows.filter((row) => !row.hidden).length;
    }
    section.hidden = other || !found;
    if (!other) shown += found;
    for (const run of section.querySelectorAll("details[data-run]")) {
      run.hidden = !meets(run.querySelector("strong"), words);
    }
  }
  form.shown.value = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
};
form.addEventListener("input", choose);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
choose();
"""


def controls(blocks: Sequence[Block], tasks: Iterable[str], rows: int) -> str:
    """The form, hidden until its script runs; empty where there is one model and data, with a few rows.

    Args:
        blocks: the page's models and data.
        tasks: the titles of the tables' tasks.
        rows: how many rows the tables have.
    """
    if len(blocks) == 1 and rows <= _FEW:
        return ""
    choices = {
        "model": ("Model", [block.model for block in blocks]),
        "data": ("Data", [block.data_title for block in blocks]),
        "task": ("Task", list(tasks)),
    }
    parts = [_choice(key, title, list(dict.fromkeys(of))) for key, (title, of) in choices.items()]
    words = '<input name=words type=search placeholder="lazyllm 2048" aria-describedby=words-mean>'
    parts.append(f"<label>Rows with <span id=words-mean hidden>every one of these words</span>{words}</label>")
    return f"<form class=filter hidden>{''.join(parts)}<output name=shown></output></form>"


def script(form: str) -> str:
    """The form's script; empty where there is none."""
    return f"<script>{_SCRIPT}</script>" if form else ""


def _choice(key: str, title: str, names: Sequence[str]) -> str:
    """One choice; hidden where there is nothing to choose."""
    options = "".join(f'<option value="{escape(name)}">{escape(name)}</option>' for name in names)
    hidden = " hidden" if len(names) < 2 else ""
    return f'<label{hidden}>{title} <select name={key}><option value="">all</option>{options}</select></label>'
