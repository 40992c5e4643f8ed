"""Turns what Hydra says of a bad command line into one line."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException, OverrideParseException, SearchPathException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lazybench.cli.arguments import read_arguments
from lazybench.cli.experiments import swept_by_experiments
from lazybench.config import CONF, RunConfig
from lazybench.data.facts import ALL, load_facts, tasks
from lazybench.errors import LazyBenchError, causes_of, suggest
from lazybench.model.instance import flat, of_method, why_not_made
from lazyllm.errors import LazyLLMError

_GROUPS = ("method", "model", "data", "experiment")
# Which extra brings a launcher of Hydra's.
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
_SETTINGS = [field.name for field in fields(RunConfig)]
_KEY = re.compile(r"(?P<sign>\+\+?|~?)(?P<key>[A-Za-z_$][^\s=]*)=", re.ASCII)
_SCHEDULE = "method.schedule"
_STAGE = re.compile(r"(?P<layer>\d+(?:\.\d+)?)(?P<unit>%?):[\d.]+", re.ASCII)
# Settings that take a list.
_LISTS = (_SCHEDULE, "model.remove", "lengths", "speedups")
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


_JARGON = (
    (r"^\w+ raised while resolving interpolation: ", ""),
    (r"^In '[^']*': |^\w+(Error|Exception) raised while composing config: ", ""),
    (r"Interpolation key '(.*)' not found", r"there is no setting '\1' to take its value from"),
    (r"Recursive interpolation detected", "it takes its value from itself"),
    (r"Unsupported interpolation type (\S+)", r"there is nothing called '\1' to take a value from"),
    (r"(missing|extraneous|mismatched|no viable|token recognition) .*", "what it is to be made of cannot be read"),
    (r"^While dereferencing interpolation ", ""),
    (r"of type '\w+' could not be converted to Integer", "is not a whole number"),
)


def check(program: str, words: Sequence[str]) -> None:
    """Raise `LazyBenchError` for flags and words that Hydra would answer with a page, a traceback or silence."""
    parser = get_args_parser()
    parser.prog = program
    given = read_arguments(parser, words)
    modes = {"--run": given.run, "--multirun": given.multirun, "--cfg": given.cfg, "--info": given.info}
    modes["--shell-completion"] = given.shell_completion
    asked = [flag for flag, value in modes.items() if value]
    if len(asked) > 1:
        raise LazyBenchError(f"{' and '.join(asked)} contradict each other: give one of them")
    if given.resolve and not (given.cfg or given.help):
        raise LazyBenchError("--resolve shows values, and does nothing by itself: add --cfg job")
    if given.experimental_rerun is not None:
        raise LazyBenchError("--experimental-rerun is not supported: the command that began a run also goes on with it")
    if given.package is not None:
        raise LazyBenchError("--package is not supported: --cfg job shows all settings")
    if given.shell_completion:
        return
    swept = swept_by_experiments(words)
    for word in given.overrides:
        _check_word(word)
        if _SCHEDULE not in swept:
            _check_schedules(word)
        if word.startswith("+cluster=") and not (given.multirun or given.cfg or given.info or given.help):
            raise LazyBenchError(f"{word} is where the jobs of a sweep run: add -m, also for a single one")


def _check_word(word: str) -> None:
    found = _KEY.match(word)
    if found is None:
        raise LazyBenchError(_no_setting(word))
    sign, key, value = found["sign"], found["key"], word[found.end() :]
    if sign == "~" and not key.startswith("hydra"):
        raise LazyBenchError(f"~{key} takes a setting away, and every one is needed: give a value, {key}=VALUE")
    if key in _GROUPS and not sign and re.fullmatch(r"null|true|false|[-+\d.e]+", value.lower()):
        raise LazyBenchError(f"{word} is no name: {suggest(value, _names(key))}")
    if key in _GROUPS and value.startswith("["):
        raise LazyBenchError(f"{word} is a list: choose one, {key}=NAME; -m makes a run of each of several, {key}=A,B")
    if key in ("experiment", "cluster") and not sign:
        raise LazyBenchError(f"{key} comes on top of the settings: write +{word}")


def _check_schedules(word: str) -> None:
    """Raise `LazyBenchError` for stages that may be meant as one schedule, and that Hydra would take for several."""
    key, _, value = word.partition("=")
    stages = [_STAGE.fullmatch(part.strip()) for part in value.split(",")]
    if key.lstrip("+") != _SCHEDULE or len(stages) < 2 or not all(stages):
        return
    for unit in ("", "%"):
        layers = [float(stage["layer"]) for stage in stages if stage["unit"] == unit]
        if any(after <= before for before, after in pairwise(layers)):
            return  # no schedule: layers increase in one
    several = ",".join(f"[{stage.group()}]" for stage in stages)
    raise LazyBenchError(
        f"{word} may be one schedule of {len(stages)} stages, '{key}=[{value}]', or a sweep over {len(stages)} "
        f"schedules, -m '{key}={several}': write which"
    )


def _no_setting(word: str) -> str:
    """What is wrong with a word that is not key=value."""
    bare = word.lstrip("+~")
    if word.startswith("~") and bare:
        return f"{word} takes a setting away, and every one is needed: give a value, {bare}=VALUE"
    if re.fullmatch(r"[\w./-]+", bare):
        meant = next((f"{group}={bare}" for group in _GROUPS if bare in _names(group)), None)
        if meant is None and bare in (ALL, *tasks(), *load_facts()):
            meant = f"task={bare}"
        if meant is None and bare in _SETTINGS:
            meant = f"{bare}=VALUE"
        if meant is not None:
            return f"{word!r} is not key=value: did you mean {meant}?"
    return f"{word!r} is not key=value: write a setting and its value, such as task=code"


def explain(error: BaseException) -> str:
    """What was wrong with the settings, and what would be right."""
    chain = list(causes_of(error))
    for cause in chain:  # a check of ours, or of the library's, says it best
        if isinstance(cause, LazyBenchError | LazyLLMError):
            return str(cause)
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    if isinstance(error, InstantiationException):
        return why_not_made("method", error)
    if isinstance(error, SearchPathException):
        return f"--config-dir: {flat(error).removeprefix('Additional config directory ')}"
    if isinstance(error, RecursionError):
        return "the brackets of a value are nested too deeply"
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None)
    return _misfit(error, chain)


def _misfit(error: BaseException, chain: list[BaseException]) -> str:
    """What is wrong with settings that Hydra can read but not put together."""
    text = flat(error)
    causes = [cause for cause in chain if isinstance(cause, OmegaConfBaseException)]
    if found := re.search(r"Could not override '([^']*)'", text):
        return _unknown_key(found.group(1), next((cause for cause in causes if cause.full_key), None))
    if found := re.search(
        r"Could not (?:find|load) '([^']*)'(?: Available options in '([^']*)': (.*?) Config search)?", text
    ):
        path, group, options = found.groups()
        group = group or path.partition("/")[0]
        name = path.removeprefix(f"{group}/")
        if group == "hydra/launcher" and name in _EXTRAS:
            return f"hydra/launcher={name} is not installed: pip install 'lazybench[{_EXTRAS[name]}]'"
        return _no_choice(group, name, options.split() if options else _names(group))
    if found := re.search(r"Ambiguous value for argument '([^=]+)=(.*?)' 1\. To use|Sweep parameters '(.*)'", text):
        key, values, swept = found.groups()
        if swept is not None:
            return f"{swept} is several values: -m makes a run of each"
        one = f"; a list stands in brackets, {key}=[{values}]" if key in _LISTS else ""
        return f"{key}={values} is several values: -m makes a run of each{one}"
    if found := re.search(r"Sweeping over Hydra's configuration is not supported : '(.*)'", text):
        return f"{found.group(1)}: Hydra's own settings cannot be swept, give one value"
    if found := re.search(r"does not support sweep type : (\w+)_SWEEP", text):
        return f"{found.group(1).lower()}() is endless: sweep over values with commas between, choice() or range()"
    if found := re.search(r"Could not append to config. An item is already at '([^']*)'", text):
        return f"{found.group(1)} is set already: write it without the plus"
    if found := re.search(r"Multiple values for ([\w/]+)|([\w/]+) appears more than once", text):
        return f"{found.group(1) or found.group(2)} is chosen already: write it without the plus"
    if found := re.search(r"Cannot find primary config '([^']*)'", text):
        return f"--config-name: there is no config {found.group(1)!r} in the folders that hold configs"
    if found := re.search(r"Primary config directory not found.*directory '([^']*)'", text):
        return f"--config-path: no such folder: {found.group(1)}"
    if found := re.search(r"Override (\S+) looks like a config group override", text):
        return f"{found.group(1)}: only a choice of method, model or data can be put elsewhere with @"
    if found := re.search(r"provider=.*searchpath in (.*), path=(.*) is not available", text):
        return f"hydra.searchpath: there is no folder {found.group(2)!r}"
    if "Running Hydra app with --multirun" in text:
        return "--multirun and hydra.mode=RUN contradict each other: give one of them"
    if found := re.search(r"Error merging override (.*)", text):
        return _wrong_type(found.group(1), next((cause for cause in causes if cause.full_key), None))
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {_cleaned(text)}"
    return _cleaned(next((flat(cause) for cause in chain if str(cause).strip()), text))


def _no_choice(group: str, name: str, options: Sequence[str]) -> str:
    """What was meant by a name that nothing in a config group has."""
    is_place = "/" in name or name.endswith(".gguf") or os.path.isdir(name)
    if group == "model" and is_place:
        return (
            f"there is no model config {name!r}: for a hub id, folder or .gguf file give model.path={name} and "
            "model.limit=TOKENS, its longest prompt"
        )
    if group == "data" and is_place:
        return f"there is no data config {name!r}: for a folder of records give data=longbench data.root={name}"
    if group == "data" and name in (ALL, *tasks(), *load_facts()):
        return f"there is no data {name!r}: did you mean task={name}?"
    return f"there is no {group} {name!r}: {suggest(name, options)}"


def _unreadable(error: OverrideParseException) -> str:
    """What keeps Hydra's grammar from reading a word."""
    word = error.override
    key, _, value = word.partition("=")
    if not re.fullmatch(r"[~+]{0,2}[\w.$/@-]+", key, re.ASCII) or ".." in key or key.endswith(".") or "//" in key:
        return f"{key!r} cannot be the name of a setting: write key=value, such as model.limit=1500"
    if found := re.search(r"Unknown function '(\w+)' Available: ?(\S+)", flat(error)):
        return f"{word}: there is no function {found.group(1)!r}; {_quoted(word, key, value)}"
    if found := re.search(r"(?:\w+Error|Exception) while evaluating '.*?': (.*?) See http", flat(error)):
        return f"{word}: {found.group(1)}"
    if not value:
        return f"{key}= cannot be read"
    if value.count("'") % 2 or value.count('"') % 2:
        return f"{word}: a quote is opened or closed and the other one is missing"
    if any(value.count(opening) != value.count(closing) for opening, closing in ("[]", "{}", "()")):
        return f"{word}: a bracket is opened or closed and the other one is missing"
    if value.startswith(",") or value.endswith(",") or ",," in value:
        return f"{word}: a value is missing next to a comma"
    return f"{word} cannot be read: {_quoted(word, key, value)}"


def _quoted(word: str, key: str, value: str) -> str:
    """How to write a value with signs in it that mean something to Hydra."""
    quoted = f"{key}='{value}'"
    try:
        OverridesParser.create().parse_override(quoted)
    except Exception:
        return "write key=value, such as task=code"
    return f'a value with such signs stands in quotes within quotes, "{quoted}"'


def _unknown_key(key: str, cause: OmegaConfBaseException | None) -> str:
    """Which setting was meant by one that is not there."""
    missing = (cause and cause.full_key) or key
    if missing.startswith("hydra"):
        return f"Hydra has no setting {missing!r}: lazybench run --cfg hydra shows those that it has"
    if cause is None and key in _SETTINGS:
        return f"{key} is no setting of this command"  # an experiment asks for it
    place = cause.parent_node if cause is not None else None
    if key != missing and OmegaConf.get_type(place) is dict:
        return f"{key} takes keys of your own with a plus in front: +{key}={{...}}"
    if not isinstance(place, DictConfig):
        return f"there is no setting {missing!r}: {suggest(missing, _SETTINGS)}"
    parent, _, leaf = missing.rpartition(".")
    if parent == "method":
        return f"method {place.get('name')} has no setting {leaf!r}: {of_method(leaf, map(str, place))}"
    return f"there is no setting {missing!r}: {_in_place(leaf, place, f'{parent}.' if parent else '')}"


def _in_place(leaf: str, place: DictConfig, prefix: str) -> str:
    """Which setting was meant by `leaf`, which is none of those at `place`."""
    names = [str(name) for name in place if name != "hydra" and name != leaf]
    if not names:
        return "leave it out"
    inner = [name for name in names if isinstance(place._get_node(name), DictConfig) and leaf in place[name]]
    if inner:
        return f"did you mean {' or '.join(repr(f'{prefix}{name}.{leaf}') for name in inner)}?"
    return suggest(_ALIASES.get(leaf, leaf), names, prefix)


def _wrong_type(word: str, cause: OmegaConfBaseException | None) -> str:
    """Of which type a setting is whose value is of another."""
    if cause is None:
        return f"{word} is not a value that can be set"
    node = cause.parent_node if cause.key is None else cause.child_node
    wanted = _TYPES.get(type(node).__name__)
    if wanted is None:
        return f"{word}: {_cleaned(flat(cause))}"
    key = word.lstrip("+").partition("=")[0]
    if key.startswith(f"{cause.full_key}."):
        return f"{word}: {cause.full_key} is {wanted} and has no settings of its own"
    within = "" if cause.full_key == key else f"{cause.full_key} "
    return f"{word}: {within}must be {wanted}{' or null' if node._is_optional() else ''}"


def from_hydra(error: BaseException) -> bool:
    """Whether Hydra itself, or what it reads settings with, stumbled: it meets some bad words with any exception."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return module.partition(".")[0] in ("hydra", "omegaconf", "antlr4")


def check_keys(config: DictConfig, schema: type) -> None:
    """Raise `LazyBenchError` for settings that nothing would read: with a plus in front Hydra takes any."""
    if OmegaConf.get_type(config) is not schema:
        raise LazyBenchError("--config-name: the config lacks LazyBench's settings: begin it with defaults: [config]")
    _check_place(config, "")


def _check_place(place: DictConfig, prefix: str) -> None:
    known = OmegaConf.get_type(place)
    if not is_dataclass(known):
        return  # a mapping for keys of the user's own
    names = [field.name for field in fields(known)]
    for key in place:
        name = f"{prefix}{key}"
        if key not in names:
            there = OmegaConf.masked_copy(place, [field for field in names if field in place])
            raise LazyBenchError(f"there is no setting {name!r}: {_in_place(str(key), there, prefix)}")
        inner = place._get_node(key)
        if isinstance(inner, DictConfig) and not inner._is_missing() and not inner._is_interpolation():
            _check_place(inner, f"{name}.")


def _cleaned(text: str) -> str:
    """A message of OmegaConf's or Hydra's without the names of their exceptions and where they looked."""
    for jargon, plain in _JARGON:
        text = re.sub(jargon, plain, text)
    return text.partition(" Config search path:")[0].partition(" See https://hydra.cc")[0].strip('"')


@cache
def _names(group: str) -> list[str]:
    """What there is to choose in a config group of ours."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))
