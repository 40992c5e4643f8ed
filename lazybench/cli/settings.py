"""Settings: Hydra composes them of a command's words, this checks them; what is wrong with them is said in one line."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lazybench.config import CONF
from lazybench.data import choose, load_facts
from lazybench.errors import LazyBenchError, causes_of, first_line, suggest
from lazybench.run.origin import own_folders

# Which extra brings a launcher of Hydra's.
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
_ONE = ("model", "method", "data", "task")  # of which a run has one
# Settings that may be a list, and texts that may hold a comma.
_LISTS = ("method.schedule", "lengths", "speedups", "data.depths", "model.remove")
_TEXTS = ("output", "profile", "text", "data.root", "model.path", "model.chat")
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
# What Hydra's first line begins with: where it looked, and the names of exceptions.
_FRAME = re.compile(r"^(In '[^']*': |\w+(Error|Exception)(?: raised while [^:]*)?: )+")


def search_path(folders: Iterable[Path]) -> str:
    """The word that has Hydra look for configs in the user's folders, too."""
    places = ",".join(f'"file://{folder.absolute()}"' for folder in folders)
    return f"hydra.searchpath=[{places}]"


def in_turn(config: DictConfig) -> bool:
    """Whether a sweep's jobs run in this process, one after the other: no launcher is asked for."""
    return config.hydra.launcher._target_.endswith(".BasicLauncher")


def file_of(command: str) -> str:
    """The name of a command's own config in `conf/`."""
    return "config" if command in ("run", "plan") else command


def compose_jobs(command: str, words: Sequence[str], multirun: bool) -> tuple[list[DictConfig], list[str]]:
    """What Hydra makes of a command's words: the jobs' configs, and the words that say all of the sweep.

    Of a setting that an experiment sweeps over, the given value counts; `multirun` says that there may be several jobs.

    Raises:
        LazyBenchError: a word is not what Hydra takes, or there are several jobs.
    """
    jobs: list[DictConfig] = []
    sweeps: list[list[str]] = []  # of each experiment
    name = file_of(command)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            for given in _each(words):
                if not multirun and (several := [word for word in words if word not in given]):
                    raise LazyBenchError(_several(several))
                config = compose(name, given, return_hydra_config=True)
                sweeps.append(swept := _swept(config, words))
                if swept and not multirun:
                    keys = " and ".join(word.partition("=")[0] for word in swept)
                    raise LazyBenchError(f"the experiment sweeps over {keys}: add -m, or set a value of each")
                each = _each([*swept, *given])
                jobs += [compose(name, one, return_hydra_config=True) for one in each] if swept else [config]
    except Exception as error:  # Hydra meets bad words with any
        raise LazyBenchError(explain(error)) from error
    if not in_turn(jobs[0]) and any(of != swept for of in sweeps):
        raise LazyBenchError("experiments that sweep over different things, with +cluster=: give one at a time")
    return jobs, [*swept, *words, *(["hydra.sweeper.params=null"] if swept else [])]


def _each(words: Sequence[str]) -> Iterator[list[str]]:
    """The words of each job: those that have several values make a job of each."""
    values = []
    for word in OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides([*words]):
        if word.is_sweep_override():
            values.append([f"{word.get_key_element()}={value}" for value in word.sweep_string_iterator()])
        else:
            if word.key_or_group in _ONE and isinstance(chosen := word.value(), list):  # Hydra would merge them
                several = f"{word.key_or_group}={','.join(map(str, chosen))}"
                raise LazyBenchError(f"{word.input_line} is a list: give {several}, with -m to run each of them")
            values.append([word.input_line])
    return map(list, product(*values))


def _several(words: Sequence[str]) -> str:
    """Suggest `-m` for words with several values; also brackets where a list was meant, or quotes for a text."""
    said = f"{' and '.join(words)} {'is' if len(words) == 1 else 'are'} several values: add -m to run each of them"
    for key, _, values in (word.partition("=") for word in words):
        if key in _LISTS:
            return f"{said}, or write a list in brackets, '{key}=[{values}]'"
        if key in _TEXTS:
            return f"{said}, or write a comma in quotes within quotes, \"{key}='{values}'\""
    return said


def _swept(config: DictConfig, words: Sequence[str]) -> list[str]:
    """What an experiment sweeps over and the words do not set, as words."""
    given = {word.lstrip("+").partition("=")[0] for word in words}
    params = config.hydra.sweeper.get("params") or {}
    return [f"{key}={value}" for key, value in params.items() if key.lstrip("+") not in given]


def read(config: DictConfig, about: DictConfig) -> Any:
    """The settings of a job as objects of its command's schema; the user's folders can be imported from afterwards.

    `config` is what Hydra composed, and `about` its part `hydra`.

    Raises:
        LazyBenchError: a setting is missing or wrong, or names what is not there.
    """
    given = {key: value for key, value in OmegaConf.to_container(config).items() if key != "hydra"}
    try:
        # Hydra takes any setting with a plus in front, the schema does not.
        merged = OmegaConf.merge(OmegaConf.structured(OmegaConf.get_type(config)), given)
        if missing := sorted(OmegaConf.missing_keys(merged)):
            raise LazyBenchError(f"nothing is set for {', '.join(missing)}: give it as {missing[0]}=VALUE")
        _name_model(merged, about.overrides.task)
        settings = OmegaConf.to_object(merged)
    except Exception as error:
        raise LazyBenchError(explain(error)) from error
    _check_names(settings)
    sys.path += [place for place in own_folders(about) if place not in sys.path]
    return settings


def _check_names(settings: Any) -> None:
    """Refuse, before the imports that take seconds, a task or file that is not there."""
    if (text := getattr(settings, "text", None)) is not None and (not os.path.exists(text) or os.path.isdir(text)):
        raise LazyBenchError(f"text={text} cannot be read: there is no such file, or it is a folder")
    if getattr(settings, "task", None) is not None:
        choose(settings.task, settings.data, load_facts(settings.data.datasets))


def literal_escapes(settings: Any) -> Iterator[str]:
    """Warn of prompts with a backslash and a letter where YAML makes a line break or tab only in double quotes."""
    templates = {"model.chat": settings.model.chat or ""}
    datasets = settings.data.datasets if hasattr(settings, "data") else {}
    for name, facts in load_facts(datasets).items():
        if name in datasets:
            templates |= {f"dataset {name!r}: {key}": getattr(facts, key) for key in ("prompt", "answer_prefix")}
    for name, text in templates.items():
        if escapes := " and ".join(dict.fromkeys(re.findall(r"\\[nrt]", text))):
            read = "which the model reads as a backslash and a letter"
            yield f"{name} holds a literal {escapes}, {read}: for line breaks or tabs, put it in double quotes in YAML"


def _name_model(config: DictConfig, words: Iterable[str]) -> None:
    """Name a model that was given by its path alone, so that it has not another one's name and dtype."""
    given = {word.partition("=")[0] for word in words}
    # The path of a shape with random weights is its tokenizer's alone.
    if "model.path" not in given or config.model.get("shape"):
        return
    if not given & {"model", "model.dtype"}:
        config.model.dtype = "auto"
    if "model.name" not in given:
        stem = Path(config.model.path).name.removesuffix(".gguf")
        config.model.name = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).lstrip("-_.") or "model"


def explain(error: BaseException) -> str:
    """What was wrong with a word: of common mistakes what would be right, else Hydra's first line."""
    causes = list(causes_of(error))
    for cause in causes:
        if isinstance(cause, LazyBenchError):  # a check of ours says it best
            return str(cause)
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        escaped = re.sub(r"([\"'])", r"\\\1", value)
        quoted = f"a value with such signs stands in quotes within quotes, \"{key}='{escaped}'\""
        return f"{error.override} cannot be read: {quoted if equals else 'write a setting and its value, key=value'}"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _no_choice(*error.missing_cfg_file.rsplit("/", 1), error.options or [])
    if isinstance(error, MarkedYAMLError):
        return f"{error.problem_mark.name}:{error.problem_mark.line + 1}: {error.problem}"
    cause = next((cause for cause in causes if isinstance(cause, OmegaConfBaseException) and cause.full_key), None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _no_setting(cause)
    said = _FRAME.sub("", first_line(cause or next((cause for cause in causes if str(cause).strip()), error)))
    if found := re.match(r"Value '(.*)' (?:of type .* could not be converted to|is not a valid) (\w+)", said):
        return f"{cause.full_key}={found[1]} must be {_KINDS.get(found[2], found[2])}"
    return said if cause is None else f"{cause.full_key}: {said}"


def _no_choice(group: str, name: str, options: Sequence[str]) -> str:
    if group == "hydra/launcher" and name in _EXTRAS:
        return f"hydra/launcher={name} is not installed: pip install 'lazybench[{_EXTRAS[name]}]'"
    said = f"there is no {group} {name!r}: {suggest(name, options)}"
    if group.partition("/")[0] == "model":
        said += "; for a hub id, folder or .gguf file give model.path= and model.limit=TOKENS, its longest prompt"
    return said


def _no_setting(cause: OmegaConfBaseException) -> str:
    place, (prefix, _, leaf) = cause.parent_node, str(cause.full_key).rpartition(".")
    there = place if isinstance(place, DictConfig) else ()
    hint = f"it has none; add one of your own with a plus, +{prefix}={{{leaf}: VALUE}}"
    if names := [str(name) for name in there if name not in ("hydra", "_target_", leaf)]:
        hint = suggest(leaf, names, f"{prefix}." if prefix else "")
    return f"there is no setting {cause.full_key!r}: {hint}"
