"""Compose the settings of a command's jobs with Hydra, check them, and explain errors in one line."""

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
from lazybench.run.command_line import own_folders

_GROUPS = ("model", "method", "data")
_EXTRAS = ("joblib", "submitit", "ray")  # of pip install 'lazybench[...]', each with launchers of its name


def search_path(folders: Iterable[Path]) -> str:
    """Return the override that adds the user's folders to Hydra's search path."""
    paths = ",".join(f'"file://{folder.absolute()}"' for folder in folders)
    return f"hydra.searchpath=[{paths}]"


def in_turn(config: DictConfig) -> bool:
    """Return whether a sweep's jobs run in this process, one after the other, because no launcher is chosen."""
    return config.hydra.launcher._target_.endswith(".BasicLauncher")


def config_file(command: str) -> str:
    """Return the name of a command's own config in `conf/`."""
    return "config" if command in ("run", "plan") else command


def compose_jobs(command: str, words: Sequence[str], multirun: bool) -> tuple[list[DictConfig], list[str]]:
    """Compose the configs of all jobs that a command's words stand for.

    Values in `words` replace those that an experiment sweeps over.

    Returns:
        the configs, each with Hydra's part `hydra`, and the words from which a launcher of Hydra makes the same jobs.

    Raises:
        LazyBenchError: Hydra refuses a word, or there are several jobs without `multirun`.
    """
    jobs: list[DictConfig] = []
    sweeps: list[list[str]] = []  # of each experiment
    name = config_file(command)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            for overrides in _combinations(words):
                if not multirun and (several := [word for word in words if word not in overrides]):
                    raise LazyBenchError(_suggest_multirun(several))
                config = compose(name, overrides, return_hydra_config=True)
                sweeps.append(swept := _experiment_sweep(config, words))
                if swept and not multirun:
                    keys = " and ".join(word.partition("=")[0] for word in swept)
                    raise LazyBenchError(f"the experiment sweeps over {keys}: add -m, or set a value of each")
                combinations = _combinations([*swept, *overrides]) if swept else []
                jobs += [compose(name, each, return_hydra_config=True) for each in combinations] or [config]
    except Exception as error:  # Hydra raises many kinds
        raise LazyBenchError(explain(error)) from error
    if not in_turn(jobs[0]) and any(sweep != swept for sweep in sweeps):
        raise LazyBenchError("experiments that sweep over different things, with +cluster=: give one at a time")
    return jobs, [*swept, *words, *(["hydra.sweeper.params=null"] if swept else [])]


def _combinations(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job: every combination of the values that words sweep over."""
    choices = []
    for override in OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides([*words]):
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            continue
        if override.key_or_group in (*_GROUPS, "task") and isinstance(names := override.value(), list):
            # Hydra would merge the configs.
            sweep = f"{override.key_or_group}={','.join(map(str, names))}"
            raise LazyBenchError(f"{override.input_line} is a list: give {sweep}, with -m to run each of them")
        choices.append([override.input_line])
    return [list(combination) for combination in product(*choices)]


def _suggest_multirun(words: Sequence[str]) -> str:
    """Suggest `-m` for words with several values, or brackets if one of them can be a list."""
    message = f"{' and '.join(words)} {'is' if len(words) == 1 else 'are'} several values: add -m to run each of them"
    for key, _, values in (word.partition("=") for word in words):
        if key.lstrip("+") not in (*_GROUPS, "task", "experiment", "cluster"):
            return f"{message}, or write a list in brackets, '{key}=[{values}]'"
    return message


def _experiment_sweep(config: DictConfig, words: Sequence[str]) -> list[str]:
    """Return, as overrides, what an experiment sweeps over and `words` do not set."""
    given = {word.lstrip("+").partition("=")[0] for word in words}
    params = config.hydra.sweeper.get("params") or {}
    return [f"{key}={value}" for key, value in params.items() if key.lstrip("+") not in given]


def read(config: DictConfig, hydra: DictConfig) -> Any:
    """Turn a composed config into an object of its command's schema, and make the user's folders importable.

    Args:
        config: what Hydra composed.
        hydra: its part `hydra`, which a launched job's config lacks.

    Raises:
        LazyBenchError: a setting is missing or wrong, or names something that does not exist.
    """
    values = {key: value for key, value in OmegaConf.to_container(config).items() if key != "hydra"}
    try:
        # Hydra accepts any setting with a plus in front; the schema does not.
        merged = OmegaConf.merge(OmegaConf.structured(OmegaConf.get_type(config)), values)
        if missing := sorted(OmegaConf.missing_keys(merged)):
            raise LazyBenchError(f"nothing is set for {', '.join(missing)}: give it as {missing[0]}=VALUE")
        _name_model(merged, hydra.overrides.task)
        settings = OmegaConf.to_object(merged)
    except Exception as error:
        raise LazyBenchError(explain(error)) from error
    _check_names(settings)
    sys.path += [folder for folder in own_folders(hydra) if folder not in sys.path]
    return settings


def _check_names(settings: Any) -> None:
    """Refuse a task or text file that does not exist before the imports that take seconds."""
    text, task = (getattr(settings, key, None) for key in ("text", "task"))
    if text is not None and (not os.path.exists(text) or os.path.isdir(text)):
        raise LazyBenchError(f"text={text} cannot be read: there is no such file, or it is a folder")
    if task is not None:
        choose(task, settings.data, load_facts(settings.data.datasets))


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
    """Name a model that is given by its path alone after that path, and choose its dtype anew."""
    given = {word.partition("=")[0] for word in words}
    # The path of a shape with random weights is that of its tokenizer.
    if "model.path" not in given or config.model.get("shape"):
        return
    if not given & {"model", "model.dtype"}:
        config.model.dtype = "auto"
    if "model.name" not in given:
        stem = Path(config.model.path).name.removesuffix(".gguf")
        config.model.name = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).lstrip("-_.") or "model"


def explain(error: BaseException) -> str:
    """Explain in one line why Hydra or a schema refused a word: for common mistakes what would be right."""
    causes = list(causes_of(error))
    if own := next((cause for cause in causes if isinstance(cause, LazyBenchError)), None):
        return str(own)
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        escaped = re.sub(r"([\"'])", r"\\\1", value)
        quoted = f"put such a value in quotes within quotes, \"{key}='{escaped}'\""
        return f"{error.override} cannot be read: {quoted if equals else 'write a setting and its value, key=value'}"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _unknown_choice(*error.missing_cfg_file.rsplit("/", 1), error.options or [])
    if isinstance(error, MarkedYAMLError):
        return f"{error.problem_mark.name}:{error.problem_mark.line + 1}: {error.problem}"
    keyed = next((cause for cause in causes if isinstance(cause, OmegaConfBaseException) and cause.full_key), None)
    if keyed is None:
        return first_line(error)
    if isinstance(keyed, ConfigAttributeError | ConfigKeyError):
        return _unknown_setting(keyed)
    return f"{keyed.full_key}: {first_line(keyed)}"


def _unknown_choice(group: str, name: str, options: Sequence[str]) -> str:
    extra = name.partition("_")[0]
    if group == "hydra/launcher" and extra in _EXTRAS:
        return f"hydra/launcher={name} is not installed: pip install 'lazybench[{extra}]'"
    message = f"there is no {group} {name!r}: {suggest(name, options)}"
    if group.partition("/")[0] == "model":
        message += "; for a hub id, folder or .gguf file give model.path= and model.limit=TOKENS, its longest prompt"
    return message


def _unknown_setting(error: OmegaConfBaseException) -> str:
    parent, (prefix, _, leaf) = error.parent_node, str(error.full_key).rpartition(".")
    keys = parent if isinstance(parent, DictConfig) else ()
    names = [str(key) for key in keys if key not in ("hydra", "_target_", leaf)]
    hint = f"it has none; add one of your own with a plus, +{prefix}={{{leaf}: VALUE}}"
    if names:
        hint = suggest(leaf, names, f"{prefix}." if prefix else "")
    return f"there is no setting {error.full_key!r}: {hint}"
