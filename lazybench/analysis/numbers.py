"""All numbers of a block: each measure of each row, on the mean over tasks and on every task."""

from collections.abc import Sequence

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, Measure, average, group_measure
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.labels import title_of

MEASURES = (
    *(averages.SCORE, averages.UNMODIFIED_SCORE, averages.SCORE_DIFFERENCE),
    *(averages.TTFT, averages.ANSWER, averages.DECODE_STEP),
    *(averages.GENERATION, averages.OVER_NOTHING_PRUNED, averages.COMPUTED),
    *(averages.GEOMETRIC_KL, averages.KL, averages.ANSWERS, averages.TOKENS),
)
# The unmodified model equals itself in these.
_COMPARISONS = (averages.SCORE_DIFFERENCE, averages.ANSWERS, averages.TOKENS)
_LINE = ["task", "title", "method", "line", "name"]


def groups_of(block: Block) -> list[Measure]:
    """Return the measures of the scores of a block's groups of records."""
    names = [name for name in block.configs if any(name in row.datasets for row in block.rows)]
    return [group_measure(group) for group in dict.fromkeys(g for name in names for g in block.configs[name].groups)]


def numbers(block: Block, rows: Sequence[Row] | None = None) -> pd.DataFrame:
    """Measure rows of a block, those of its tables by default.

    Returns:
        A line per task, row and measure that has a value: `task`, its `title`; the row's `method`, its title as `line`,
        and `name`; `measure`, its `value`, `low` and `high` of the interval, and `records` that it is measured on. The
        mean of the tasks is last.
    """
    rows = block.compared if rows is None else rows
    tasks, averaged = block.tasks(rows), block.averaged(rows)
    sections = {title_of(task, "task"): (task, {task: names}) for task, names in tasks.items()}
    if len(tasks) > 1:
        sections["Macro-average"] = MEAN, averaged
    lines = []
    for title, (task, members) in sections.items():
        for row in rows:
            records, is_whole = row.select(members), all(row.datasets.issuperset(names) for names in members.values())
            for measure in (*MEASURES, *groups_of(block)) if is_whole else ():
                if row.method == "baseline" and measure in _COMPARISONS:
                    continue
                result = average(records, measure)
                values = {"value": result.value, "low": result.low, "high": result.high, "records": result.records}
                names = dict(zip(_LINE, (task, title, row.method, row.title, row.name), strict=True))
                lines.append({**names, "measure": measure.key, **values})
    frame = pd.DataFrame(lines, columns=[*_LINE, "measure", "value", "low", "high", "records"])
    return frame.astype(dict.fromkeys(["value", "low", "high"], float)).dropna(subset="value")


def overall(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of `numbers` of the mean over tasks, or of the task if there is a single one."""
    return numbers[numbers["task"] == MEAN] if numbers["task"].nunique() > 1 else numbers


def wide(numbers: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return a line per task and row that has all `measures`, a column each, with `_low`, `_high` and `_records`."""
    table = numbers.drop_duplicates(_LINE)[[*_LINE]]
    for measure in measures:
        own = numbers[numbers["measure"] == measure].rename(columns={"value": measure, "low": f"{measure}_low"})
        own = own.rename(columns={"high": f"{measure}_high", "records": f"{measure}_records"})
        table = table.merge(own[[*_LINE, *(f"{measure}{end}" for end in ("", "_low", "_high", "_records"))]], on=_LINE)
    return table
