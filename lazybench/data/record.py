"""One LongBench item."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lazybench.data.jsonl import kind, wrong_length, wrong_references
from lazybench.errors import LazyBenchError

_TEXTS = ("input", "context", "dataset", "language", "_id")
_LISTS = ("answers", "all_classes")
_FIELDS = (*_TEXTS, *_LISTS, "length")
# JSON can write half of a surrogate pair, but neither UTF-8 nor a tokenizer can hold one.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Record:
    """One item of a dataset, in LongBench's own record format.

    Attributes:
        id: LongBench's `_id`, unique within a run.
        dataset: name of the dataset, e.g. `hotpotqa`.
        input: the question or instruction part (may be empty).
        context: the long text.
        answers: the references; the best-scoring one counts.
        all_classes: the class names of a classification dataset, else None.
        length: length in words, as LongBench counts it.
        language: `en` or `zh`.
    """

    id: str
    dataset: str
    input: str
    context: str
    answers: tuple[str, ...]
    all_classes: tuple[str, ...] | None
    length: int
    language: str = "en"

    @property
    def key(self) -> tuple[str, str]:
        """Dataset and id: what tells a record from all others of a run."""
        return self.dataset, self.id

    @property
    def hash(self) -> str:
        """16 hex digits of the record's content: the same record has the same hash anywhere."""
        return fingerprint([self])[:16]


def fingerprint(records: Iterable[Record]) -> str:
    """SHA-256 (hex) of the records' content in their order: the same data gives the same value anywhere."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(asdict(record), sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def checked(rows: Iterable[tuple[str, Any]], dataset: str, like: str) -> Iterator[dict[str, Any]]:
    """Check the rows of a dataset; yields each with LongBench's fields alone.

    Args:
        rows: where each row stands, for messages, and the row.
        dataset: the dataset's name.
        like: where that name comes from, for messages.

    Raises:
        LazyBenchError: a row is not in LongBench's format, or has the id of another.
    """
    places: dict[str, str] = {}
    for where, row in rows:
        if wrong := _wrong(row, dataset, like):
            raise LazyBenchError(f"{where}: {wrong}")
        if (first := places.setdefault(row["_id"], where)) != where:
            raise LazyBenchError(f"{where}: '_id' {row['_id']!r} stands already at {first}")
        yield {field: row[field] for field in _FIELDS}


def to_records(rows: list[dict[str, Any]]) -> list[Record]:
    """Records of checked rows, through a typed `datasets.Dataset` in memory.

    `load_dataset("json", features=...)` of `datasets` 5.2 would not do: it guesses types before it looks at the
    features, so that "2020-01-01" becomes "2020-01-01 00:00:00"; it crashes the process where a file begins with `null`
    (pyarrow 26.0); it refuses further fields; and it leaves a copy in the user's cache.
    """
    from datasets import Dataset, Features, List, Value

    types = dict.fromkeys(_TEXTS, Value("string")) | dict.fromkeys(_LISTS, List(Value("string")))
    typed = Dataset.from_list(rows, features=Features(types | {"length": Value("int64")})).rename_column("_id", "id")
    return [Record(**row | {name: row[name] and tuple(row[name]) for name in _LISTS}) for row in typed]


def _wrong(row: object, dataset: str, like: str) -> str | None:
    """What keeps `row` from being a record of `dataset`; None where nothing does."""
    if not isinstance(row, Mapping):
        return f"must be a Record, or a mapping with LongBench's fields, not {type(row).__name__}"
    for field in _FIELDS:
        if field not in row:
            return f"the field {field!r} is missing"
    for field in _TEXTS:
        if not isinstance(row[field], str):
            return f"{field!r} must be a string, not {kind(row[field])}"
    if wrong := wrong_references(row["answers"], row["all_classes"]) or wrong_length(row["length"]):
        return wrong
    if row["dataset"] != dataset:
        return f"'dataset' must be {dataset!r}, like {like}, not {row['dataset']!r}"
    if not row["_id"]:
        return "'_id' must not be empty"
    for field in (*_TEXTS, *_LISTS):
        if _HALF_PAIR.search("".join(row[field] or ())):
            return f"{field!r} holds half of a surrogate pair (\\ud800 to \\udfff)"
    return None
