"""Digests of the code that decides a run's results and is not LazyBench's: an edit of it makes another run."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

# Their versions, and that of LazyBench's results, are in a run's environment.
_KNOWN = {"lazybench", "lazyllm", "torch", "transformers"}

# What a loaded module was made of, read once: its file may be edited while a sweep goes on with what is loaded.
_loaded: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def digests(made: object, settings: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, str]:
    """A digest (12 hex digits) of each module that a run's results depend on, and of what it imports.

    Of imported modules those count that belong to the user: neither Python's own nor installed packages. A method or
    tokenizer that is itself installed counts with its whole package. Digests are of the code's meaning: comments,
    blank lines and line breaks do not count. What is imported by a computed name, and what code reads from files,
    is not seen.

    Args:
        made: the method; the modules of its class and of the bases of that count.
        settings: settings with `_target_` in them, at any depth; the modules of those count.
        metrics: names of metrics; the modules of the user's own, `module.function`, count.

    Returns:
        digests by module, e.g. `{"keep_ends": "3fa9c1d200b7", "my_metrics": "98b1e6f0aa41"}`.
    """
    targets = {*_targets(settings), *(name for name in metrics if "." in name)}
    modules = {of.__module__ for of in type(made).__mro__} | {_module_of(target) for target in targets}
    modules = {name for name in modules if _top(name) not in _KNOWN | sys.stdlib_module_names}
    packages = {_top(name) for name in modules}
    return {name: _digest(reached) for name in sorted(modules) if (reached := _reached(name, packages))}


def _digest(sources: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:12]


def _targets(settings: object) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        settings = settings.values()
    elif not isinstance(settings, list | tuple):
        return
    for value in settings:
        yield from _targets(value)


def _module_of(target: str) -> str:
    """The module in a dotted path to something in it."""
    parts = list(accumulate(target.split("."), "{}.{}".format))
    return next((name for name in reversed(parts) if _spec(name) is not None), parts[0])


def _reached(entry: str, packages: set[str]) -> dict[str, str]:
    """The meaning by name of a module and of those it imports, where they count."""
    found: dict[str, str] = {}
    met, waiting = set(), [entry]
    while waiting:
        # Importing `a.b` runs `a`, too.
        for name in accumulate(waiting.pop().split("."), "{}.{}".format):
            if name in met:
                continue
            met.add(name)
            spec = _spec(name)
            if spec is not None and _counts(spec, packages):
                found[name] = _meaning(spec)
                waiting += _imports(found[name], spec)
    return found


def _counts(spec: ModuleSpec, packages: set[str]) -> bool:
    top = _top(spec.name)
    known = top in _KNOWN | sys.stdlib_module_names
    installed = {"site-packages", "dist-packages"} & set(Path(spec.origin or "").parts)
    return not known and (top in packages or not installed)


def _spec(name: str) -> ModuleSpec | None:
    """Where a module comes from, without importing it or its parents; None where there is none of that name."""
    spec, path = None, None
    for part in accumulate(name.split("."), "{}.{}".format):
        module = sys.modules.get(part)
        spec = getattr(module, "__spec__", None) or PathFinder.find_spec(part, path)
        path = getattr(module, "__path__", None) or (spec and spec.submodule_search_locations)
        if path is None and part != name:
            return None
    return spec


def _meaning(spec: ModuleSpec) -> str:
    """A module's source without comments and layout."""
    module = sys.modules.get(spec.name)
    if module is not None and module in _loaded:
        return _loaded[module]
    try:
        text = spec.loader.get_source(spec.name)
    except (AttributeError, ImportError):
        text = None
    if text is None and spec.has_location:  # compiled code: a digest of its file stands for it
        text = repr(hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())
    text = text or ""
    with suppress(SyntaxError, ValueError, RecursionError):
        text = ast.unparse(ast.parse(text))
    if module is not None:
        _loaded[module] = text
    return text


def _imports(source: str, spec: ModuleSpec) -> Iterator[str]:
    """Names of the modules that a source imports, anywhere in it; some may be names within modules."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                origin = resolve_name("." * node.level + (node.module or ""), spec.parent)
            except ImportError:
                continue
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _top(name: str) -> str:
    return name.partition(".")[0]
