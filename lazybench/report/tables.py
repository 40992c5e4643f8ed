"""The tables of a block: their measures and rows, and their cells as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import Measure
from lazybench.analysis.blocks import Block
from lazybench.analysis.console import texts
from lazybench.analysis.labels import METHODS
from lazybench.analysis.numbers import groups_of, overall
from lazybench.report import paper

NONE = "—"
# How to read all tables, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
_TABLE1, _TABLE2 = (averages.SCORE, averages.UNMODIFIED_SCORE, averages.TTFT), (averages.COMPUTED, averages.GENERATION)
_OTHERS = (*_TABLE1, averages.ANSWER, averages.GEOMETRIC_KL)
_FIDELITY = (averages.TTFT, averages.ANSWER, averages.DECODE_STEP, averages.GEOMETRIC_KL, averages.KL)
_FIDELITY += (averages.ANSWERS, averages.TOKENS)
_LEAST_IS_BEST = ("geometric_kl", "kl", "prompt_computed")
_PAIRED = (
    *(("KL ratio", "kl_ratio", "{:.2f}"), ("p of KL (Holm)", "kl_p_holm", "{:.2g}")),
    ("Score difference", "score_difference", "{:+.2f}"),
)


@dataclass(frozen=True)
class Table:
    """A table as text; the first two columns are the group of rows and the row, the others numbers."""

    name: str  # in names of files
    title: str
    cells: pd.DataFrame  # the best of a group is in asterisks


def tables(block: Block, numbers: pd.DataFrame, pairs: pd.DataFrame) -> list[Table]:
    """Make the tables that a block has numbers for, of `numbers.numbers` and `paired.compare`."""
    others = {*numbers["method"]} - {*METHODS}
    papers = numbers[numbers["method"].isin(METHODS)]
    beside = numbers[numbers["method"].isin([*others, "baseline", "lazyllm"] if others else [])]
    means = overall(numbers)
    made = [
        ("table1", "Table 1. Score and speedup of the first token", _TABLE1, papers),
        ("table2", "Table 2. Prompt tokens computed and speedup of the generation as measured", _TABLE2, papers),
        ("others", "Methods that the paper lacks", _OTHERS, beside),
        ("fidelity", "Speed, and fidelity to the unmodified model", _FIDELITY, means[means["method"] != "baseline"]),
        ("score_by_group", "Score by group of records", groups_of(block), numbers),
    ]
    result = []
    for name, title, measures, lines in made:
        shown = [measure for measure in measures if (lines["measure"] == measure.key).any()]
        if (lines["method"] == "baseline").any():  # whose score is the unmodified one
            shown = [measure for measure in shown if measure != averages.UNMODIFIED_SCORE]
        # A table of only the unmodified model compares nothing.
        if shown and ({*lines["method"]} != {"baseline"} or name in ("table1", "score_by_group")):
            result.append(Table(name, title, _cells(block, lines, shown, beside_paper=name in ("table1", "table2"))))
    if len(pairs):
        result.append(Table("paired", "Paired tests at equal speed", _paired(pairs)))
    return result


def _cells(block: Block, lines: pd.DataFrame, measures: Sequence[Measure], beside_paper: bool) -> pd.DataFrame:
    """Format `Task`, `Method` and the measures, a line per task and row that has any of them.

    On LongBench, columns with the paper's numbers follow. They do not depend on a row's settings, which the paper does
    not state, so only a method's first row has them.
    """
    lines = lines[lines["measure"].isin([measure.key for measure in measures])]
    index = lines[["task", "title", "method", "name"]].drop_duplicates()
    orders = {"task": [*dict.fromkeys(lines["task"])], "name": [row.name for row in block.rows]}
    index = index.sort_values([*orders], key=lambda keys: keys.map(orders[keys.name].index))
    cells = {"Task": index["title"].tolist(), "Method": index["name"].tolist()}
    rows = pd.MultiIndex.from_frame(index[["task", "name"]])
    for measure in measures:
        own = lines[lines["measure"] == measure.key].set_index(["task", "name"])
        texts = own["value"].map(f"{{:.{measure.digits}f}}".format)
        for task, values in own[own["method"] != "baseline"].groupby(level="task"):
            if (best := _best(values, -1 if measure.key in _LEAST_IS_BEST else 1)) is not None:
                texts[task, best] = f"**{texts[task, best]}**"
        cells[measure.title] = texts.reindex(rows).fillna(NONE).tolist()
    if beside_paper and block.runs[0].settings["data"].get("source") == "longbench":
        model = paper.model_beside(block.model)
        is_first = ~index.duplicated(["task", "method"])
        for measure in measures:
            keys = zip(index["task"], index["method"], is_first, strict=True)
            printed = [paper.number(model, task, method, measure.key) * first for task, method, first in keys]
            if any(printed):
                cells[f"Paper: {measure.title}"] = [text or NONE for text in printed]
    return pd.DataFrame(cells)


def _best(values: pd.DataFrame, sign: int) -> str | None:
    """Return the name of the best row if its interval excludes the second best's value."""
    ranked = (sign * values["value"]).nlargest(2)
    if len(ranked) < 2:
        return None
    end = sign * values.loc[ranked.index[0], "low" if sign > 0 else "high"]
    return str(ranked.index[0][1]) if end > ranked.iloc[1] else None


def _paired(pairs: pd.DataFrame) -> pd.DataFrame:
    """Format the paired tests: `First`, `Second`, their speedups, and the columns that have numbers."""
    both = zip(pairs["first_ttft_speedup"], pairs["second_ttft_speedup"], strict=True)
    speedups = [f"{one:.2f}, {other:.2f}" for one, other in both]
    cells = {"First": pairs["first"], "Second": pairs["second"], "First token (×)": speedups}
    cells["Records"] = pairs["records"].astype(str)
    for title, key, form in _PAIRED:
        if (pairs[key].fillna(0) != 0).any():
            cells[title] = [text.replace("-", "−") for text in texts(pairs, key, form, NONE)]
    return pd.DataFrame(cells)
