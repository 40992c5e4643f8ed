"""Tells a fault in a method of the user's own from one of ours, and shows the user's part of the traceback."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import lazyllm
from lazybench.errors import LazyBenchError, causes_of
from lazyllm.errors import LazyLLMError

_OURS = {"lazybench", "lazyllm"}
_LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
_LIBRARIES += [Path(__file__).parent, Path(lazyllm.__file__).parent]


@dataclass(frozen=True)
class Fault:
    """A fault in a method's own code.

    Attributes:
        said: what was raised, and where, in one line.
        frames: the method's frames of the traceback, and the last one behind them.
    """

    said: str
    frames: str


def find(error: BaseException, method: Mapping[str, Any]) -> Fault | None:
    """Where a method's own code failed; None where it had no part in it, or refused what it was given as it should.

    Args:
        error: what was raised.
        method: the settings of the method.
    """
    modules = _modules(str(method.get("_target_")))
    if not modules:
        return None
    causes = list(causes_of(error))
    if any(isinstance(cause, LazyBenchError | LazyLLMError) for cause in causes):
        return None
    found = next(((cause, frames) for cause in causes if (frames := _frames(cause, modules))), None)
    if found is None:
        return None
    raised, frames = found
    lines = ["Traceback (most recent call last):\n", *traceback.StackSummary.extract(frames).format()]
    place = frames[0][0].f_code.co_name
    where = "its module" if place == "<module>" else place
    said = f"{type(raised).__name__}: {raised}".removesuffix(": ")
    return Fault(f"method {method.get('name')}: {where} raised {said}", "".join(lines))


def _modules(target: str) -> set[str]:
    """Names of the outermost modules of a method and of what it derives from, without ours."""
    module, _, name = target.rpartition(".")
    made_by = getattr(sys.modules.get(module), name, None)
    bases = {base.__module__ for base in getattr(made_by, "__mro__", ())}
    return {found.partition(".")[0] for found in {target, *bases}} - _OURS - sys.stdlib_module_names


def _frames(error: BaseException, modules: set[str]) -> list[tuple[FrameType, int]]:
    """The frames of `error` to show, from the first in `modules` on; empty where none is."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [_is_file(frame) and _top(frame) in modules for frame, _ in frames]
    if not any(own):
        return []
    first, last = own.index(True), len(frames) - 1
    shown = (place == last or own[place] or _is_users(frames[place][0]) for place in range(first, last + 1))
    return [frame for frame, is_shown in zip(frames[first:], shown, strict=True) if is_shown]


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_file(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_file()  # not code that Python made, such as a dataclass's __init__


def _is_users(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return _is_file(frame) and not any(path.is_relative_to(library) for library in _LIBRARIES)
