"""Digests of the code that decides a run's results and is not LazyBench's: an edit of it makes another run."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

# Their versions, and that of LazyBench's results, are in a run's environment.
_KNOWN = {"lazybench", "lazyllm", "torch", "transformers"} | sys.stdlib_module_names


def digests(made: object, settings: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, str]:
    """A digest (12 hex digits) of each module that a run's results depend on: its file, and those beside it it names.

    Beside a module lie the Python files of its folder and of packages there; beside one in a package, all of the
    package. What is imported from elsewhere, and what code reads from files, is not seen.

    Args:
        made: the method; the modules of its class and of the bases of that count.
        settings: settings with `_target_` in them, at any depth; the modules of those count.
        metrics: names of metrics; the modules of the user's own, `module.function`, count.

    Returns:
        digests by module, e.g. `{"keep_ends": "3fa9c1d200b7", "my_metrics": "98b1e6f0aa41"}`.
    """
    names = {*(of.__module__ for of in type(made).__mro__), *_targets(settings), *metrics}
    modules = {module.__name__: module for name in names if (module := _module(name)) is not None}
    own = {name: module for name, module in sorted(modules.items()) if name.partition(".")[0] not in _KNOWN}
    return {name: _digest(module) for name, module in own.items()}


def _module(name: str) -> ModuleType | None:
    """The loaded module in a dotted path to something in it."""
    while name and name not in sys.modules:
        name = name.rpartition(".")[0]
    return sys.modules.get(name)


def _targets(settings: object) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        settings = [*settings.values()]
    for value in settings if isinstance(settings, list | tuple) else ():
        yield from _targets(value)


@cache  # a file may be edited while a sweep goes on with what is loaded
def _digest(module: ModuleType) -> str:
    """A digest of a module's file and of those beside it that it names, or that those name in turn."""
    own = Path(module.__file__ or "")
    is_package = own.name == "__init__.py"
    if is_package or "." in module.__name__:
        root = own.parents[module.__name__.count(".") - (not is_package)]
        beside = {*root.rglob("*.py")}
    else:
        root = own.parent
        beside = {*root.glob("*.py"), *root.glob("*/*.py")}
    reached: set[Path] = set()
    waiting = {own, root / "__init__.py"} & {own, *beside}
    while waiting:
        reached |= waiting
        words = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8", errors="replace") for path in waiting)))
        waiting = {
            path for path in beside - reached if (path.parent if path.stem == "__init__" else path).stem in words
        }
    found = hashlib.sha256()
    for path in sorted(reached):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]
