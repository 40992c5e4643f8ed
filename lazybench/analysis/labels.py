"""Labels and titles of runs, methods, models, data and tasks in tables and figures."""

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from lazybench.identity import shown

if TYPE_CHECKING:  # it imports pandas, which `status` does not need
    from lazybench.analysis.records import Run

# The methods of the paper's Table 1, in its order.
METHODS = ("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")
NO_REVIVAL = "_no_revival"  # ends the name of a method's variant, which follows the method
_LONGEST = 40  # characters of a setting in a label
_TITLES = yaml.safe_load(files("lazybench.analysis").joinpath("titles.yaml").read_text("utf-8"))


def setting_of(method: str, settings: Mapping[str, Any]) -> str:
    """Return the settings that a label shows, e.g. `10:0.7,20:0.5` or `layer=8 keep=0.7`."""
    if "folds" in settings:
        return f"matched to {settings['speedup']}"
    return " ".join(
        str(value) if name == "schedule" else f"{name}={short(_text(value))}"
        for name, value in shown(method, settings).items()
    )


def method_title(run: "Run") -> str:
    """Return the method's title: the label that its class defines, else the title of its name."""
    defined = run.environment.get("appearance", {}).get("label", "")
    return " ".join(str(defined).split()) or title_of(run.method)


def title_of(name: str, kind: str = "method") -> str:
    """Return the title of a method, model, data or task; by default its name, for a method with spaces."""
    return _TITLES[kind].get(name, name.replace("_", " ") if kind == "method" else name)


def short(text: str) -> str:
    """Shorten a setting for labels; different settings stay different."""
    return text if len(text) <= _LONGEST else f"{text[:20]}…#{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as `name=value`, separated by commas."""
    return ", ".join(f"{name}={short(str(value))}" for name, value in settings.items())


def provenance(method: Mapping[str, Any]) -> tuple[str, str]:
    """Describe a matched method's settings, and where they come from, each in a part of a sentence."""
    folds, found = method["folds"], method.get("found") or {}
    source = found.get("chosen", found)  # of the settings besides how much is kept
    settings = dict.fromkeys(setting_of(fold["method"]["name"], fold["method"]) for fold in folds)
    text = " and ".join(settings) + (f" (the best of {source['tried']})" if "tried" in source else "")
    counts = source.get("records", [len(fold["records"]) for fold in folds])
    counts = counts if isinstance(counts, list) else [counts]  # a number if nothing was tuned
    origin = f"found on {' and '.join(map(str, counts))} records {_conditions(source)}".rstrip()
    if "chosen" in found:
        origin += f", keeps matched again on {found['records']} records {_conditions(found)}"
    return text, origin + ", each record run with settings found on other records" * (len(folds) > 1)


def _conditions(source: Mapping[str, Any]) -> str:
    forms = {"data": "of {}", "task": "task {}", "model": "with {}", "limit": "cut to {} tokens"}
    return ", ".join(form.format(source[key]) for key, form in forms.items() if key in source)


def _text(value: Any) -> str:
    """Format a setting as one word; separate a mapping's parts by commas."""
    if isinstance(value, dict):
        return ",".join(f"{part}:{_text(inner)}" for part, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def natural_order(text: str) -> list[Any]:
    """Return a key that sorts labels by the numbers in them."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(1, float(part), "") if part[0].isdecimal() else (0, 0.0, part) for part in parts]


def stages(run: "Run") -> list[tuple[str, float]]:
    """Return layer and keep of each stage of a schedule such as `10:0.7,50%:0.5`; empty for a method without one."""
    schedule = str(run.settings["method"].get("schedule", ""))
    pairs = [re.fullmatch(r"(\d+(?:\.\d*)?%?):(\d*\.?\d+)", stage) for stage in schedule.split(",")]
    # In a user's method `schedule` may mean something else.
    return [(pair[1], float(pair[2])) for pair in pairs if pair] if all(pairs) else []
