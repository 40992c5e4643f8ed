"""LongBench's record format, and how it is read from JSON Lines."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lazybench.errors import LazyBenchError
from lazybench.rules import Rule

_TEXTS = ("_id", "dataset", "input", "context", "language")
_OPTIONAL = ("answer_prefix", "groups")


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


_RULES = {
    **dict.fromkeys(_TEXTS, Rule("a string", lambda value: isinstance(value, str))),
    # JSON has no tuples: an empty one is that of a `Record` without references.
    "answers": Rule("a list of one string or more", lambda value: value == () or _is_texts(value)),
    "all_classes": Rule("null or a list of one string or more", lambda value: value is None or _is_texts(value)),
    "length": Rule("a whole number of words", lambda value: type(value) is int and value >= 0),
    **dict.fromkeys(_OPTIONAL, Rule("null or a string", lambda value: value is None or isinstance(value, str))),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One item of a dataset, in LongBench's own record format, with two fields of other benchmarks' records."""

    id: str  # LongBench's `_id`, unique within a dataset
    dataset: str  # e.g. `hotpotqa`
    input: str  # the question or instruction; may be empty
    context: str  # the long text
    answers: tuple[str, ...]  # the references; the best-scoring one counts, and without any there is no score
    all_classes: tuple[str, ...] | None  # the class names of a classification dataset, else None
    length: int  # in words, as LongBench counts it
    language: str = "en"  # `en` or `zh`
    answer_prefix: str = ""  # begins the answer: it ends the prompt, after a chat wrapper, and is in no prediction
    groups: str = ""  # its groups among `DatasetConfig.groups`, separated by spaces

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
        # Without empty fields that LongBench's records lack, so that finished runs keep their hashes.
        fields = {name: value for name, value in asdict(record).items() if value or name not in _OPTIONAL}
        digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def to_records(rows: Iterable[tuple[str, Any]], dataset: str) -> Iterator[Record]:
    """Check the rows of a dataset, each with its location for messages, and yield them as records.

    A row is a mapping with LongBench's fields, at least `context`, `input` and `answers`, and there may be an
    `answer_prefix` and `groups`. By default `_id` is the row's number from 0, `language` is `en`, and `length` is the
    number of words in the context.

    Raises:
        LazyBenchError: a row is not in LongBench's format, or has the id of another.
    """
    location_by_id: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        if isinstance(row, Mapping):
            defaults = {"_id": str(number), "dataset": dataset, "language": "en"}
            row = {**defaults, "length": len(str(row.get("context")).split()), **row}
        if wrong := wrong_fields(row):
            raise LazyBenchError(f"{where}: {wrong}")
        if row["dataset"] != dataset:
            raise LazyBenchError(f"{where}: 'dataset' must be {dataset!r}, not {row['dataset']!r}")
        if (first := location_by_id.setdefault(row["_id"], where)) != where:
            raise LazyBenchError(f"{where}: '_id' {row['_id']!r} is also the id of {first}")
        classes = row.get("all_classes") and tuple(row["all_classes"])
        texts = {name.removeprefix("_"): row[name] for name in _TEXTS}
        texts |= {name: row.get(name) or "" for name in _OPTIONAL}
        yield Record(**texts, answers=tuple(row["answers"]), all_classes=classes, length=row["length"])


def wrong_fields(row: object, fields: Iterable[str] = _RULES) -> str | None:
    """Describe the fields of a row that break their rules; None if all are right."""
    if not isinstance(row, Mapping):
        return f"must be a Record, or a mapping with LongBench's fields, not {type(row).__name__}"
    messages = []
    for field in fields:
        rule, value = _RULES[field], row.get(field)
        if not rule.test(value):
            given = f"not {json.dumps(value, default=str):.60}" if field in row else "and is missing"
            messages.append(f"{field!r} must be {rule.text}, {given}")
    return "; ".join(messages) or None


def parse(
    lines: Iterable[bytes], source: object, decode: Callable[[str], Any] = json.loads
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse one JSON object per line, skipping blank lines; yield the location `<source>:<line number>` and the object.

    `decode` parses a line's text.

    Raises:
        LazyBenchError: a line is not UTF-8, not JSON, or no object.
    """
    for number, line in enumerate(lines, start=1):
        where = f"{source}:{number}"
        try:
            text = line.decode("utf-8-sig").strip()
            if not text:
                continue
            value = decode(text)
        except (ValueError, RecursionError) as error:
            raise LazyBenchError(f"{where}: not JSON: {str(error).replace('line 1 ', '')}") from error
        if not isinstance(value, dict):
            raise LazyBenchError(f"{where}: each line must be a JSON object, not {text:.60}")
        yield where, value
