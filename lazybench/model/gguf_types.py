"""In which types a `.gguf` file holds its weights: its header alone is read, in a fraction of a second.

`gguf.GGUFReader` takes seconds, for the words of a vocabulary one by one.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)


def main_type(path: Path) -> str:
    """The type that holds most of a file's weights, such as `Q4_1`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no GGUF file, or cut short.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            counts = _Header(content).weights()
        except (struct.error, IndexError, OverflowError):
            raise ValueError("its header is cut short") from None
    if not counts:
        raise ValueError("it holds no weights")
    return max(counts, key=lambda name: (counts[name], name))


class _Header:
    """A file's header, read from its beginning."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, len(_MAGIC)
        if content[: len(_MAGIC)] != _MAGIC or self._number("<I") not in _VERSIONS:
            raise ValueError("it is no GGUF file of version 2 or 3")

    def weights(self) -> Counter[str]:
        """How many weights each type holds."""
        tensors, settings = self._number("<Q"), self._number("<Q")
        for _ in range(settings):
            self._skip_text()
            self._skip_values(self._number("<I"), 1)
        counts: Counter[str] = Counter()
        for _ in range(tensors):
            self._skip_text()
            shape = [self._number("<Q") for _ in range(self._number("<I"))]
            counts[GGMLQuantizationType(self._number("<I")).name] += math.prod(shape)
            self._number("<Q")  # where it begins
        return counts

    def _number(self, layout: str) -> int:
        (number,) = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return number

    def _skip_text(self) -> None:
        length = self._number("<Q")
        self._at += length

    def _skip_values(self, kind: int, count: int) -> None:
        scalar = GGUFReader.gguf_scalar_to_np.get(GGUFValueType(kind))
        if scalar is not None:
            self._at += count * np.dtype(scalar).itemsize
            return
        for _ in range(count):
            if kind == GGUFValueType.STRING:
                self._skip_text()
            else:
                self._skip_values(self._number("<I"), self._number("<Q"))
