"""The help of a command that Hydra configures: its settings, their values, and what each means in plain words.

Nothing that is slow to import is needed: a meaning is what `lazybench.config` says, or a comment in a YAML file.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from lazybench.cli.configs import names_in
from lazybench.config import CONF, SCHEMAS
from lazybench.errors import LazyBenchError, first_line, suggest

# Where meanings begin, if the terminal is not narrow.
_COLUMN = 36
_FOOT = "--cfg job prints the settings and runs nothing; --hydra-help lists Hydra's own flags."


def text(command: str, words: Sequence[str]) -> str:
    """What `command` takes; of a method, model or data that `words` choose, its own settings.

    Args:
        command: one that Hydra configures.
        words: the words after it.
    """
    name = "run" if command == "plan" else command
    config = yaml.safe_load((CONF / f"{'config' if name == 'run' else name}.yaml").read_text("utf-8"))
    places = list(_config_dirs(words))
    chosen = {key: value for part in config["defaults"] if isinstance(part, dict) for key, value in part.items()}
    chosen = {group: value for group, value in chosen.items() if " " not in group}
    chosen |= {key: value for word in words for key, _, value in [word.partition("=")] if key in chosen}
    about = config["hydra"]["help"]["template"]
    groups = [*chosen, *(("experiment", "cluster") if name == "run" else ())]
    parts = [about.rstrip(), "Choices, as in model=llama2_7b:\n" + "\n".join(_choices(groups, places))]
    if command == "plan":
        parts.insert(0, "lazybench plan: what a run or a sweep would do, and for how long; it takes what run takes")
    width = shutil.get_terminal_size().columns
    settings = [("", _settings(SCHEMAS[name], config, chosen))]
    for group, value in chosen.items():
        settings.append((f"{group}={value}", _of_group(group, value, places, SCHEMAS[name])))
    for title, rows in settings:
        parts.append(f"Settings{f' of {title}' if title else ''}:\n" + "\n".join(_row(*row, width) for row in rows))
    return "\n\n".join([*parts, _FOOT])


def _config_dirs(words: Sequence[str]) -> Iterator[Path]:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        flag, equals, place = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            yield Path(place if equals else after)


def _choices(groups: Sequence[str], places: Sequence[Path]) -> Iterator[str]:
    for group in groups:
        own = sorted(path.stem for place in places for path in (place / group).glob("*.yaml"))
        plus = "+" if group in ("experiment", "cluster") else ""
        names = ", ".join([*names_in(group), *own])
        yield textwrap.fill(names, 110, initial_indent=f"  {plus}{group}: ", subsequent_indent="    ")


def _settings(schema: type, config: Mapping[str, Any], chosen: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """The settings of the command itself: key, value, meaning."""
    kinds, meanings = get_type_hints(schema), _attributes(schema)
    for of in fields(schema):
        if is_dataclass(kinds[of.name]) and of.name not in chosen:
            inner, given = _attributes(kinds[of.name]), config.get(of.name) or {}
            for part in fields(kinds[of.name]):
                yield f"{of.name}.{part.name}", given.get(part.name, part.default), inner[part.name]
        elif of.name not in chosen:
            yield of.name, config.get(of.name, of.default), meanings[of.name]


def _of_group(group: str, name: str, places: Sequence[Path], schema: type) -> Iterator[tuple[str, Any, str]]:
    """The settings of what was chosen in a group: those of its schema, or where it has none those of its file."""
    found = [path for place in (CONF, *places) if (path := place / group / f"{name}.yaml").is_file()]
    if not found:
        raise LazyBenchError(f"there is no {group} {name!r}: {suggest(name, names_in(group))}")
    try:
        given, comments = _commented(found[0].read_text("utf-8"))
    except (ValueError, AttributeError, yaml.YAMLError) as error:
        raise LazyBenchError(f"{found[0]}: cannot be read: {first_line(error)}") from error
    kind = get_type_hints(schema)[group]
    if is_dataclass(kind):
        meanings = _attributes(kind)
        for of in fields(kind):
            default = of.default_factory() if of.default is MISSING else of.default
            yield f"{group}.{of.name}", given.get(of.name, default), meanings[of.name]
    else:
        for key, value in given.items():
            if key not in ("_target_", "name"):
                yield f"{group}.{key}", value, comments.get(key, "")


def _attributes(kind: type) -> dict[str, str]:
    """What the docstring of a class says of its attributes, in a line each."""
    _, _, said = (getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n(?:        .*)?)*)", said, re.MULTILINE)
    plain = {name: " ".join(meaning.split()).replace("`", "").removesuffix(".") for name, meaning in found}
    return {name: re.sub(r"\bNone\b", "null", meaning) for name, meaning in plain.items()}


def _commented(content: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML file's values by dotted key, and the comments behind them."""
    values, comments, lines = {}, {}, content.splitlines()

    def walk(node: yaml.Node, prefix: str) -> None:
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            block = isinstance(value, yaml.MappingNode) and not value.flow_style and value.value
            mark = key.end_mark if block else value.end_mark
            comments[name] = lines[mark.line][mark.column :].partition("#")[2].strip() if mark.line < len(lines) else ""
            if block:
                walk(value, f"{name}.")
            else:
                values[name] = yaml.SafeLoader("").construct_document(value)

    walk(yaml.compose(content, yaml.SafeLoader), "")
    return values, comments


def _row(key: str, value: Any, meaning: str, width: int) -> str:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    head = f"  {key}=" + ("" if value is MISSING or shown == "???" else shown.replace("'", ""))
    if not meaning:
        return head
    column = _COLUMN if width >= 2 * _COLUMN else 6
    lines = textwrap.wrap(meaning, max(20, min(width, 120) - column))
    if len(head) < column - 1:
        return "\n".join([f"{head:<{column}}{lines[0]}", *(" " * column + line for line in lines[1:])])
    return "\n".join([head, *(" " * column + line for line in lines)])
