"""Middles of long LongBench contexts, as prompts that no truncation to 3,500 tokens has let through.

Truncation to 3,500 tokens keeps the first and last 1,750 of a prompt. In the 98 records of LongBench that settings here
were chosen on, these reach at most 9,749 characters into a context, by the tokenizers of SmolLM2 and Qwen2.5-Coder.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from lazybench.data import longbench
from lazybench.data.record import Record

DROPPED = 12_000  # characters at each end of a context
LENGTH = 10_000  # characters of a piece: above 2,000 tokens in all datasets but gov_report, where they are 1,850
COUNT = 64  # pieces in all


def read(dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """Read the pieces of `dataset` among the `COUNT` chosen ones; see `longbench.load` for `root`.

    The question is that of the whole record; there are no references, since the answer may not be in the piece.
    `datasets` has settings by dataset, as a config gives them, with the LongBench dataset that each is `like`.
    """
    return _chosen(root, tuple((name, settings["like"]) for name, settings in datasets.items()))[dataset]


@cache
def _chosen(root: str | None, names: tuple[tuple[str, str], ...]) -> dict[str, list[Record]]:
    """Take one piece of each dataset in turn until there are `COUNT`: first pieces first, in the order of hashes."""
    ranked = []
    for name, like in names:
        pieces = [
            piece for record in longbench.load(like, root, None) for piece in _pieces(replace(record, dataset=name))
        ]
        ranked += enumerate(record for _, record in sorted(pieces, key=lambda piece: (piece[0], piece[1].hash)))
    ranked = sorted(ranked, key=lambda piece: (piece[0], piece[1].hash))[:COUNT]
    return {name: [record for _, record in ranked if record.dataset == name] for name, _ in names}


def _pieces(record: Record) -> list[tuple[int, Record]]:
    """Cut a context without its ends into numbered pieces of `LENGTH`; a shorter rest is left out."""
    starts = range(DROPPED, len(record.context) - DROPPED - LENGTH + 1, LENGTH)
    texts = [record.context[start : start + LENGTH] for start in starts]
    return [
        (number, replace(record, id=f"{record.id}-{number}", context=text, length=len(text.split()), answers=()))
        for number, text in enumerate(texts, start=1)
    ]
