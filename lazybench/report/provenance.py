"""What a calibrated method says about itself, in a run and in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def provenance(method: Mapping[str, Any]) -> str:
    """Where a calibrated method's schedules come from, in a few words.

    Args:
        method: the method's settings, as in its YAML.
    """
    schedules = [
        f"{fold['schedule']} ({setting_text(fold['importance'])}) on {len(fold['records'])} records"
        for fold in method["folds"]
    ]
    found = method.get("found") or {}
    said = (("of", "data"), ("task", "task"), ("with", "model"))
    where = [f"{name} {found[key]}" for name, key in said if key in found]
    where += [f"cut to {found['limit']} tokens"] if "limit" in found else []
    each = "; each record gets one that was found without it" if len(schedules) > 1 else ""
    return f"found {' and '.join(schedules)} {', '.join(where)}".rstrip() + each


def setting_text(value: Any) -> str:
    """A setting as one word, a mapping's parts with commas between."""
    if isinstance(value, dict):
        return ",".join(f"{part}:{setting_text(of)}" for part, of in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
