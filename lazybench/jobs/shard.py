"""A part of a run's records, for a run too long for one job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from lazybench.errors import LazyBenchError

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` parts: every `count`-th record, so that the parts take about as long.

    Attributes:
        index: 1 to `count`.
        count: how many parts there are.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """Read `i/n`; None is the whole run.

        Raises:
            LazyBenchError: anything else.
        """
        if text is None:
            return None
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
        if found is None or int(found[1]) > int(found[2]):
            raise LazyBenchError(f"shard={text}: write i/n, the i-th of n parts, such as shard=1/4 to shard=4/4")
        return cls(int(found[1]), int(found[2]))

    def of(self, records: Sequence[T]) -> list[T]:
        """This part of the records."""
        return list(records[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}of{self.count}"
