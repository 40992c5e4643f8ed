"""Digests of the code that decides a run's results and is not LazyBench's: an edit of it makes another run."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lazybench.store.run_folder import digest

# Their versions, and that of LazyBench's results, are in a run's environment.
_KNOWN = {"lazybench", "lazyllm", "torch", "transformers"} | sys.stdlib_module_names


def digests(made: object, settings: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, str]:
    """A digest (12 hex digits) of each module that a run's results depend on: its file, and those beside that it names.

    Beside a module lie the Python files of its folder and of packages there; beside one in a package, all of the
    package. Comments and layout do not count. What is imported from elsewhere, and what code reads from files, is not
    seen.

    Args:
        made: the method; the modules of its class and of the bases of that count.
        settings: settings with `_target_` in them, at any depth; the modules of those count.
        metrics: names of metrics; the modules of the user's own, `module.function`, count.

    Returns:
        digests by module, e.g. `{"keep_ends": "3fa9c1d200b7", "my_metrics": "98b1e6f0aa41"}`.
    """
    names = {of.__module__ for of in type(made).__mro__}
    names |= {name for name in (*_targets(settings), *metrics) if "." in name}
    modules = [_module(name) for name in names if name.partition(".")[0] not in _KNOWN]
    return {module.__name__: _digest(module) for module in sorted(modules, key=lambda module: module.__name__)}


def _module(name: str) -> ModuleType:
    """The module in a dotted path to something in it."""
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


@cache  # a file may be edited while a sweep goes on with what is loaded
def _digest(module: ModuleType) -> str:
    """A digest of a module's file and of those beside it that it names, or that those name in turn."""
    own = Path(module.__file__ or "")
    is_package = own.name == "__init__.py"
    if is_package or "." in module.__name__:
        root = own.parents[module.__name__.count(".") - (not is_package)]
        base, beside = root.parent, {*root.rglob("*.py")}
    else:
        base = root = own.parent
        beside = {*root.glob("*.py"), *root.glob("*/*.py")}
    reached: dict[Path, str] = {}
    waiting = {own, root / "__init__.py"} & {own, *beside}
    while waiting:
        reached |= {path: _meaning(path) for path in waiting}
        words = {word for path in waiting for word in re.findall(r"\w+", reached[path])}
        beside -= reached.keys()
        waiting = {path for path in beside if (path.parent if path.stem == "__init__" else path).stem in words}
    names = {path: path.relative_to(base).with_suffix("").parts for path in reached}
    return digest({".".join(names[path]).removesuffix(".__init__"): text for path, text in reached.items()})


def _meaning(path: Path) -> str:
    """A file's code without comments and layout; what is no Python, as its bytes are."""
    try:
        return ast.unparse(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):
        return repr(path.read_bytes())
