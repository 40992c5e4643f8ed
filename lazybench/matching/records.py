"""The order in which records are measured: any first part of it represents all datasets."""

from collections.abc import Sequence
from itertools import zip_longest

from lazybench.config import HALVES
from lazybench.data import Record, half_of


def interleave(datasets: Sequence[Sequence[Record]]) -> list[Record]:
    """Return all records, one of each dataset in turn, those of a dataset in the order of their hashes."""
    ordered = [sorted(dataset, key=lambda record: record.hash) for dataset in datasets]
    return [record for turn in zip_longest(*ordered) for record in turn if record is not None]


def split_halves(datasets: Sequence[Sequence[Record]]) -> dict[str, list[Record]]:
    """Return the interleaved records of each half; `half_of` says which half a record is in."""
    halves = {}
    for half in HALVES:
        halves[half] = interleave([[record for record in dataset if half_of(record) == half] for dataset in datasets])
    return halves
