"""What a method's run is called in tables and figures."""

from __future__ import annotations

import re
from typing import Any

from lazybench.report.run_data import Run

# The methods of the paper's Table 1, in its order.
METHODS = ("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")
TASKS = {
    "single_doc_qa": "Single-document QA",
    "multidoc_qa": "Multi-document QA",
    "summarization": "Summarization",
    "fewshot": "Few-shot learning",
    "synthetic": "Synthetic",
    "code": "Code completion",
}


def label(run: Run) -> str:
    """The method and its settings, e.g. `lazyllm 10:0.7,20:0.5` or `static_pruning layer=8 keep=0.7`."""
    settings = {key: value for key, value in run.settings["method"].items() if key not in ("_target_", "name")}
    words = [str(value) if key == "schedule" else f"{key}={value}" for key, value in settings.items()]
    return " ".join([run.method, *words])


def task_title(task: str) -> str:
    """A task's name for people; a dataset's name as it is."""
    return TASKS.get(task, task)


def strength_order(text: str) -> list[Any]:
    """A key that sorts labels by the numbers in them."""
    return [(1, float(part), "") if re.match(r"\d", part) else (0, 0.0, part) for part in _parts(text)]


def stages(run: Run) -> list[tuple[int, float]]:
    """The `(layer, keep)` stages of a schedule such as `10:0.7,20:0.5`; empty for a method without one."""
    schedule = run.settings["method"].get("schedule")
    if not isinstance(schedule, str):
        return []
    pairs = [re.fullmatch(r"\s*(\d+)\s*:\s*([\d.]+)\s*", stage) for stage in schedule.split(",")]
    return [(int(pair[1]), float(pair[2])) for pair in pairs if pair]


def _parts(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?|\D+", text)
