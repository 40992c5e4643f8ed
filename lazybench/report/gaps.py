"""What a report lacks, and the commands that would fill the gaps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lazybench.config import DataConfig, ModelConfig
from lazybench.provenance import setting_text
from lazybench.report.blocks import Block
from lazybench.report.labels import METHOD_DEFAULTS, METHODS, TASKS, is_calibrated
from lazybench.report.named import own_settings
from lazybench.report.parts import part_of
from lazybench.report.run_data import Run


@dataclass(frozen=True)
class Gap:
    """Something missing, and the command that makes it."""

    what: str
    command: str


def gaps(block: Block, undrawn: list[tuple[str, str]]) -> list[Gap]:
    """Runs that are missing or unfinished, and figures that could not be drawn.

    Args:
        block: the runs of one model and data.
        undrawn: names of figures that lack runs, and the words of a command that makes those.
    """
    found: dict[str, list[str]] = {}
    for gap in [*_unfinished(block), *_not_run(block), *_figures(block, undrawn)]:
        found.setdefault(gap.command, []).append(gap.what)
    return [Gap("; ".join(what), command) for command, what in found.items()]


def _unfinished(block: Block) -> list[Gap]:
    found = []
    for row in block.rows:
        for run in row.runs:
            if not run.finished:
                command = _command(run, f"{_method(run)} task={run.settings['task']}")
                found.append(Gap(f"{row.label}: unfinished, {len(run.records)} records so far", command))
    return found


def _method(run: Run) -> str:
    """The words of a command that choose a run's method."""
    if is_calibrated(run):
        return "--config-dir CALIBRATION method=NAME"  # a folder that calibrate made, and a YAML in it
    own = own_settings("method", run.settings["method"], METHOD_DEFAULTS)
    return " ".join([f"method={run.method}", *(_word(f"method.{key}", value) for key, value in own.items())])


def _not_run(block: Block) -> list[Gap]:
    """One command a method for the tasks, or datasets of a task, that it has no run for."""
    found = []
    for method in METHODS:
        rows = [row for row in block.rows if row.method == method]
        missing: list[str] = []
        for task, members in block.tasks().items():
            met = {dataset for row in rows for dataset in part_of(row, members).datasets}
            lacking = [dataset for dataset in members if dataset not in met]
            if task in TASKS and lacking:
                missing += lacking if met else [task]
        if missing == list(TASKS):
            found.append(Gap(f"{method}: no run", _command(block.runs[0], f"method={method} task=all")))
        elif missing:
            flag = "-m " if len(missing) > 1 else ""
            command = _command(block.runs[0], f"{flag}method={method} task={','.join(missing)}")
            found.append(Gap(f"{method}: no run of {', '.join(missing)}", command))
    return found


def _figures(block: Block, undrawn: list[tuple[str, str]]) -> list[Gap]:
    return [Gap(f"{name}: no runs to draw it from", _command(block.runs[0], words)) for name, words in undrawn]


def _command(like: Run, words: str) -> str:
    """A command with these words and the model and data of a run there is."""
    flag, words = ("-m ", words.removeprefix("-m ")) if words.startswith("-m ") else ("", words)
    overrides = [*_overrides(like, "model", ModelConfig), *_overrides(like, "data", DataConfig)]
    chosen = f"model={like.model} data={like.data}"
    return " ".join([f"python -m lazybench run {flag}{chosen}", *overrides, words])


def _overrides(run: Run, section: str, schema: type) -> list[str]:
    """Settings of a run that its named config does not already say."""
    own = own_settings(section, run.settings[section], {of.name: of.default for of in fields(schema)})
    own |= {"root": "FOLDER"} if own.get("root") else {}  # records keep no machine's folders
    return [_word(f"{section}.{key}", value) for key, value in own.items() if not isinstance(value, list | dict)]


def _word(key: str, value: Any) -> str:
    """`key=value` for a shell; a comma or colon needs Hydra's quotes too."""
    if isinstance(value, str) and not value.replace("_", "").replace("-", "").replace(".", "").isalnum():
        return f"\"{key}='{value}'\""
    if isinstance(value, dict):
        return f'"{key}={{{setting_text(value)}}}"'
    return f"{key}={'null' if value is None else value}"
