"""What the named configs say, to tell which settings of a run are its own."""

from __future__ import annotations

from typing import Any

import yaml

from lazybench.conf import CONF


def own_settings(section: str, settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that neither `conf/<section>/<name>.yaml` nor the defaults already say.

    Args:
        section: `model`, `data` or `method`.
        settings: that section of the run's settings.
        defaults: what holds where the named config says nothing.
    """
    path = CONF / section / f"{settings['name']}.yaml"
    known = defaults | (yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {})
    return {
        key: value
        for key, value in settings.items()
        if key not in ("name", "_target_") and not (key in known and known[key] == value)
    }
