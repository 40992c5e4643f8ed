"""One LongBench item."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


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
