"""Identify runs: which settings enter the hash, which must match to compare two runs, and which a label shows."""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import omegaconf
import yaml

from lazybench.config import CONF, DataConfig, ModelConfig, RunConfig

# A setting is named as on the command line, and an entry of `environment.json` by its own name. Every other
# value enters the hash, such as a method's own settings: all that answers depend on, wherever they are generated.
NOT_HASHED = (
    {"shard", "batch", "timing", "trace", "retry_failed", "matched", "output", "records_of"}
    | {"versions", "command", "appearance", "on_engine"}
    | {"generation_config"}  # its file is among the weights
    # The model's location does not matter: `weights` identifies its files, and `dtype` is the one in use.
    | {"model.name", "model.path", "model.device", "model.tokenizer", "model.outline"}
    # `records`, the digest of their content, and the configs of their datasets enter the hash instead.
    | {"data.name", "data.source", "data.root", "data.label", "data.datasets", "data.available"}
    | {"data.limit", "data.half", "data.seed", "data.tokens", "data.load"}
    | {"dataset.groups"}
)
# Values that must be equal to compare two runs, besides code and dataset configs, in the order of headings.
COMPARED = (
    *("results_version", "weights_format", "dtype", "attention"),
    *("model.limit", "model.chat", "model.template", "model.remove", "model.shape"),
    *("data.limit", "data.half", "data.seed", "data.tokens"),
    *("trace_tokens", "weights"),
)
# How much a method prunes, and where: tables and figures always show these settings.
LABELLED = ("schedule", "layer", "keep", "scope", "ratio")

# A setting's neutral value reproduces what runs did before the setting existed: its default, unless it stands here.
# At this value a setting is left out of the hash, so finished runs keep their hashes when a setting is added.
# Whoever changes a default declares the old one here, as "trace_tokens" or "StaticPruning.keep", and gets new runs.
NEUTRAL: dict[str, Any] = {}

_SECTIONS = {"model": ModelConfig, "data": DataConfig}
# Values that a label leaves out, besides those of the method's config in `conf/`.
_USUAL = {"repeats": 1, "ranking": "eq1", "protect": "none"}
# Their versions are in the environment, and that of LazyBench's results.
_VERSIONED = {"lazybench", "lazyllm", "torch", "transformers"} | sys.stdlib_module_names


def digest(values: Mapping[str, Any]) -> str:
    """Return a short hash (12 hex digits) of values that JSON can hold."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_hash(settings: Mapping[str, Any], environment: Mapping[str, Any], dataset_configs: Mapping[str, Any]) -> str:
    """Return the hash that names a run's folder; the arguments are those of `hashed`."""
    return digest(hashed(settings, environment, dataset_configs))


def hashed(
    settings: Mapping[str, Any], environment: Mapping[str, Any], dataset_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that enters the hash, by name, without settings at their neutral values.

    Args:
        settings: the settings as `config.yaml` has them, or some of them.
        environment: contents of `environment.json`.
        dataset_configs: the `DatasetConfig` of each dataset that is run.
    """
    neutral, values = neutral_values(), _flatten(settings, environment)
    if "method" in settings:
        values["method"] = method_identity(settings["method"])
    # A module may be moved, so its digest counts without its name.
    values["code"] = sorted((settings.get("code") or {}).values()) or None
    values |= _dataset_identities(dataset_configs)
    return {key: value for key, value in values.items() if key not in NOT_HASHED and value != neutral.get(key)}


def comparable(
    settings: Mapping[str, Any], environment: Mapping[str, Any], dataset_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values that must be equal to compare two runs, where both runs have them.

    The arguments are those of `hashed`. A run made before a setting existed gets the neutral value.
    """
    neutral, values = neutral_values(), _flatten(settings, environment)
    compared = {key: values.get(key, neutral.get(key)) for key in COMPARED}
    code = {f"code.{module}": digest for module, digest in (settings.get("code") or {}).items()}
    return compared | code | _dataset_identities(dataset_configs)


def shown(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a label shows of a method, by name.

    `LABELLED` settings are always included, others if they differ from the method's config in `conf/`. For a method
    from outside, all settings are included that are set.
    """
    path = CONF / "method" / f"{method}.yaml"
    usual = _USUAL | (yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {})
    values = {}
    for name, value in settings.items():
        is_unset = not path.is_file() and (value is None or value is False)
        is_usual = name in ("name", "_target_") or (name in usual and usual[name] == value)
        if name in LABELLED or not (is_unset or is_usual):
            values[name] = value
    return values


def method_identity(settings: Any) -> Any:
    """Return a method's settings without neutral ones, with only the class's name of each `_target_`."""
    if isinstance(settings, list | tuple):
        return [method_identity(item) for item in settings]
    if not isinstance(settings, Mapping):
        return settings
    neutral = class_neutral(settings["_target_"]) if "_target_" in settings else {}
    own = {key: value for key, value in settings.items() if key not in neutral or value != neutral[key]}
    named = {"_target_": class_name(settings)} if "_target_" in settings else {}
    return {key: method_identity(value) for key, value in own.items()} | named


def class_name(settings: Mapping[str, Any]) -> str:
    """Return the name of the class that `_target_` names, wherever the class is defined."""
    return str(settings.get("_target_", "")).rpartition(".")[2]


def neutral_values() -> dict[str, Any]:
    """Return the neutral value of each setting of `run` that has a default."""
    defaults = {key: value for key, value in _defaults(RunConfig) if key not in (*_SECTIONS, "method", "timing")}
    for section, schema in _SECTIONS.items():
        defaults |= {f"{section}.{key}": value for key, value in _defaults(schema)}
    return defaults | NEUTRAL


def class_neutral(target: str) -> dict[str, Any]:
    """Return the neutral values of the settings of the class `target`; empty if it cannot be imported."""
    try:
        settings = resolve_name(target)
    except Exception:  # a module from outside may raise anything
        return {}
    return _neutral(settings, settings.__name__) if is_dataclass(settings) else {}


def code_digests(method: object, settings: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, str]:
    """Return a digest of each module from outside that a run's results depend on, by module.

    Comments, layout and the module's imports do not count.

    Args:
        method: the method; the modules of its class and of the bases of that count.
        settings: settings with `_target_` in them, at any depth; the modules of those count.
        metrics: names of metrics; the modules of the user's own, `module.function`, count.
    """
    names = {base.__module__ for base in type(method).__mro__}
    names |= {name for name in (*_targets(settings), *metrics) if "." in name}
    modules = {_module(name) for name in names if name.partition(".")[0] not in _VERSIONED}
    return {module.__name__: _code_digest(module) for module in sorted(modules, key=lambda module: module.__name__)}


def _dataset_identities(dataset_configs: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return by dataset the settings of its config that results depend on, without neutral ones."""
    identities = {}
    for name, dataset in (dataset_configs or {}).items():
        neutral = _neutral(type(dataset), "dataset")
        values = {field.name: getattr(dataset, field.name) for field in fields(dataset)}
        identities[f"dataset.{name}"] = {
            key: value
            for key, value in values.items()
            if f"dataset.{key}" not in NOT_HASHED and (key not in neutral or value != neutral[key])
        }
    return identities


def _flatten(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    values = {**settings, **environment}
    for section in _SECTIONS:
        values |= {f"{section}.{key}": value for key, value in (settings.get(section) or {}).items()}
    return {key: value for key, value in values.items() if key not in _SECTIONS}


def _neutral(schema: Any, section: str) -> dict[str, Any]:
    return {key: NEUTRAL.get(f"{section}.{key}", value) for key, value in _defaults(schema)}


def _defaults(schema: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(schema):
        if field.default_factory is not MISSING:
            yield field.name, field.default_factory()
        elif field.default not in (MISSING, omegaconf.MISSING):
            yield field.name, field.default


def _module(name: str) -> ModuleType:
    """Return the module in a dotted path to something in it."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return _module(name.rpartition(".")[0])


def _targets(settings: object) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        settings = [*settings.values()]
    for value in settings if isinstance(settings, list | tuple) else ():
        yield from _targets(value)


@cache  # a file may be edited while a sweep runs the module that is loaded
def _code_digest(module: ModuleType) -> str:
    return digest({"code": ast.unparse(ast.parse(Path(module.__file__ or "").read_bytes()))})
