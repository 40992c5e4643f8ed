"""What a method's run is called in tables and figures."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from lazybench.report.named import is_named, own_settings
from lazybench.report.provenance import setting_text
from lazybench.report.run_data import Run

# The methods of the paper's Table 1, in its order.
METHODS = ("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")
METHOD_DEFAULTS = {"repeats": 1, "importance": "eq1"}
_LONGEST = 40  # characters of a setting in a label
_STRENGTHS = ("schedule", "layer", "keep", "scope", "ratio")
TASKS = {
    "single_doc_qa": "Single-document QA",
    "multidoc_qa": "Multi-document QA",
    "summarization": "Summarization",
    "fewshot": "Few-shot learning",
    "synthetic": "Synthetic",
    "code": "Code completion",
}


def label(run: Run) -> str:
    """The method and its settings, e.g. `lazyllm 10:0.7,20:0.5` or `static_pruning layer=8 keep=0.7`.

    Settings that say how strongly it prunes, and what, are always there, others where they are not the named config's.
    """
    settings = run.settings["method"]
    if is_calibrated(run):
        mark = f" [on {run.calibrated_on} records it was calibrated on]" if run.calibrated_on else ""
        return f"{run.method} calibrated for {settings.get('budget')}{mark}"
    own = own_settings("method", settings, METHOD_DEFAULTS, run.method)
    if not is_named("method", run.method):  # a method of the user's, whose settings all count but those that are off
        own = {key: value for key, value in own.items() if value is not None and value is not False}
    shown = {key: value for key, value in settings.items() if key in _STRENGTHS or key in own}
    words = [
        str(value) if key == "schedule" else f"{key}={_short(setting_text(value))}" for key, value in shown.items()
    ]
    return " ".join([run.method, *words])


def _short(text: str) -> str:
    """A setting of readable length that still differs from others."""
    return text if len(text) <= _LONGEST else f"{text[:20]}…#{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def is_calibrated(run: Run) -> bool:
    """Whether the run's schedule comes from `lazybench calibrate`."""
    return "folds" in run.settings["method"]


def task_title(task: str) -> str:
    """A task's name for people; a dataset's name as it is."""
    return TASKS.get(task, task)


def strength_order(text: str) -> list[Any]:
    """A key that sorts labels by the numbers in them."""
    return [(1, float(part), "") if re.match(r"\d", part) else (0, 0.0, part) for part in _parts(text)]


def stages(run: Run) -> list[tuple[str, float]]:
    """The stages of a schedule such as `10:0.7,50%:0.5`, layer and keep; empty for a method without one."""
    schedule = str(run.settings["method"].get("schedule", ""))
    pairs = [re.fullmatch(r"(\d+(?:\.\d*)?%?):(\d*\.?\d+)", stage) for stage in schedule.split(",")]
    # A user's method may call something else its schedule.
    return [(pair[1], float(pair[2])) for pair in pairs if pair] if all(pairs) else []


def _parts(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?|\D+", text)
