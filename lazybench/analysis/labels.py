"""Labels and titles of runs, methods, models, data and tasks in tables and figures."""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from lazybench.identity import shown

if TYPE_CHECKING:  # it imports pandas, which `status` does without
    from lazybench.analysis.run_data import Run

# The methods of the paper's Table 1, in its order.
METHODS = ("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")
_LONGEST = 40  # characters of a setting in a label
_TITLES = yaml.safe_load(files("lazybench.analysis").joinpath("titles.yaml").read_text("utf-8"))


def label(run: "Run") -> str:
    """Return the method and its settings, e.g. `LazyLLM 10:0.7,20:0.5` or `static pruning layer=8 keep=0.7`."""
    flattered = f" [on {run.calibrated_on} records it was calibrated on]" if run.calibrated_on else ""
    return f"{method_title(run)} {setting_of(run.method, run.settings['method'])}{flattered}".strip()


def setting_of(method: str, settings: Mapping[str, Any]) -> str:
    """Return how strongly a method prunes with these settings, e.g. `10:0.7,20:0.5` or `layer=8 keep=0.7`."""
    if "folds" in settings:
        return f"calibrated for {settings.get('budget')}"
    return " ".join(
        str(value) if name == "schedule" else f"{name}={short(_text(value))}"
        for name, value in shown(method, settings).items()
    )


def method_title(run: "Run") -> str:
    """Return the method's title: the label that it gives itself, else one for its name."""
    given = _appearance(run).get("label")
    title = " ".join(given.split()) if isinstance(given, str) else ""
    return title or title_of(run.method, run.settings["method"])


def title_of(method: str, settings: Mapping[str, Any] | None = None) -> str:
    """Return a method's title: of one that LazyBench does not have, its name as words."""
    ranking = (settings or {}).get("ranking")
    if isinstance(ranking, dict) and ranking.get("for_good"):
        return "lazyllm+, for good"
    return _TITLES["method"].get(method) or method.replace("_", " ").strip() or method


def _title(kind: str, name: str) -> str:
    """Return the title of a model, data or task, or its name if it has none."""
    return _TITLES[kind].get(name, name)


model_title, data_title, task_title = (partial(_title, kind) for kind in ("model", "data", "task"))


def colour(run: "Run") -> str | None:
    """Return the colour that the method gives itself in figures, unchecked; None if it gives none."""
    return _appearance(run).get("colour")


def _appearance(run: "Run") -> dict[str, Any]:
    appearance = run.environment.get("appearance")
    return appearance if isinstance(appearance, dict) else {}


def short(text: str) -> str:
    """Shorten a setting for labels; different settings stay different."""
    return text if len(text) <= _LONGEST else f"{text[:20]}…#{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as `name=value`, separated by commas."""
    return ", ".join(f"{name}={short(str(value))}" for name, value in settings.items())


def provenance(method: Mapping[str, Any]) -> str:
    """Describe where a calibrated method's settings come from."""
    folds, source = method["folds"], method.get("found") or {}
    counts = source.get("records") or [len(fold["records"]) for fold in folds]
    counts = counts if isinstance(counts, list) else [counts] * len(folds)
    settings = [setting_of(fold["method"]["name"], fold["method"]) for fold in folds]
    each = " and ".join(f"{setting} on {count} records" for setting, count in zip(settings, counts, strict=True))
    forms = {"data": "of {}", "task": "task {}", "model": "with {}", "limit": "cut to {} tokens"}
    forms |= {"tried": "as the best of {} trials"}
    where = [form.format(source[key]) for key, form in forms.items() if key in source]
    held_out = "; each record is run with a schedule that was found on other records" if len(folds) > 1 else ""
    return f"found {each} {', '.join(where)}".rstrip() + held_out


def _text(value: Any) -> str:
    """Return a setting as one word, a mapping's parts separated by commas."""
    if isinstance(value, dict):
        return ",".join(f"{part}:{_text(inner)}" for part, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_calibrated(run: "Run") -> bool:
    """Return whether the run's settings were tuned on records: by `lazybench match tune=true`."""
    return "folds" in run.settings["method"]


def strength_order(text: str) -> list[Any]:
    """Return a key that sorts labels by the numbers in them."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(1, float(part), "") if part[0].isdecimal() else (0, 0.0, part) for part in parts]


def stages(run: "Run") -> list[tuple[str, float]]:
    """Return layer and keep of each stage of a schedule such as `10:0.7,50%:0.5`; empty for a method without one."""
    schedule = str(run.settings["method"].get("schedule", ""))
    pairs = [re.fullmatch(r"(\d+(?:\.\d*)?%?):(\d*\.?\d+)", stage) for stage in schedule.split(",")]
    # A user's method may call something else its schedule.
    return [(pair[1], float(pair[2])) for pair in pairs if pair] if all(pairs) else []
