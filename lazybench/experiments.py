"""Lets settings given on the command line take the place of what an experiment sweeps over."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from lazybench.conf import CONF


def settle(words: Sequence[str]) -> list[str]:
    """A command line on which what is given replaces what the named experiment sweeps over.

    Hydra would take both, and call it a conflict.
    """
    given = {word.partition("=")[0] for word in words}
    experiments = [word.partition("=")[2] for word in words if word.lstrip("+").startswith("experiment=")]
    for name in experiments:
        swept = _swept(name)
        if given & swept.keys():
            rest = [f"{key}={values}" for key, values in swept.items() if key not in given]
            return [*words, "hydra.sweeper.params=null", *rest]
    return list(words)


def _swept(experiment: str) -> dict[str, str]:
    """What an experiment of ours sweeps over: values by setting."""
    path = CONF / "experiment" / f"{experiment}.yaml"
    if not path.is_file():
        return {}
    config = yaml.safe_load(path.read_text("utf-8"))
    return config.get("hydra", {}).get("sweeper", {}).get("params", {})
