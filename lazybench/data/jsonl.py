"""Reading JSON Lines with errors that name the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lazybench.errors import LazyBenchError

_BOM = b"\xef\xbb\xbf"


def parse(lines: Iterable[bytes], source: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse one JSON object a line, skipping blank lines.

    Args:
        lines: the file's lines, as an open binary file gives them.
        source: what to call the file in messages.

    Yields:
        where the object stands (`<source>:<line number>`), and the object.

    Raises:
        LazyBenchError: a line is not UTF-8, not JSON, or no object.
    """
    for number, line in enumerate(lines, start=1):
        where = f"{source}:{number}"
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except json.JSONDecodeError as error:
            raise LazyBenchError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
        except UnicodeDecodeError as error:
            raise LazyBenchError(f"{where}: not UTF-8 (byte {error.start + 1} of the line)") from error
        except (ValueError, RecursionError) as error:
            raise LazyBenchError(f"{where}: JSON that cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise LazyBenchError(f"{where}: a JSON object must stand on each line, not {kind(value)}")
        yield where, value


def kind(value: object) -> str:
    """What JSON calls the type of a parsed value, for messages."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value)) or ("a list" if isinstance(value, list | tuple) else "an object")


def wrong_references(answers: object, all_classes: object) -> str | None:
    """Why a prediction cannot be scored against these answers and classes; None where it can."""
    if not _is_texts(answers):
        return "'answers' must be a list of one string or more"
    if all_classes is not None and not _is_texts(all_classes):
        return "'all_classes' must be null or a list of one string or more"
    return None


def wrong_length(length: object) -> str | None:
    """Why this cannot be the length of a record; None where it can."""
    if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length < 1 << 63:
        return "'length' must be a whole number of words"
    return None


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
