"""Commands that make a run again, or one like it: on the same model and data, timed in the same way."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Quote, QuotedString

from lazybench.analysis.labels import METHOD_DEFAULTS, is_calibrated, is_named, own_settings
from lazybench.analysis.run_data import Run
from lazybench.config import DataConfig, ModelConfig, RunConfig, TimingConfig
from lazybench.store.run_folder import CONFIG

# Stands for the folders of the machine that made the runs, in commands for files.
FOLDER = "FOLDER"
# The config that a model without one of its own is described on top of.
_MODEL = "smollm2_135m"
_SCHEMAS = {"model": ModelConfig, "data": DataConfig, "timing": TimingConfig}
_OUTPUT = RunConfig.output


def again(run: Run, here: bool) -> str:
    """The command that runs a run again, or goes on with it.

    Args:
        run: the run.
        here: whether it names the folders of this machine, where they are known.
    """
    words = [f"task={run.settings['task']}", *(["calibrated=mark"] if run.calibrated_on else [])]
    return like(run, words, here, own_method=True, paired=True)


def like(run: Run, words: Sequence[str], here: bool, own_method: bool = False, paired: bool = False) -> str:
    """The command of a run on the model and data of another one, timed in the same way.

    Args:
        run: the other run.
        words: what is to be run; `-m` among them makes a sweep of it.
        here: whether it names the folders of this machine, where they are known.
        own_method: whether it runs the other one's method, too.
        paired: whether it is paired if the other one is; else the default for its kind of run holds.
    """
    asked = _asked(run, here)
    groups = ["model", "data", *(["method"] if own_method else [])]
    flags = ["-m"] if "-m" in words else []
    if asked["config_dirs"] and not all(is_named(group, asked[group]) for group in groups):
        first, *more = asked["config_dirs"]
        flags.append(f"--config-dir {shlex.quote(first)}")
        flags += [_word("hydra.searchpath", [f"file://{place}" for place in more])] if more else []
    chosen = [word for group in groups for word in (_word(group, asked[group]), *_set(asked, group))]
    timing = [word for word in _set(asked, "timing") if paired or not word.startswith("timing.paired=")]
    output = _output(run) if here else None
    last = [] if output in (None, _OUTPUT) else [_word("output", output)]
    said = [*flags, *chosen, *(word for word in words if word != "-m"), *timing, *last]
    return " ".join(["python -m lazybench run", *said])


def _output(run: Run) -> str | None:
    """The folder of all runs that a run lies in; None where it lies in none."""
    inside = Path(run.name).parts
    if run.folder is None or run.folder.parts[-len(inside) :] != inside:
        return None
    return str(run.folder.parents[len(inside) - 1])


def _set(asked: dict[str, Any], section: str) -> list[str]:
    return [_word(key, value) for key, value in asked["settings"].items() if key.lstrip("+").startswith(f"{section}.")]


def _asked(run: Run, here: bool) -> dict[str, Any]:
    """What a run's command said, as the run noted it under `command`; else what its settings say."""
    placed = here and run.folder is not None
    settings = yaml.safe_load((run.folder / CONFIG).read_text("utf-8")) if placed else run.settings
    asked = settings.get("command")
    if not isinstance(asked, dict) or not asked.keys() >= {"config_dirs", "model", "data", "method", "settings"}:
        asked = _gathered(run, settings, placed)
    if "model.path" in asked["settings"]:  # by itself it would name the model, too
        asked = asked | {"settings": {"model.name": run.model} | asked["settings"]}
    return asked


def _gathered(run: Run, settings: dict[str, Any], placed: bool) -> dict[str, Any]:
    others = {"model": _MODEL, "data": "sample" if settings["data"].get("source") == "sample" else "longbench"}
    asked: dict[str, Any] = {"config_dirs": [], "method": run.method, "settings": {}}
    for section, schema in _SCHEMAS.items():
        said = settings.get(section) or {}
        name = said.get("name")
        defaults = {
            of.name: of.default if of.default_factory is MISSING else of.default_factory() for of in fields(schema)
        }
        asked[section] = name if is_named(section, str(name)) else others.get(section, "")
        own = own_settings(section, said, defaults, asked[section])
        if name not in (None, asked[section]):
            own["name"] = name
        if own.get("root") and not placed:
            own["root"] = FOLDER
        known = {key: value for key, value in own.items() if key in defaults and not isinstance(value, dict)}
        asked["settings"] |= {f"{section}.{key}": value for key, value in known.items()}
    if is_calibrated(run):
        return asked | {"config_dirs": ["CALIBRATION"], "method": "NAME"}
    if not is_named("method", run.method):
        return asked | {"config_dirs": [FOLDER]}
    own = own_settings("method", settings["method"], METHOD_DEFAULTS, run.method)
    asked["settings"] |= {f"method.{key}": value for key, value in own.items()}
    return asked


def _word(key: str, value: Any) -> str:
    """`key=value` as a shell hands it to Hydra."""
    text = f"{key}={_value(value)}"
    if shlex.quote(text) == text:
        return text
    return shlex.quote(text) if re.search(r'["$`\\!\n]', text) else f'"{text}"'


def _value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(of)}" for key, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_value, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str):
        return str(value)
    bare = re.fullmatch(r"[A-Za-z_/][\w/.@+-]*", value, re.ASCII)
    if bare and value.lower() not in ("null", "true", "false", "inf", "nan"):
        return value
    return QuotedString(value, Quote.single).with_quotes()
