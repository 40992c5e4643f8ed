"""What was run, in a few words: model, data and machine of a block, method and schedule of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from lazybench.analysis.averages import ran, undisturbed
from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import is_calibrated, method_title, provenance, stages, task_title
from lazybench.analysis.run_data import Run
from lazybench.report.caveats import commit_text

_SHOWN = 3  # values of one kind before the others are only counted
# Settings of a method that are no part of how it prunes.
_APART = ("name", "_target_", "schedule", "folds", "found", "budget")


def of_block(block: Block) -> list[tuple[str, str]]:
    """Name and text of what a reader wants to know of a block before its numbers; nothing that is not known."""
    runs = block.runs
    environments = [run.environment for run in runs]
    records = pd.concat([run.records for run in runs])
    met = records.drop_duplicates(["dataset", "_id"])
    tokens = met["prompt_tokens"].dropna()
    said = {
        "Model": ", ".join([block.model, *filter(None, [_precision(runs)])]),
        "Data": f"{block.data_title}, {_count(met['dataset'].nunique(), 'dataset')}",
        "Methods": ", ".join(dict.fromkeys(method_title(row.runs[0]) for row in block.rows)),
        "Records": f"{len(met):,}, in {_count(len(runs), 'run')}",
        "Prompt length": f"median {tokens.median():,.0f}, longest {tokens.max():,.0f} tokens" if len(tokens) else "",
        "Device": _some(_device(run) for run in runs),
        "Commit": _some(commit_text(str(of["commit"])) for of in environments if of.get("commit")),
        "Date": _dates(runs),
    }
    return [(name, text) for name, text in said.items() if text]


def of_run(run: Run) -> list[tuple[str, str]]:
    """Name and text of what a reader wants to know of one run."""
    failed = len(run.records) - len(ran(run.records))
    disturbed = len(run.records) - len(undisturbed(run.records))
    counts = [f"{len(run.records):,}"]
    counts += [f"{failed} failed"] if failed else []
    counts += [f"{disturbed} disturbed by other work"] if disturbed else []
    commit = run.environment.get("commit")
    said = {
        "Method": method_title(run),
        "Schedule": _schedule(run),
        "Settings": ", ".join(f"{key} = {value}" for key, value in _other_settings(run)),
        "Task": task_of(run),
        "Records": ", ".join(counts),
        "Status": status(run),
        "Date": _dates([run]),
        "Precision": _precision([run]),
        "Device": _device(run),
        "Commit": commit_text(str(commit)) if commit else "",
    }
    return [(name, text) for name, text in said.items() if text]


def status(run: Run) -> str:
    """Whether the run has gone through all its records."""
    return "finished" if run.finished else "unfinished"


def task_of(run: Run) -> str:
    """What the run was asked to cover."""
    asked = str(run.settings["task"])
    return f"all {_count(len(run.datasets), 'dataset')}" if asked == "all" else task_title(asked)


def _schedule(run: Run) -> str:
    """A schedule in words; as it stands where it is no list of layers and keeps."""
    if is_calibrated(run):
        return f"for {run.settings['method'].get('budget')}: {provenance(run.settings['method'])}"
    given = run.settings["method"].get("schedule")
    found = [(f"{layer} of the layers" if "%" in layer else f"layer {layer}", keep) for layer, keep in stages(run)]
    if not found:
        return "" if given is None else str(given)
    return (
        f"{given}: "
        + ", ".join(f"after {place} keep {100 * keep:g}%" for place, keep in found)
        + " of the prompt's tokens"
    )


def _other_settings(run: Run) -> Iterator[tuple[str, object]]:
    """Those that say something of the method, and that its schedule does not say."""
    for key, value in run.settings["method"].items():
        if key not in _APART and value is not None and value is not False and (key, value) != ("repeats", 1):
            yield key, value


def _precision(runs: Iterable[Run]) -> str:
    """What the weights are, and what is computed in."""
    return _some(
        ", computed in ".join(dict.fromkeys(str(run.environment[key]) for key in keys))
        for run in runs
        if (keys := [key for key in ("weights_format", "dtype") if run.environment.get(key)])
    )


def _device(run: Run) -> str:
    device, threads = run.environment.get("device"), run.environment.get("threads")
    on_cpu = run.environment.get("device_kind") == "cpu"
    return f"{device}, {_count(threads, 'thread')}" if on_cpu and threads else str(device or "")


def _dates(runs: Iterable[Run]) -> str:
    found = sorted({str(run.environment["date"]) for run in runs if run.environment.get("date")})
    return " to ".join(dict.fromkeys([found[0], found[-1]])) if found else ""


def _some(texts: Iterable[str]) -> str:
    """Each text once, at most a few of them."""
    found = [text for text in dict.fromkeys(texts) if text]
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
