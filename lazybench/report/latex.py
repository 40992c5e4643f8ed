"""Tables as LaTeX, to be taken into a paper as they are: one page each, in one column or two."""

import re
import textwrap
from collections.abc import Sequence

import pandas as pd

from lazybench.analysis.averages import MEAN, Measure
from lazybench.analysis.blocks import Block
from lazybench.analysis.paired import EQUAL
from lazybench.report.tables import NONE, Spec, pairs_shown, taken

_HEADING = 12  # characters of a heading before it goes on in another line
_ROWS = 45  # that a page holds beside a caption
_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # In LaTeX's usual encoding these print as others, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "†": "$\\dagger$", "—": "--", "–": "--", "…": "\\ldots{}"}
)

_FLOAT = r"""\begin{table*}
\centering
\caption{%(caption)s}
\label{tab:%(label)s}
\smallskip
\footnotesize
\setlength{\tabcolsep}{4pt}
\resizebox*{!}{\ifdim\totalheight>.8\textheight .8\textheight\else\totalheight\fi}{%%
\resizebox{\ifdim\width>\textwidth \textwidth\else\width\fi}{!}{%%
%(tabular)s%%
}}
\end{table*}"""


def escaped(text: str) -> str:
    """A text as LaTeX prints it."""
    return text.translate(_SIGNS)


def latex(spec: Spec, named: Sequence[Measure], block: Block, lines: pd.DataFrame) -> str:
    """One table, tasks by methods, the best of each task in bold; the baseline is not among those.

    A section a task with a column a measure, as the paper's Table 1 has it; where that is too long for a page, a
    section a measure with a column a task. `named` measures stand for those that the paper's table has.
    """
    usual = [of for of in spec.measures if of.key in spec.in_paper or not spec.in_paper]
    measures = [of for of in named or usual if taken(of, lines)]
    if not measures:
        return f"% Nothing was measured of {escaped(block.title)}."
    cells = pd.concat([_cells(of, lines) for of in measures])
    long = cells["task"].nunique() * cells["label"].nunique() > _ROWS
    down, across = ("measure", "task") if long else ("task", "measure")
    text = cells.pivot(index=[down, "label"], columns=across, values="text")
    order = pd.MultiIndex.from_frame(cells[[down, "label"]].drop_duplicates())
    text = text.reindex(index=order, columns=dict.fromkeys(cells[across])).fillna(escaped(NONE))
    counts = {of.title: lines.loc[lines["task"] != MEAN, f"{of.key}_records"] for of in measures}
    records = "; ".join(f"{title} {min(of)} to {max(of)}" for title, of in counts.items())
    title = ", ".join(of.title.removesuffix(" (×)") for of in measures)
    said = f"{title}: {block.title}. Bold: the best of each task but the baseline. Records a task: {records}."
    said += " †: of fewer records than others there." if cells["text"].str.contains("dagger").any() else ""
    return _float(f"{spec.name}-{block.model}-{block.data}", said, text)


def _cells(of: Measure, lines: pd.DataFrame) -> pd.DataFrame:
    """A row a cell: its task, method's label, measure and text."""
    values = lines[of.key].round(of.digits)
    behind = lines[["datasets", f"{of.key}_records"]]
    fewer = behind < behind.where(values.notna()).groupby(lines["task"]).transform("max")
    rival = (lines["method"] != "baseline") & ~fewer["datasets"]
    rivals = values.where(rival).groupby(lines["task"])
    best = rivals.transform("min" if of.lower_is_better else "max")
    bold = rival & (values == best) & (rivals.transform("nunique") > 1)
    shown = [escaped(NONE) if pd.isna(value) else f"{value:.{of.digits}f}" for value in values]
    shown = [f"{text}$^\\dagger$" if less else text for text, less in zip(shown, fewer.any(axis=1), strict=True)]
    return pd.DataFrame(
        {
            "task": lines["title"],
            "label": lines["label"],
            "measure": of.title,
            "text": [f"\\textbf{{{text}}}" if best else text for text, best in zip(shown, bold, strict=True)],
        }
    )


def latex_pairs(block: Block, pairs: pd.DataFrame) -> str:
    """The paired tests of a model and data, a section for each first method."""
    kept = ("First", "Second", "TTFT speedup, first (×)", "TTFT speedup, second (×)", "KL ratio", "p of KL (Holm)")
    text = pairs_shown(pairs).filter([*kept, "Score difference"])
    said = (
        f"Methods at equal speed on the same records, each first one above its seconds: {block.title}. Speedups differ "
        f"by at most {EQUAL:.0%}. KL ratio: of mean KLs to the unmodified model, below 1 the first is nearer to it. "
        f"p: Wilcoxon's signed-rank test over records, Holm-corrected for {pairs['comparisons'].iloc[0]} comparisons. "
        "Score difference: first minus second. Brackets: 95% confidence intervals."
    )
    return _float(f"paired-{block.model}-{block.data}", said, text.set_index(["First", "Second"]).map(escaped))


def _float(name: str, caption: str, text: pd.DataFrame) -> str:
    """A floating table of LaTeX by section and row (its index) and column, made smaller where it exceeds the page."""
    sections = []
    for title, rows in text.groupby(level=0, sort=False):
        head = pd.DataFrame("", index=[f"\\midrule \\textit{{{escaped(title)}}}"], columns=text.columns)
        sections += [head, rows.droplevel(0).rename(index=escaped)]
    flat = pd.concat(sections).rename_axis("").reset_index()
    style = flat.style.hide(axis="index").format_index(_stacked, axis=1)
    tabular = style.to_latex(hrules=True, column_format="l" + "r" * len(text.columns))
    tabular = tabular.replace("\\midrule\n\\midrule", "\\midrule").strip()
    label = re.sub("[^A-Za-z0-9.]+", "-", name)
    return _FLOAT % {"caption": escaped(caption), "label": label, "tabular": tabular}


def _stacked(title: str) -> str:
    lines = "\\\\".join(map(escaped, textwrap.wrap(title, _HEADING, break_long_words=False, break_on_hyphens=False)))
    return f"\\shortstack[r]{{{lines}}}"
