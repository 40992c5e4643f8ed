"""Tables as LaTeX floats, as wide as a column or the page of a paper; they need booktabs alone."""

import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from lazybench.analysis.averages import MEAN, Measure
from lazybench.analysis.grouping import Block
from lazybench.analysis.paired import EQUAL
from lazybench.report.tables import NONE, Spec, is_taken, pairs_shown

_COLUMN, _PAGE = 56, 112  # characters across a column of 220 points, and a page of 397
_HEADING, _LABEL, _GAP = 10, 20, 2  # characters of a line of a heading, at least of a label, and between columns
_ROWS = 45  # of a page, beside a caption
_LINES = 60  # of a page, of which a section takes two
_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # LaTeX's usual encoding prints these as other signs, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "†": "$\\dagger$", "—": "--", "–": "--", "…": "\\ldots{}"}
)

# The largest of three font sizes that fits is used.
_FLOAT = r"""\begin{%(float)s}
\centering
\caption{%(caption)s}
\label{tab:%(label)s}
\smallskip
\setlength{\tabcolsep}{3pt}
\def\tabularbody{%(tabular)s}
\def\fitsize#1{\ifdim\wd0>\linewidth\setbox0\hbox{#1\tabularbody}\fi
\ifdim\ht0>.35\textheight\setbox0\hbox{#1\tabularbody}\fi}
\setbox0\hbox{\footnotesize\tabularbody}\fitsize\scriptsize\fitsize{\fontsize{6}{7}\selectfont}
\leavevmode\box0
\end{%(float)s}"""


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    # After a line's end these would be its argument.
    return re.sub(r"^[*\[]", r"{\g<0>}", text.translate(_SIGNS))


def latex(spec: Spec, named: Sequence[Measure], block: Block, lines: pd.DataFrame) -> str:
    """Format a table, tasks by methods, with the best method of each task in bold; the baseline is not among those.

    A section is a task and a column a measure, as in the paper's Table 1; where that is too long for a page, a section
    is a measure and a column a task. `named` measures replace those of the paper's table.
    """
    usual = [measure for measure in spec.measures if measure.key in spec.in_paper or not spec.in_paper]
    measures = [measure for measure in named or usual if is_taken(measure, lines)]
    if not measures:
        return f"% Nothing was measured of {escaped(block.title)}."
    cells = pd.concat([_cells(measure, lines) for measure in measures])
    long = cells["task"].nunique() * cells["label"].nunique() > _ROWS
    down, across = ("measure", "task") if long else ("task", "measure")
    text = cells.pivot(index=[down, "label"], columns=across, values="text")
    order = pd.MultiIndex.from_frame(cells[[down, "label"]].drop_duplicates())
    text = text.reindex(index=order, columns=dict.fromkeys(cells[across])).fillna(escaped(NONE))
    counts = {measure.title: lines.loc[lines["task"] != MEAN, f"{measure.key}_records"] for measure in measures}
    records = "; ".join(f"{title} {min(count)} to {max(count)}" for title, count in counts.items())
    title = ", ".join(measure.title.removesuffix(" (×)") for measure in measures)
    caption = f"{title}: {block.title}. Bold: the best of each task but the baseline. Records a task: {records}."
    caption += " †: of fewer records than others there." if cells["text"].str.contains("dagger").any() else ""
    return _floats(f"{spec.name}-{block.model}-{block.data}", caption, text)


def _cells(measure: Measure, lines: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: its task, method's label, measure and text."""
    values = lines[measure.key].round(measure.digits)
    counts = lines[["datasets", f"{measure.key}_records"]]
    fewer = counts < counts.where(values.notna()).groupby(lines["task"]).transform("max")
    is_rival = (lines["method"] != "baseline") & ~fewer["datasets"]
    rivals = values.where(is_rival).groupby(lines["task"])
    best = rivals.transform("min" if measure.lower_is_better else "max")
    bold = is_rival & (values == best) & (rivals.transform("nunique") > 1)
    text = values.map(lambda value: escaped(NONE) if pd.isna(value) else f"{value:.{measure.digits}f}")
    text = text.mask(fewer.any(axis=1), text + "$^\\dagger$")
    text = text.mask(bold, "\\textbf{" + text + "}")
    return pd.DataFrame({"task": lines["title"], "label": lines["label"], "measure": measure.title, "text": text})


def latex_pairs(block: Block, pairs: pd.DataFrame) -> str:
    """Format the paired tests of a model and data, a section for each first method."""
    kept = ("First", "Second", "TTFT speedup, first (×)", "TTFT speedup, second (×)", "KL ratio", "p of KL (Holm)")
    text = pairs_shown(pairs).filter([*kept, "Score difference"])
    caption = (
        f"Methods at equal speed on the same records, each first one above its seconds: {block.title}. Speedups differ "
        f"by at most {EQUAL:.0%}. KL ratio: of mean KLs to the unmodified model, below 1 the first is nearer to it. "
        f"p: Wilcoxon's signed-rank test over records, Holm-corrected for {pairs['comparisons'].iloc[0]} comparisons. "
        "Score difference: first minus second. Brackets: 95% confidence intervals."
    )
    return _floats(f"paired-{block.model}-{block.data}", caption, text.set_index(["First", "Second"]).map(escaped))


def _floats(name: str, caption: str, text: pd.DataFrame) -> str:
    """Format a table by section and row (its index) and column as one float, or as many as it takes to fit pages.

    They are as wide as a paper's column if there are at most two columns, or if no label has to be wrapped for more.
    """
    widths = [max(map(len, [*_heading(title), *text[title].map(_printed)])) + _GAP for title in text]
    longest = max(len(label) for row in text.index for label in row) + _GAP
    label = min(_LABEL + _GAP, longest)
    narrow = sum(widths) + (label if len(widths) <= 2 else longest) <= _COLUMN
    kind, room = ("table", _COLUMN) if narrow else ("table*", _PAGE)
    across = _slices(widths, room - label)
    label = room - max(sum(widths[part]) for part in across) - _GAP
    rows = pairwise([("", ""), *text.index])
    lines = [len(_wrapped(row, label)) + 2 * (section != before) for (before, _), (section, row) in rows]
    parts = [text.iloc[down, part] for down in _slices(lines, _LINES) for part in across]
    if len(parts) == 1:
        return _float(kind, name, caption, text, label)
    return "\n".join(
        _float(kind, f"{name}-{number}", f"{caption} Part {number} of {len(parts)}.", part, label)
        for number, part in enumerate(parts, start=1)
    )


def _slices(sizes: Sequence[int], most: int) -> list[slice]:
    """Split consecutive sizes into slices that add up to `most` at most."""
    starts, total = [0], 0
    for position, size in enumerate(sizes):
        if total and total + size > most:
            starts.append(position)
            total = 0
        total += size
    return [slice(*ends) for ends in pairwise([*starts, len(sizes)])]


def _float(kind: str, name: str, caption: str, text: pd.DataFrame, width: int) -> str:
    """Format one float of a table by section and row (its index) and column, labels wrapped to `width` characters."""
    rows, blank = [], [""] * text.shape[1]
    for title, section in text.groupby(level=0, sort=False):
        first, *others = _wrapped(title, width, "\\textit{%s}")
        rows += [[line, *blank] for line in (f"\\midrule {first}", *others)]
        for (_, label), cells in zip(section.index, section.to_numpy(), strict=True):
            first, *others = _wrapped(label, width)
            rows += [[first, *cells], *([line, *blank] for line in others)]
    style = pd.DataFrame(rows, columns=["", *text.columns]).style.hide(axis="index").format_index(_stacked, axis=1)
    tabular = style.to_latex(hrules=True, column_format="l" + "r" * len(text.columns))
    tabular = tabular.replace("\\midrule\n\\midrule", "\\midrule").strip()
    name = re.sub("[^A-Za-z0-9.]+", "-", name)
    return _FLOAT % {"float": kind, "caption": escaped(caption), "label": name, "tabular": tabular}


def _wrapped(text: str, width: int, form: str = "%s") -> list[str]:
    """Wrap a label into lines of LaTeX of at most `width` characters, further ones indented."""
    lines = textwrap.wrap(text, width) or [""]
    return ["\\quad " * (number > 0) + form % escaped(line) for number, line in enumerate(lines)]


def _heading(text: str) -> list[str]:
    return textwrap.wrap(text, _HEADING, break_long_words=False)


def _stacked(title: str) -> str:
    lines = "\\\\".join(map(escaped, _heading(title)))
    return f"\\shortstack[r]{{{lines}}}"


def _printed(cell: str) -> str:
    """Return the characters that LaTeX prints of a cell, without a dagger."""
    return re.sub(r"\\[a-z]+|[\\${}^]", "", cell)
