"""Tells a fault in a method of the user's own from one of ours, and shows the user's part of the traceback."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import lazyllm
from lazybench.errors import LazyBenchError, causes_of
from lazybench.model.instance import NotMade
from lazyllm import LazyLLMError

_OURS = {"lazybench", "lazyllm"}
_LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
_LIBRARIES += [Path(__file__).parents[1], Path(lazyllm.__file__).parent]


class UsersFault(LazyBenchError):
    """What a method's own code raised, and where, in one line; `frames` is the part of the traceback to show."""

    def __init__(self, said: str, frames: str = "") -> None:
        super().__init__(said)
        self.frames = frames


def find(error: BaseException, method: Mapping[str, Any]) -> UsersFault | None:
    """The fault of a method's own code that led to `error`; None where it had no part in it, or refused its input."""
    modules = _modules(str(method.get("_target_")))
    causes = [cause for cause in causes_of(error) if not isinstance(cause, NotMade)]
    if not modules or any(isinstance(cause, LazyBenchError | LazyLLMError) for cause in causes):
        return None
    for raised in causes:
        if frames := _frames(raised, modules):
            place = frames[0][0].f_code.co_name
            where = "its module" if place == "<module>" else place
            said = f"{type(raised).__name__}: {raised}".removesuffix(": ")
            lines = ["Traceback (most recent call last):\n", *traceback.StackSummary.extract(frames).format()]
            return UsersFault(f"method {method.get('name')}: {where} raised {said}", "".join(lines))
    return None


def _modules(target: str) -> set[str]:
    """Names of the outermost modules of a method and of what it derives from, without ours."""
    module, _, name = target.rpartition(".")
    bases = getattr(getattr(sys.modules.get(module), name, None), "__mro__", ())
    names = {target, *(base.__module__ for base in bases)}
    return {found.partition(".")[0] for found in names} - _OURS - sys.stdlib_module_names


def _frames(error: BaseException, modules: set[str]) -> list[tuple[FrameType, int]]:
    """The user's frames of `error` from the first in `modules` on, and the last frame; empty where none is in them."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [_in(frame, modules) for frame, _ in frames]
    if not any(own):
        return []
    shown = [own[place] or _is_users(frame) for place, (frame, _) in enumerate(frames)]
    first, shown[-1] = own.index(True), True
    return [frame for place, frame in enumerate(frames) if place >= first and shown[place]]


def _in(frame: FrameType, modules: set[str]) -> bool:
    # Not code that Python made, such as a dataclass's __init__.
    written = Path(frame.f_code.co_filename).is_file()
    return written and str(frame.f_globals.get("__name__")).partition(".")[0] in modules


def _is_users(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return path.is_file() and not any(path.is_relative_to(library) for library in _LIBRARIES)
