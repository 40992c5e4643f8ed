"""What a method's run is called in tables and figures, and where its settings come from."""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from lazybench.config import CONF

if TYPE_CHECKING:  # it imports pandas, which `status` does without
    from lazybench.analysis.run_data import Run

# The methods of the paper's Table 1, in its order.
METHODS = ("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")
METHOD_DEFAULTS = {"repeats": 1, "importance": "eq1", "protect": "none"}
_LONGEST = 40  # characters of a setting in a label
_STRENGTHS = ("schedule", "layer", "keep", "scope", "ratio")
_TITLES = yaml.safe_load(files("lazybench.analysis").joinpath("titles.yaml").read_text("utf-8"))


def label(run: "Run") -> str:
    """The method and its settings, e.g. `LazyLLM 10:0.7,20:0.5` or `static pruning layer=8 keep=0.7`.

    Settings that say how strongly it prunes, and what, are always there, others where they are not the named config's.
    """
    flattered = f" [on {run.calibrated_on} records it was calibrated on]" if run.calibrated_on else ""
    return f"{method_title(run)} {setting_of(run.method, run.settings['method'])}{flattered}".strip()


def setting_of(method: str, settings: Mapping[str, Any]) -> str:
    """How strongly a method of this name prunes with these settings, e.g. `10:0.7,20:0.5` or `layer=8 keep=0.7`."""
    if "folds" in settings:
        return f"calibrated for {settings.get('budget')}"
    path = CONF / "method" / f"{method}.yaml"
    known = METHOD_DEFAULTS | (yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {})
    own = {key for key, value in settings.items() if key not in known or known[key] != value} - {"name", "_target_"}
    if not path.is_file():  # a method of the user's, whose settings all count but those that are off
        own = {key for key in own if settings[key] is not None and settings[key] is not False}
    shown = {key: value for key, value in settings.items() if key in _STRENGTHS or key in own}
    return " ".join(str(of) if key == "schedule" else f"{key}={short(_text(of))}" for key, of in shown.items())


def method_title(run: "Run") -> str:
    """What a reader knows the method by: what it wants to be called, else what its name says."""
    given = _appearance(run).get("label")
    title = " ".join(given.split()) if isinstance(given, str) else ""
    return title or title_of(run.method, run.settings["method"])


def title_of(method: str, settings: Mapping[str, Any] | None = None) -> str:
    """What a reader knows a method of this name and settings by: its name as words where LazyBench does not have it."""
    importance = (settings or {}).get("importance")
    if isinstance(importance, dict) and importance.get("for_good"):
        return "lazyllm+, for good"
    return _TITLES["method"].get(method) or method.replace("_", " ").strip() or method


def _titled(kind: str, name: str) -> str:
    """What a reader knows a model, data or task by; its name as it is where LazyBench has no title for it."""
    return _TITLES[kind].get(name, name)


model_title, data_title, task_title = (partial(_titled, kind) for kind in ("model", "data", "task"))


def colour(run: "Run") -> str | None:
    """The colour that the method wants in figures, as it is given; None where it says nothing."""
    return _appearance(run).get("colour")


def _appearance(run: "Run") -> dict[str, Any]:
    found = run.environment.get("appearance")
    return found if isinstance(found, dict) else {}


def short(text: str) -> str:
    """A setting of readable length that still differs from others."""
    return text if len(text) <= _LONGEST else f"{text[:20]}…#{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def settings_said(settings: Mapping[str, Any]) -> str:
    """Settings as `name=value`, with commas between."""
    return ", ".join(f"{name}={short(str(value))}" for name, value in settings.items())


def provenance(method: Mapping[str, Any]) -> str:
    """Where a calibrated method's schedules come from, in a few words, by its settings."""
    folds, found = method["folds"], method.get("found") or {}
    counts = found.get("records") or [len(fold["records"]) for fold in folds]
    counts = counts if isinstance(counts, list) else [counts] * len(folds)
    methods = [fold["method"] for fold in folds]
    schedules = [f"{setting_of(of['name'], of)} on {count} records" for of, count in zip(methods, counts, strict=True)]
    said = (("of", "data"), ("task", "task"), ("with", "model"))
    where = [f"{name} {found[key]}" for name, key in said if key in found]
    where += [f"cut to {found['limit']} tokens"] if "limit" in found else []
    where += [f"as the best of {found['tried']} trials"] if "tried" in found else []
    each = "; each record is run with a schedule that was found on other records" if len(schedules) > 1 else ""
    return f"found {' and '.join(schedules)} {', '.join(where)}".rstrip() + each


def _text(value: Any) -> str:
    """A setting as one word, a mapping's parts with commas between."""
    if isinstance(value, dict):
        return ",".join(f"{part}:{_text(of)}" for part, of in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_calibrated(run: "Run") -> bool:
    """Whether the run's schedule comes from `lazybench calibrate`."""
    return "folds" in run.settings["method"]


def strength_order(text: str) -> list[Any]:
    """A key that sorts labels by the numbers in them."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(1, float(part), "") if part[0].isdecimal() else (0, 0.0, part) for part in parts]


def stages(run: "Run") -> list[tuple[str, float]]:
    """The stages of a schedule such as `10:0.7,50%:0.5`, layer and keep; empty for a method without one."""
    schedule = str(run.settings["method"].get("schedule", ""))
    pairs = [re.fullmatch(r"(\d+(?:\.\d*)?%?):(\d*\.?\d+)", stage) for stage in schedule.split(",")]
    # A user's method may call something else its schedule.
    return [(pair[1], float(pair[2])) for pair in pairs if pair] if all(pairs) else []
