"""The tables of a block: their measures and rows, and their cells as text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import Measure
from lazybench.analysis.blocks import Block
from lazybench.analysis.console import texts as formatted
from lazybench.analysis.labels import METHODS, title_of
from lazybench.analysis.numbers import groups_of, overall
from lazybench.report import paper

NONE = "—"
# How to read all tables, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
_TABLE1, _TABLE2 = (averages.SCORE, averages.UNMODIFIED_SCORE, averages.TTFT), (averages.COMPUTED, averages.GENERATION)
_OTHERS = (*_TABLE1, averages.ANSWER, averages.GEOMETRIC_KL)
_FIDELITY = (averages.TTFT, averages.ANSWER)
_FIDELITY += tuple(replace(measure, digits=3) for measure in (averages.GEOMETRIC_KL, averages.KL))
_FIDELITY += tuple(replace(measure, digits=1) for measure in (averages.SCORE, averages.SCORE_DIFFERENCE))
_LEAST_IS_BEST = ("geometric_kl", "kl", "prompt_computed")
_PAIRED = (
    ("Score difference", "score_difference", "{:+.1f}"),
    ("KL ratio, geometric means", "geometric_kl_ratio", "{:.2f}"),
    ("KL ratio, means", "kl_ratio", "{:.2f}"),
)


@dataclass(frozen=True)
class Table:
    """A table as text; the first two columns are the group of rows and the row, the others numbers."""

    name: str  # in names of files
    title: str
    cells: pd.DataFrame  # the best of a group is in asterisks


def tables(block: Block, numbers: pd.DataFrame, pairs: pd.DataFrame, times: pd.DataFrame) -> list[Table]:
    """Make the tables that a block has numbers for, of `numbers.numbers`, `paired.compare` and `equal_time`."""
    others = {*numbers["method"]} - {*METHODS}
    papers = numbers[numbers["method"].isin(METHODS)]
    beside = numbers[numbers["method"].isin([*others, "baseline", "lazyllm"] if others else [])]
    means = overall(numbers)
    means = means[(means["method"] != "baseline") | (means["measure"] == averages.SCORE.key)]
    made = [
        ("fidelity", "Speed, divergence and score", _FIDELITY, means),
        ("table1", "Table 1. Score and speedup of the first token", _TABLE1, papers),
        ("table2", "Table 2. Prompt tokens computed and speedup of the generation as measured", _TABLE2, papers),
        ("others", "Methods that the paper lacks", _OTHERS, beside),
        ("score_by_group", "Score by group of records", groups_of(block), numbers),
    ]
    result = []
    for name, title, measures, lines in made:
        shown = [measure for measure in measures if (lines["measure"] == measure.key).any()]
        if (lines["method"] == "baseline").any():  # whose score is the unmodified one
            shown = [measure for measure in shown if measure != averages.UNMODIFIED_SCORE]
        # A table of only the unmodified model compares nothing.
        if shown and ({*lines["method"]} != {"baseline"} or name in ("table1", "score_by_group")):
            result.append(Table(name, title, _cells(block, lines, shown, name)))
    if len(times):
        result.append(Table("equal_time", "Divergence at equal time of the whole answer", _equal_time(times)))
    if len(pairs):
        ours = {row.name for row in block.rows if row.method in ("lazyllm", "lazyllm+")}
        is_ours = pairs["first"].isin(ours) | pairs["second"].isin(ours)
        pairs = pairs[is_ours] if is_ours.any() else pairs
        result.append(Table("paired", "Pairs of methods on the same records", _paired(pairs)))
    return result


def _cells(block: Block, lines: pd.DataFrame, measures: Sequence[Measure], table: str) -> pd.DataFrame:
    """Format `Task`, `Method` and the measures, a line per task and row that has any of them.

    The table `fidelity` has intervals, except of speedups. On LongBench, columns with the paper's numbers follow in
    Tables 1 and 2. They do not depend on a row's settings, which the paper does not state, so only a method's first row
    has them.
    """
    lines = lines[lines["measure"].isin([measure.key for measure in measures])]
    index = lines[["task", "title", "method", "name"]].drop_duplicates()
    orders = {"task": [*dict.fromkeys(lines["task"])], "name": [row.name for row in block.rows]}
    index = index.sort_values([*orders], key=lambda keys: keys.map(orders[keys.name].index))
    cells = {"Task": index["title"].tolist(), "Method": index["name"].tolist()}
    rows = pd.MultiIndex.from_frame(index[["task", "name"]])
    for measure in measures:
        own = lines[lines["measure"] == measure.key].set_index(["task", "name"])
        form = f"{{:.{measure.digits}f}}"
        texts = own["value"].map(form.format)
        if table == "fidelity" and not measure.timed:
            named = own.rename(columns={"low": "value_low", "high": "value_high"})
            texts = pd.Series(formatted(named, "value", form, NONE), own.index)
        for task, values in own[own["method"] != "baseline"].groupby(level="task"):
            if (best := _best(values, -1 if measure.key in _LEAST_IS_BEST else 1)) is not None:
                texts[task, best] = f"**{texts[task, best]}**"
        cells[measure.title] = texts.reindex(rows).fillna(NONE).tolist()
    if table in ("table1", "table2") and block.is_longbench:
        is_first = ~index.duplicated(["task", "method"])
        for model, measure in product(paper.models_beside(block.model), measures):
            keys = zip(index["task"], index["method"], is_first, strict=True)
            printed = [paper.number(model, task, method, measure.key) * first for task, method, first in keys]
            if any(printed):
                cells[f"Paper, {title_of(model, 'model')}: {measure.title}"] = [text or NONE for text in printed]
    return pd.DataFrame(cells)


def _best(values: pd.DataFrame, sign: int) -> str | None:
    """Return the name of the best row if its interval excludes the second best's value."""
    ranked = (sign * values["value"]).nlargest(2)
    if len(ranked) < 2:
        return None
    end = sign * values.loc[ranked.index[0], "low" if sign > 0 else "high"]
    return str(ranked.index[0][1]) if end > ranked.iloc[1] else None


def _paired(pairs: pd.DataFrame) -> pd.DataFrame:
    """Format the pairs: `Operations`, `First`, `Second`, `Records`, and the columns that have numbers."""
    cells = {"Operations": pairs["operations"].replace("", "not matched")}
    cells |= {"First": pairs["first"], "Second": pairs["second"]}
    cells["Records"] = pairs[["records", "kl_records"]].max(axis=1).astype(str)  # not all have references
    for title, key, form in _PAIRED:
        if pairs[key].notna().any():
            cells[title] = [text.replace("-", "−") for text in formatted(pairs, key, form, NONE)]
    return pd.DataFrame(cells)


def _equal_time(times: pd.DataFrame) -> pd.DataFrame:
    """Format KLs at one speedup: a dash where a method does not reach it."""
    cells = {"Whole answer (×)": times["answer_speedup"].map("{:.2f}".format), "Method": times["method"]}
    for measure in (averages.GEOMETRIC_KL, averages.KL):
        cells[measure.title] = formatted(times, measure.key, f"{{:.{measure.digits}f}}", NONE)
    return pd.DataFrame(cells)
