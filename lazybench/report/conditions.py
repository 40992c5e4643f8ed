"""What runs must share for their numbers to be compared, besides model and data."""

from __future__ import annotations

import hashlib
from typing import Any

from lazybench.report.run_data import Run

_SETTINGS = ("limit", "chat", "remove")
_DATA = ("limit", "half", "seed", "tokens")
_ENVIRONMENT = ("results_version", "weights_format", "dtype", "attention", "device", "threads")
_VERSIONS = ("torch", "transformers")


def conditions(run: Run) -> dict[str, str]:
    """The run's conditions by name, as text short enough for a label.

    Those of code that only some runs use are there for these alone: the others have nothing to differ in.
    """
    settings, environment = run.settings, run.environment
    versions = environment.get("versions") or {}
    found = {key: environment.get(key) for key in _ENVIRONMENT}
    found |= {key: versions.get(key) for key in _VERSIONS}
    found |= {f"model.{key}": settings["model"].get(key) for key in _SETTINGS}
    found |= {f"data.{key}": settings["data"].get(key) for key in _DATA}
    found["timing.warmup"] = (settings.get("timing") or {}).get("warmup")
    found["weights"] = settings.get("weights")
    found |= {f"code.{module}": found for module, found in (settings.get("code") or {}).items()}
    return {key: _short(value) for key, value in found.items()}


def agree(run: Run, other: Run) -> bool:
    """Whether two runs share all conditions that both have."""
    one, another = conditions(run), conditions(other)
    return all(one[key] == another[key] for key in one.keys() & another.keys())


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}…#{hashlib.sha256(text.encode()).hexdigest()[:6]}"
