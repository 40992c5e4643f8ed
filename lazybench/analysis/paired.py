"""Methods at equal speed, two by two, on the same records: which one is nearer to the unmodified model.

Records with the same KL under both methods count half for each side (`zsplit`). Left out, as Wilcoxon did, they would
leave p to the few records that differ, though each is a sign that the methods do not differ; Pratt's way keeps their
ranks but still leaves them out of the sums, and has no p where all are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd

from lazybench.analysis.averages import KL, SCORE, TTFT, Measure, average, ran
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.cells import Part, cell, part_of, together
from lazybench.analysis.intervals import Estimate

NAME = "paired"
TITLE = "Paired tests at equal speed"
EQUAL = 0.1  # how much larger one of two equal speedups may be
FEWEST = 6  # five records cannot give a p below 0.05
_NONE = "—"
_KEYS = ["dataset", "_id"]
_OF_FIRST, _OF_SECOND = (replace(KL, key=top, top=top) for top in ("kl_first", "kl_second"))
_DIFFERENCE = Measure("score_difference", "", "score_difference", scale=SCORE.scale, least=-100, most=100)


@dataclass(frozen=True)
class Divergence:
    """The KL of the next token under two methods.

    Attributes:
        records: shared records with a KL under both.
        means: of the first and of the second, over tasks of the means over their datasets.
        lower: records with a lower KL under the first.
        equal: records with the same KL under both.
        p: of Wilcoxon's signed-rank test, two-sided; None with too few records.
        adjusted: p by Holm's method for all comparisons of the block.
    """

    records: int
    means: tuple[float, float]
    lower: int
    equal: int
    p: float | None
    adjusted: float | None = None

    @property
    def ratio(self) -> float | None:
        """Mean of the first over mean of the second: below 1 the first is nearer to the unmodified model."""
        return self.means[0] / self.means[1] if self.means[1] > 0 else None


@dataclass(frozen=True)
class Pair:
    """Two rows at equal speed, on the records that both ran without failing.

    Attributes:
        first: the label of the one.
        second: the label of the other.
        speedups: TTFT speedups of both, over the tasks that they share.
        records: number of shared records.
        difference: score of the first minus score of the second, over tasks of the means over their datasets.
        divergence: None where one of the datasets has no record with a KL under both.
    """

    first: str
    second: str
    speedups: tuple[float, float]
    records: int
    difference: Estimate
    divergence: Divergence | None

    @property
    def label(self) -> str:
        """Both labels, a line each."""
        return f"{self.first}\nagainst {self.second}"


@dataclass(frozen=True)
class Comparison:
    """The pairs of a model and data; there is at least one."""

    block: Block
    pairs: tuple[Pair, ...]

    @property
    def tests(self) -> int:
        """The number of comparisons that p is corrected for."""
        return sum(bool(pair.divergence and pair.divergence.p is not None) for pair in self.pairs)

    @property
    def heads(self) -> list[str]:
        """The headings behind those of the two methods."""
        return [title for title, _ in self._columns()]

    @property
    def texts(self) -> list[list[str]]:
        """The cells of each pair, as in the other tables: a number, and what is to be said of it."""
        return [[text(pair) for _, text in self._columns()] for pair in self.pairs]

    @property
    def caption(self) -> str:
        """What was compared and how, in plain words."""
        counts = sorted({pair.records for pair in self.pairs})
        count = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        said = [
            f"Each row compares two methods whose TTFT speedups differ by at most {EQUAL:.0%}, on the records that "
            f"both ran without failing (n = {count}).",
            "Of two numbers in a cell the upper or left one is the first method's.",
        ]
        if self._has_kl():
            said.append(
                "KL: of the next token, between the unmodified model and the method; means are over tasks, as in the "
                "other tables. A KL ratio below 1 favours the first method, one above 1 the second."
            )
        if self.tests:
            comparisons = "1 comparison" if self.tests == 1 else f"{self.tests} comparisons"
            said.append(
                "p: Wilcoxon's signed-rank test of the KL, two-sided; its unit is the record, whatever its dataset, "
                "and a record with the same KL under both counts half for each. It is corrected for the number of "
                f"comparisons here by Holm's method ({comparisons})."
            )
        said.append(
            "Score difference: first minus second, of 100 points; above 0 favours the first method. Brackets: 95% "
            "confidence interval over records, where there are enough. Scores of few records tell little."
        )
        return " ".join(said)

    def _has_kl(self) -> bool:
        return any(pair.divergence for pair in self.pairs)

    def _columns(self) -> list[tuple[str, Callable[[Pair], str]]]:
        """Headings and what gives their cells; none about KL where it was not measured."""
        about_kl = [
            ("Mean KL of next token (nats)", _means),
            ("KL ratio, first / second", _ratio),
            ("Records where first has lower KL", _lower),
            ("p of KL, Holm-corrected", _p),
        ]
        return [
            ("TTFT speedups (×)", lambda pair: "{:.2f} and {:.2f}".format(*pair.speedups)),
            ("Records", lambda pair: str(pair.records)),
            *(about_kl if self._has_kl() else []),
            ("Score difference, first − second", _difference),
        ]


def compare(blocks: Sequence[Block]) -> list[Comparison]:
    """The pairs of each block, for the blocks that have any."""
    found = [Comparison(block, _corrected(list(_pairs(block)))) for block in blocks]
    return [of for of in found if of.pairs]


def holm(values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjustment: p-values that may be read as if there were one comparison."""
    adjusted, least = [0.0] * len(values), 0.0
    for done, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - done) * values[place]))
        adjusted[place] = least
    return adjusted


def _corrected(pairs: list[Pair]) -> tuple[Pair, ...]:
    values = {place: of.divergence.p for place, of in enumerate(pairs) if of.divergence and of.divergence.p is not None}
    for place, adjusted in zip(values, holm(list(values.values())), strict=True):
        pairs[place] = replace(pairs[place], divergence=replace(pairs[place].divergence, adjusted=adjusted))
    return tuple(pairs)


def _pairs(block: Block) -> Iterator[Pair]:
    """Every two of Table 1's rows at equal speed, without the baseline, which KL and speedup are measured against."""
    rows = [row for row in block.compared if row.method != "baseline"]
    tasks = block.tasks_run()
    complete = [_complete(row, tasks) for row in rows]

    @cache
    def speedup(row: int, datasets: frozenset[str]) -> float | None:
        found = cell(_parts(complete[row], tasks, datasets), TTFT[0]).estimate
        return None if found is None else found.value

    for first, second in combinations(range(len(rows)), 2):
        shared = frozenset(complete[first]) & frozenset(complete[second])
        if not shared or not _comparable(rows[first], rows[second]):
            continue
        speedups = speedup(first, shared), speedup(second, shared)
        if None in speedups or max(speedups) > (1 + EQUAL + 1e-9) * min(speedups):
            continue
        sides = (_parts(complete[row], tasks, shared) for row in (first, second))
        joined = _joined(*sides)
        if joined:
            yield _pair(rows[first].label, rows[second].label, speedups, joined)


def _comparable(first: Row, second: Row) -> bool:
    return all(agree(one, other) for one in first.runs for other in second.runs)


def _complete(row: Row, tasks: dict[str, list[str]]) -> dict[str, Part]:
    """The row's records by dataset, of the datasets that it is through with."""
    parts = {name: part_of(row, [name]) for members in tasks.values() for name in members}
    return {name: part for name, part in parts.items() if not part.reason}


def _parts(complete: dict[str, Part], tasks: dict[str, list[str]], datasets: frozenset[str]) -> dict[str, Part]:
    """The records of some datasets by task."""
    chosen = {task: [name for name in members if name in datasets] for task, members in tasks.items()}
    return {task: together(complete[name] for name in names) for task, names in chosen.items() if names}


def _joined(first: dict[str, Part], second: dict[str, Part]) -> list[list[pd.DataFrame]]:
    """The records that neither failed, by task and dataset, with both methods' numbers side by side."""
    tasks = []
    for task, part in first.items():
        both = [
            ran(records)[[*_KEYS, "kl", "score"]].merge(
                ran(second[task].datasets[name])[[*_KEYS, "kl", "score"]], on=_KEYS, suffixes=("_first", "_second")
            )
            for name, records in part.datasets.items()
        ]
        tasks.append([of.assign(score_difference=of["score_first"] - of["score_second"]) for of in both if len(of)])
    return [datasets for datasets in tasks if datasets]


def _pair(first: str, second: str, speedups: tuple[float, float], tasks: list[list[pd.DataFrame]]) -> Pair:
    records = sum(len(of) for datasets in tasks for of in datasets)
    return Pair(first, second, speedups, records, average(tasks, _DIFFERENCE), _divergence(tasks))


def _divergence(tasks: list[list[pd.DataFrame]]) -> Divergence | None:
    tasks = [[of.dropna(subset=["kl_first", "kl_second"]) for of in datasets] for datasets in tasks]
    means = average(tasks, _OF_FIRST), average(tasks, _OF_SECOND)
    if None in means:
        return None
    records = pd.concat([of for datasets in tasks for of in datasets])
    apart = (records["kl_first"] - records["kl_second"]).to_numpy()
    lower, equal = int((apart < 0).sum()), int((apart == 0).sum())
    return Divergence(len(apart), (means[0].value, means[1].value), lower, equal, _wilcoxon(apart))


def _wilcoxon(apart: np.ndarray) -> float | None:
    if len(apart) < FEWEST:
        return None
    if not apart.any():
        return 1.0
    from scipy.stats import wilcoxon  # takes long to import

    return float(wilcoxon(apart, zero_method="zsplit").pvalue)


def _means(pair: Pair) -> str:
    of = pair.divergence
    if of is None:
        return f"{_NONE} (not traced)"
    text = f"{of.means[0]:.{KL.digits}f} and {of.means[1]:.{KL.digits}f}"
    return text if of.records == pair.records else f"{text} ({of.records} of {pair.records} records)"


def _ratio(pair: Pair) -> str:
    ratio = pair.divergence.ratio if pair.divergence else None
    return _NONE if ratio is None else f"{ratio:.2f}"


def _lower(pair: Pair) -> str:
    of = pair.divergence
    if of is None:
        return _NONE
    return f"{of.lower} of {of.records}" + (f", {of.equal} equal" if of.equal else "")


def _p(pair: Pair) -> str:
    of = pair.divergence
    if of is None:
        return _NONE
    if of.adjusted is None:
        return f"{_NONE} (too few records)"
    return "<0.001" if of.adjusted < 0.001 else f"{of.adjusted:.3f}"


def _difference(pair: Pair) -> str:
    found = pair.difference
    text = f"{found.value:+.2f}"
    if found.low is not None:
        text += f" [{found.low:+.2f}, {found.high:+.2f}]"
    return text.replace("-", "−")
