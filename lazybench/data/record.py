"""LongBench's record format, and how it is read from JSON Lines."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lazybench.errors import LazyBenchError

_TEXTS = ("_id", "dataset", "input", "context", "language")
_FIELDS = (*_TEXTS, "answers", "all_classes", "length")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Record:
    """One item of a dataset, in LongBench's own record format."""

    id: str  # LongBench's `_id`, unique within a dataset
    dataset: str  # e.g. `hotpotqa`
    input: str  # the question or instruction; may be empty
    context: str  # the long text
    answers: tuple[str, ...]  # the references; the best-scoring one counts
    all_classes: tuple[str, ...] | None  # the class names of a classification dataset, else None
    length: int  # in words, as LongBench counts it
    language: str = "en"  # `en` or `zh`

    @property
    def key(self) -> tuple[str, str]:
        """Dataset and id, unique within a run."""
        return self.dataset, self.id

    @property
    def hash(self) -> str:
        """Hash of the content, 16 hex digits."""
        return fingerprint([self])[:16]


def fingerprint(records: Iterable[Record]) -> str:
    """Return the SHA-256 (hex) of the content of records, in order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(asdict(record), sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def to_records(rows: Iterable[tuple[str, Any]], dataset: str, like: str) -> Iterator[Record]:
    """Check the rows of a dataset, and yield them as records.

    Args:
        rows: location, for messages, and row: a mapping with LongBench's fields; others are ignored.
        dataset: the dataset's name.
        like: the source of that name, for messages.

    Raises:
        LazyBenchError: a row is not in LongBench's format, or has the id of another.
    """
    location_by_id: dict[str, str] = {}
    for where, row in rows:
        if wrong := _wrong(row, dataset, like):
            raise LazyBenchError(f"{where}: {wrong}")
        if (first := location_by_id.setdefault(row["_id"], where)) != where:
            raise LazyBenchError(f"{where}: '_id' {row['_id']!r} stands already at {first}")
        classes = row["all_classes"] and tuple(row["all_classes"])
        texts = {name.removeprefix("_"): row[name] for name in _TEXTS}
        yield Record(**texts, answers=tuple(row["answers"]), all_classes=classes, length=row["length"])


def _wrong(row: object, dataset: str, like: str) -> str | None:
    if not isinstance(row, Mapping):
        return f"must be a Record, or a mapping with LongBench's fields, not {type(row).__name__}"
    for field in _FIELDS:
        if field not in row:
            return f"the field {field!r} is missing"
    for field in _TEXTS:
        if not isinstance(row[field], str):
            return f"{field!r} must be a string, not {json.dumps(row[field], default=str):.60}"
    if row["_id"].encode("utf-8", "replace").decode() != row["_id"]:
        return f"'_id' {row['_id']!r} holds half of a surrogate pair: it must be text that UTF-8 can hold"
    if row["dataset"] != dataset:
        return f"'dataset' must be {dataset!r}, like {like}, not {row['dataset']!r}"
    return wrong_references(row["answers"], row["all_classes"]) or wrong_length(row["length"])


def wrong_references(answers: object, all_classes: object) -> str | None:
    """Return why no prediction can be scored against these answers and classes; None if it can."""
    if not _is_texts(answers):
        return "'answers' must be a list of one string or more"
    if all_classes is not None and not _is_texts(all_classes):
        return "'all_classes' must be null or a list of one string or more"
    return None


def wrong_length(length: object) -> str | None:
    """Return why this is no length of a record; None if it is."""
    return None if type(length) is int and length >= 0 else "'length' must be a whole number of words"


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


def parse(lines: Iterable[bytes], source: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse one JSON object a line, skipping blank lines.

    Args:
        lines: the file's lines.
        source: the file's name in messages.

    Yields:
        location, `<source>:<line number>`, and object.

    Raises:
        LazyBenchError: a line is not UTF-8, not JSON, or no object.
    """
    for number, line in enumerate(lines, start=1):
        where = f"{source}:{number}"
        text = line.removeprefix(_BOM)
        if not text.strip():
            continue
        try:
            value = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise LazyBenchError(f"{where}: not JSON: {str(error).replace('line 1 ', '')}") from error
        if not isinstance(value, dict):
            raise LazyBenchError(f"{where}: a JSON object must stand on each line, not {text.decode().strip():.60}")
        yield where, value
