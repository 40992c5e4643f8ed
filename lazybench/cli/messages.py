"""Says in one line what is wrong with a command line that Hydra reads; what is rare, in Hydra's own words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lazybench.cli.configs import names_in
from lazybench.cli.precheck import one_or_several
from lazybench.data.facts import load_facts, task_choices
from lazybench.errors import LazyBenchError, causes_of, first_line, suggest
from lazybench.model.instance import which_setting
from lazyllm import LazyLLMError

# Which extra brings a launcher of Hydra's.
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
# Settings that take a list.
_LISTS = ("method.schedule", "model.remove", "lengths", "speedups")
# What else people call a setting.
_ALIASES = {"dataset": "task", "datasets": "task"}
_TYPES = {
    "IntegerNode": "a whole number",
    "FloatNode": "a number",
    "BooleanNode": "true or false",
    "StringNode": "text",
    "ListConfig": "a list such as [a,b]",
    "DictConfig": "keys and values such as {a:1}",
}
# What Hydra's first line begins with: where it looked, and the names of exceptions.
_FRAME = re.compile(r"^(In '[^']*': |\w+(Error|Exception|Warning)( raised while [^:]*)?: )+")


def explain(error: BaseException) -> str:
    """What was wrong with the settings, and what would be right."""
    causes = list(causes_of(error))
    for cause in causes:  # a check of ours, or of the library's, says it best
        if isinstance(cause, LazyBenchError | LazyLLMError):
            return str(cause)
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _no_choice(error.missing_cfg_file, error.options)
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part is not None)
    if isinstance(error, MarkedYAMLError):
        return f"{error.problem_mark.name}:{error.problem_mark.line + 1}: {error.problem}"
    text = str(error)
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'", text):
        key, _, values = found[1].partition("=")
        one = f"; a list stands in brackets, {key}=[{values}]" if key in _LISTS else ""
        return one_or_several(found[1]) or f"{found[1]} is several values: -m makes a run of each{one}"
    if found := re.search(
        r"An item is already at '(.*?)'|(\S+) appears more than once|Multiple values for (\w+)", text
    ):
        return f"{found[found.lastindex]} is set already: write it without the plus"
    if found := re.search(r"Could not override '(.*?)'. No match", text):
        return f"{found[1]} is no setting of this command"  # an experiment asks for it
    cause = next((cause for cause in causes if isinstance(cause, OmegaConfBaseException) and cause.full_key), None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _unknown_key(cause)
    if cause is not None and (found := re.search(r"Error merging override (.*)", text)):
        return _wrong_type(found[1], cause)
    said = _FRAME.sub("", first_line(next((cause for cause in causes if str(cause).strip()), error)))
    said = said.partition(" See https://")[0].strip('"')
    return said if cause is None else f"{cause.full_key}: {said}"


def _no_choice(path: str, options: Sequence[str] | None) -> str:
    """What was meant by a name that nothing in a config group has."""
    group, _, name = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    if group == "hydra/launcher" and name in _EXTRAS:
        return f"hydra/launcher={name} is not installed: pip install 'lazybench[{_EXTRAS[name]}]'"
    is_place = "/" in name or name.endswith(".gguf") or os.path.isdir(name)
    if group == "model" and is_place:
        return (
            f"there is no model config {name!r}: for a hub id, folder or .gguf file give model.path={name} and "
            "model.limit=TOKENS, its longest prompt"
        )
    if group == "data" and is_place:
        return f"there is no data config {name!r}: for a folder of records give data=longbench data.root={name}"
    if group == "data" and name in task_choices(load_facts()):
        return f"there is no data {name!r}: did you mean task={name}?"
    return f"there is no {group} {name!r}: {suggest(name, options or names_in(group))}"


def _unreadable(word: str) -> str:
    """What keeps Hydra's grammar from reading a word."""
    key, _, value = word.partition("=")
    if value.count("'") % 2 or value.count('"') % 2:
        return f"{word}: a quote is opened or closed and the other one is missing"
    if any(value.count(opening) != value.count(closing) for opening, closing in ("[]", "{}", "()")):
        return f"{word}: a bracket is opened or closed and the other one is missing"
    if "" in value.split(","):
        return f"{word}: a value is missing next to a comma"
    return f"{word} cannot be read: a value with such signs stands in quotes within quotes, \"{key}='{value}'\""


def _unknown_key(cause: OmegaConfBaseException) -> str:
    """Which setting was meant by one that is not there."""
    place, (prefix, _, leaf) = cause.parent_node, str(cause.full_key).rpartition(".")
    if prefix.startswith("hydra"):
        return f"Hydra has no setting {cause.full_key!r}: lazybench run --cfg hydra shows those that it has"
    names = [str(name) for name in place if name not in ("hydra", leaf)] if isinstance(place, DictConfig) else []
    if prefix == "method":
        return f"method {place.get('name')} has no setting {leaf!r}: {which_setting(leaf, names, 'method.')}"
    if OmegaConf.get_type(place) is dict:
        return f"{prefix} takes keys of your own with a plus in front: +{prefix}={{{leaf}: VALUE}}"
    prefix = f"{prefix}." if prefix else ""
    inner = [name for name in names if isinstance(place._get_node(name), DictConfig) and leaf in place[name]]
    near = " or ".join(repr(f"{prefix}{name}.{leaf}") for name in inner)
    hint = f"did you mean {near}?" if inner else suggest(_ALIASES.get(leaf, leaf), names, prefix)
    return f"there is no setting {cause.full_key!r}: {hint}"


def _wrong_type(word: str, cause: OmegaConfBaseException) -> str:
    """Of which type a setting is whose value is of another."""
    node = cause.parent_node if cause.key is None else cause.child_node
    wanted = _TYPES.get(type(node).__name__)
    if wanted is None:
        return f"{word}: {first_line(cause)}"
    within = "" if cause.full_key == word.lstrip("+").partition("=")[0] else f"{cause.full_key} "
    return f"{word}: {within}must be {wanted}{' or null' if node._is_optional() else ''}"
