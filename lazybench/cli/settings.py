"""Compose the settings of a command's jobs with Hydra, check them, and explain errors in one line."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lazybench.cli.arguments import GROUPS
from lazybench.config import CONF
from lazybench.data import choose, load_dataset_configs
from lazybench.errors import LazyBenchError, causes_of, first_line, suggest

# The extra that installs each of Hydra's launchers.
_EXTRAS = {"joblib": "joblib", "ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}
# Advice about a choice that does not exist, by group.
_ADVICE = {
    "model": "; for a hub id, folder or .gguf file give model.path= and model.limit=TOKENS, its longest prompt",
    "hydra/launcher": "; pip install 'PATH_TO_THIS_CHECKOUT[joblib]', or [submitit] or [ray], installs more",
}


def search_path(folders: Iterable[Path]) -> list[str]:
    """Return the override that adds the user's folders to Hydra's search path, none without folders."""
    paths = ",".join(f'"file://{folder.absolute()}"' for folder in folders)
    return [f"hydra.searchpath=[{paths}]"] * bool(paths)


def own_folders(hydra: DictConfig) -> list[str]:
    """Return the user's folders of configs, from the part `hydra` of a job's config."""
    return [source.path for source in hydra.runtime.config_sources if source.provider.endswith("command-line")]


def config_file(command: str) -> str:
    """Return the name of a command's own config in `conf/`."""
    return "config" if command in ("run", "plan") else command


def stand_in_for_launchers() -> None:
    """Let jobs compose with launchers that are not installed; their `_target_` names the extra to install."""
    Plugins.instance()  # finds those that are
    store = ConfigStore.instance()
    for name, extra in _EXTRAS.items():
        if f"{name}.yaml" not in store.list("hydra/launcher"):
            # The settings of a launcher that is not installed are unknown: accept any.
            node = OmegaConf.create({"_target_": f"PATH_TO_THIS_CHECKOUT[{extra}]"}, flags={"struct": False})
            store.store(name, node, group="hydra/launcher")


def compose_jobs(command: str, words: Sequence[str], multirun: bool = False) -> list[DictConfig]:
    """Compose the configs of all jobs that a command's words stand for, each with Hydra's part `hydra`.

    Values in `words` replace those that an experiment sweeps over, as they do for Hydra's launchers.

    Raises:
        LazyBenchError: Hydra refuses a word, or there are several jobs without `multirun`.
    """
    name, choices, job = config_file(command), {}, ()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            parser = OverridesParser.create(hydra.config_loader)
            # Without a method's settings: the default method, which no job may use, can lack them.
            parsed = parser.parse_overrides([*words])
            common = [each.input_line for each in parsed if each.key_or_group.partition(".")[0] not in GROUPS]
            params = []
            # Only what is added, such as +experiment=, and Hydra's own settings can have a sweep; composing takes long.
            if any(each.is_add() or each.key_or_group.startswith("hydra") for each in parsed):
                sweeper = hydra.compose_config(name, common, RunMode.MULTIRUN, from_shell=False).hydra.sweeper
                params = [f"{key}={values}" for key, values in (sweeper.params or {}).items()]
            overrides = parser.parse_overrides([*params, *words])
            choices = {override.key_or_group: _values(override, multirun) for override in overrides}
            configs = []
            for job in product(*choices.values()):
                configs.append(compose(name, [*job], return_hydra_config=True))
    except Exception as error:  # Hydra raises many kinds
        of_job = zip(choices.items(), job, strict=False)  # empty if Hydra did not reach a job
        swept = [word for (key, values), word in of_job if key in GROUPS and len(values) > 1]
        raise LazyBenchError(f"{' '.join(swept)}{': ' * bool(swept)}{explain(error)}") from error
    for config in configs:
        if (config.hydra.sweeper.params or {}).keys() - choices.keys():
            raise LazyBenchError("the experiments sweep over different things: give one at a time")
    return configs


def _values(override: Override, multirun: bool) -> list[str]:
    """Return the overrides that an override sweeps over, or itself."""
    key, is_choice = override.key_or_group, override.key_or_group in (*GROUPS, "task", "experiment", "cluster")
    if override.is_sweep_override():
        values = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if multirun or len(values) == 1:
            return values
        in_brackets = "" if is_choice else f", or write a list in brackets, '{key}=[...]'"
        raise LazyBenchError(f"{override.input_line} is several values: add -m to run each of them{in_brackets}")
    if is_choice and isinstance(override.value(), list):  # Hydra would merge the configs
        raise LazyBenchError(f"{override.input_line} is a list: leave out the brackets, and add -m to run each of them")
    return [override.input_line]


def read(config: DictConfig, hydra: DictConfig) -> Any:
    """Turn a composed config into an object of its command's schema, and make the user's folders importable.

    `hydra` is the config's part of that name, which a launched job's config lacks.

    Raises:
        LazyBenchError: a setting is missing or wrong, or its task does not exist.
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
    if getattr(settings, "task", None) is not None:  # before torch is imported, which takes seconds
        choose(settings.task, settings.data, load_dataset_configs(settings.data.datasets))
    sys.path += [folder for folder in own_folders(hydra) if folder not in sys.path]
    return settings


def literal_escapes(settings: Any) -> Iterator[str]:
    r"""Warn of prompts with a literal `\n`: YAML reads it as a line break only in double quotes."""
    prompts = {"model.chat": settings.model.chat}
    datasets = settings.data.datasets if hasattr(settings, "data") else {}
    for name, config in datasets.items():
        prompts[f"data.datasets.{name}.prompt"] = (config or {}).get("prompt")
    for key, prompt in prompts.items():
        if prompt and r"\n" in prompt:
            yield f"{key} holds a backslash and an n: for a line break, put it in double quotes in YAML"


def _name_model(config: DictConfig, words: Iterable[str]) -> None:
    """Name a model that is given only by its path after that path, and reset its dtype to `auto`."""
    given = {word.partition("=")[0] for word in words}
    # Beside a shape, whose weights are random, the path is the tokenizer's.
    if "model.path" not in given or config.model.get("shape"):
        return
    if not given & {"model", "model.dtype"}:
        config.model.dtype = "auto"
    if "model.name" not in given:
        stem = Path(config.model.path).name.removesuffix(".gguf")
        config.model.name = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).lstrip("-_.") or "model"


def explain(error: BaseException) -> str:
    """Explain in one line why Hydra or a schema refused a word, with a correction for common mistakes."""
    causes = list(causes_of(error))
    if own := next((cause for cause in causes if isinstance(cause, LazyBenchError)), None):
        return str(own)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read: write KEY=VALUE, or \"KEY='VALUE'\" for a value with special characters"
        )
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, name = error.missing_cfg_file.rsplit("/", 1)
        advice = next((text for key, text in _ADVICE.items() if group.startswith(key)), "")
        return f"there is no {group} {name!r}: {suggest(name, error.options or [])}{advice}"
    if isinstance(error, MarkedYAMLError):
        return f"{error.problem_mark.name}:{error.problem_mark.line + 1}: {error.problem}"
    keyed = next((cause for cause in causes if isinstance(cause, OmegaConfBaseException) and cause.full_key), None)
    if keyed is None:
        return first_line(error)
    if not isinstance(keyed, ConfigAttributeError | ConfigKeyError):
        return f"{keyed.full_key}: {first_line(keyed)}"
    prefix, _, leaf = str(keyed.full_key).rpartition(".")
    keys = keyed.parent_node if isinstance(keyed.parent_node, DictConfig) else ()
    names = [str(key) for key in keys if key not in ("hydra", "_target_", leaf)]
    if not names:
        return f"there is no setting {keyed.full_key!r}: add it with a plus, +{keyed.full_key}=VALUE"
    hint = suggest(leaf, names, f"{prefix}." if prefix else "")
    return f"there is no setting {keyed.full_key!r}: {hint}"
