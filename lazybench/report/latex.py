"""Tables as LaTeX floats as wide as the page; they need booktabs alone."""

import re

import pandas as pd

from lazybench.analysis.averages import MEAN, Measure
from lazybench.analysis.grouping import Block
from lazybench.analysis.paired import EQUAL
from lazybench.report.tables import NONE, Spec, is_taken, pairs_shown

_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # LaTeX's default encoding prints these as other signs, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "†": "$\\dagger$", "—": "--", "–": "--", "…": "\\ldots{}"}
)


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    # A line that begins with one of these would be read as an argument of the line's end before it.
    return re.sub(r"^[*\[]", r"{\g<0>}", text.translate(_SIGNS))


def latex(spec: Spec, block: Block, lines: pd.DataFrame) -> str:
    """Format a table of the paper's measures, or of all measures if the paper has none of them.

    The best method of each task, without the baseline, is bold.
    """
    taken = [measure for measure in spec.measures if is_taken(measure, lines)]
    measures = [measure for measure in taken if measure.key in spec.in_paper] or taken
    cells = {measure.title: _cells(measure, lines) for measure in measures}
    cells = pd.DataFrame({"Task": lines["title"].map(escaped), "Method": lines["label"].map(escaped)} | cells)
    counts = {measure.title: lines.loc[lines["task"] != MEAN, f"{measure.key}_records"] for measure in measures}
    records = "; ".join(f"{title} {min(count)} to {max(count)}" for title, count in counts.items())
    caption = (
        f"{spec.title}: {block.title}. Bold: the best of each task but the baseline. †: of fewer records than others "
        f"there. Records a task: {records}."
    )
    return _float(f"{spec.name}-{block.model}-{block.data}", caption, cells)


def _cells(measure: Measure, lines: pd.DataFrame) -> pd.Series:
    """Format a measure; a value on fewer datasets than others of its task is not compared for the best one."""
    values = lines[measure.key]
    counts = lines[["datasets", f"{measure.key}_records"]]
    fewer = counts < counts.where(values.notna()).groupby(lines["task"]).transform("max")
    is_rival = (lines["method"] != "baseline") & ~fewer["datasets"]
    rivals = values.where(is_rival).groupby(lines["task"])
    best = rivals.transform("min" if measure.lower_is_better else "max")
    bold = is_rival & (values == best) & (rivals.transform("nunique") > 1)
    text = values.map(lambda value: escaped(NONE) if pd.isna(value) else f"{value:.{measure.digits}f}")
    text = text.mask(fewer.any(axis=1), text + "$^\\dagger$")
    return text.mask(bold, "\\textbf{" + text + "}")


def latex_pairs(block: Block, pairs: pd.DataFrame) -> str:
    """Format the paired tests of a model and data."""
    kept = ("First", "Second", "TTFT speedup, first (×)", "TTFT speedup, second (×)", "KL ratio", "p of KL (Holm)")
    cells = pairs_shown(pairs).filter([*kept, "Score difference"]).map(escaped)
    caption = (
        f"Methods at equal speed on the same records: {block.title}. Speedups differ by at most {EQUAL:.0%}. KL ratio: "
        f"of mean KLs to the unmodified model, below 1 the first is nearer to it. p: Wilcoxon's signed-rank test over "
        f"records, Holm-corrected for {pairs['comparisons'].iloc[0]} comparisons. Score difference: first minus "
        "second. Brackets: 95% confidence intervals."
    )
    return _float(f"paired-{block.model}-{block.data}", caption, cells)


def _float(name: str, caption: str, cells: pd.DataFrame) -> str:
    """Format a table of LaTeX cells; repeated texts in the first column are blank."""
    first = cells.columns[0]
    is_new = cells[first] != cells[first].shift()
    cells[first] = ("\\addlinespace " + cells[first]).where(is_new, "")
    tabular = cells.rename(columns=escaped).style.hide(axis="index")
    return tabular.to_latex(
        hrules=True,
        column_format="ll" + "r" * (cells.shape[1] - 2),
        environment="table*",
        position_float="centering",
        caption=escaped(caption),
        label="tab:" + re.sub("[^A-Za-z0-9.]+", "-", name),
    ).replace("\\centering", "\\centering\\footnotesize", 1)
