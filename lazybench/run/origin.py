"""How a run was asked for: what a command needs to say to ask for it, or for one like it, once more."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lazybench.config import RunConfig

GROUPS = ("model", "data", "method")
_SECTIONS = (*GROUPS, "timing")


def command_of(config: RunConfig) -> dict[str, Any]:
    """What the command under way chose and set; empty where Hydra did not read one.

    Args:
        config: the run's settings.

    Returns:
        `config_dirs`, the folders of the user's configs; `model`, `data` and `method`, the names of the chosen configs;
        and `settings`, what those configs do not say themselves, values by key (with `++` in front where a config
        lacks the key). The model's and the data's files and folders stand with their whole paths.
    """
    if not HydraConfig.initialized() or not GlobalHydra.instance().is_initialized():
        return {}
    about, folders = HydraConfig.get(), config_dirs()
    chose = {group: chosen(group) for group in GROUPS}
    words = [word for word in about.overrides.hydra if word.startswith("hydra.searchpath=")]
    words += [f"task={config.task}", *(f"{group}={name}" for group, name in chose.items())]
    try:
        said = _composed(tuple(folders), tuple(words))
    except (HydraException, OmegaConfBaseException):
        return {}  # the chosen configs are nothing by themselves: one takes a value from what was set
    settings = asdict(config)
    own = {}
    for section in _SECTIONS:
        own |= dict(_differing(said[section], _whole_paths(section, settings[section]), section))
    return {"config_dirs": folders, **chose, "settings": own}


def typed(command: str) -> str:
    """The words of the command under way, without the folders of this machine."""
    words = [re.sub(r"^([\w.]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "lazybench", command, *words])


def chosen(group: str) -> str | None:
    """The name of the config that the command under way chose for a group; None where Hydra did not read one."""
    return str(HydraConfig.get().runtime.choices[group]) if HydraConfig.initialized() else None


def config_dirs() -> list[str]:
    """The folders of the user's configs, as the command under way names them; none where Hydra did not read one."""
    if not HydraConfig.initialized():
        return []
    # `--config-dir` comes once; more folders can be given as `hydra.searchpath`.
    sources = HydraConfig.get().runtime.config_sources
    return [source.path for source in sources if source.provider.endswith("command-line")]


@lru_cache(maxsize=64)
def _composed(folders: tuple[str, ...], words: tuple[str, ...]) -> dict[str, Any]:
    """What the chosen configs say by themselves; `folders` tells apart those of the same names."""
    loader = GlobalHydra.instance().config_loader()
    config = loader.load_configuration("config", list(words), run_mode=RunMode.RUN)
    return {section: OmegaConf.to_container(config[section], resolve=True) for section in _SECTIONS}


def _whole_paths(section: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with whole paths of what lies on this machine."""
    if section == "data":
        return settings | {"root": _whole(settings["root"])}
    if section == "model":
        tokenizer = {key: _whole(value) for key, value in settings["tokenizer"].items()}
        return settings | {"path": _whole(settings["path"]), "tokenizer": tokenizer}
    return settings


def _whole(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() else value


def _differing(said: Mapping[str, Any], settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Key and value of each setting that is not what `said` says."""
    for name, value in settings.items():
        key = f"{prefix}.{name}"
        if name not in said:
            yield f"++{key}", value
        elif isinstance(value, dict) and isinstance(said[name], dict):
            yield from _differing(said[name], value, key)
        elif value != said[name]:
            yield key, value
