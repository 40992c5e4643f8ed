"""What the named configs say, to tell which settings of a run are its own."""

from __future__ import annotations

from typing import Any

import yaml

from lazybench.config import CONF


def is_named(section: str, name: str) -> bool:
    """Whether LazyBench has a config of this name; else it is one of the user's, in a folder of theirs.

    Args:
        section: `model`, `data` or `method`.
        name: the config's name.
    """
    return (CONF / section / f"{name}.yaml").is_file()


def own_settings(section: str, settings: dict[str, Any], defaults: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of a run that neither `conf/<section>/<name>.yaml` nor the defaults already say.

    Args:
        section: `model`, `data`, `method` or `timing`.
        settings: that section of the run's settings.
        defaults: what holds where the named config says nothing.
        name: the config's name; there may be none of that name.
    """
    path = CONF / section / f"{name}.yaml"
    known = defaults | (yaml.safe_load(path.read_text("utf-8")) if is_named(section, name) else {})
    return {
        key: value
        for key, value in settings.items()
        if key not in ("name", "_target_") and not (key in known and known[key] == value)
    }
