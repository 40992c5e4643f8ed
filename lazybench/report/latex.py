"""Tables as LaTeX, to be taken into a paper as they are: floats of a column or the page, for booktabs alone."""

import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from lazybench.analysis.averages import MEAN, Measure
from lazybench.analysis.blocks import Block
from lazybench.analysis.paired import EQUAL
from lazybench.report.tables import NONE, Spec, pairs_shown, taken

_HEADING = 10  # characters of a heading before it goes on in another line
_ROWS = 45  # that a page holds beside a caption
# Characters across a column of 220 points, and a page of 397; between two columns of a table; that labels have at least
# before they are wrapped. Lines of a page, of which a section takes two.
_COLUMN, _PAGE, _GAP, _LABEL, _LINES = 56, 112, 2, 20, 60
_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # In LaTeX's usual encoding these print as others, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "†": "$\\dagger$", "—": "--", "–": "--", "…": "\\ldots{}"}
)

# A table has the largest of three sizes that fits.
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
    """A text as LaTeX prints it."""
    # After a line's end these would be an argument of it.
    return re.sub(r"^[*\[]", r"{\g<0>}", text.translate(_SIGNS))


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
    return _floats(f"{spec.name}-{block.model}-{block.data}", said, text)


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
    return _floats(f"paired-{block.model}-{block.data}", said, text.set_index(["First", "Second"]).map(escaped))


def _floats(name: str, caption: str, text: pd.DataFrame) -> str:
    """Floats of a table by section and row (its index) and column: one, or as many as it takes to fit pages.

    They are as wide as a column of the paper for two columns, and where no label has to be wrapped for more.
    """
    widths = [max(map(len, [*_heading(title), *text[title].map(_printed)])) + _GAP for title in text]
    longest = max(len(of) for row in text.index for of in row) + _GAP
    label = min(_LABEL + _GAP, longest)
    narrow = sum(widths) + (label if len(widths) <= 2 else longest) <= _COLUMN
    kind, room = ("table", _COLUMN) if narrow else ("table*", _PAGE)
    across = _parts(widths, room - label)
    label = room - max(sum(widths[part]) for part in across) - _GAP
    rows = pairwise([("", ""), *text.index])
    lines = [len(_wrapped(of, label)) + 2 * (section != before) for (before, _), (section, of) in rows]
    parts = [text.iloc[down, part] for down in _parts(lines, _LINES) for part in across]
    if len(parts) == 1:
        return _float(kind, name, caption, text, label)
    numbered = ((f"{name}-{place}", f"{caption} Part {place} of {len(parts)}.") for place in range(1, len(parts) + 1))
    return "\n".join(_float(kind, *of, part, label) for of, part in zip(numbered, parts, strict=True))


def _parts(sizes: Sequence[int], most: int) -> list[slice]:
    """Slices of consecutive sizes that add up to `most` at most."""
    starts, taken = [0], 0
    for place, size in enumerate(sizes):
        if taken and taken + size > most:
            starts.append(place)
            taken = 0
        taken += size
    return [slice(*ends) for ends in pairwise([*starts, len(sizes)])]


def _float(kind: str, name: str, caption: str, text: pd.DataFrame, label: int) -> str:
    """A float of a table by section and row (its index) and column, its labels wrapped to `label` characters."""
    rows, blank = [], [""] * text.shape[1]
    for title, section in text.groupby(level=0, sort=False):
        head, *rest = _wrapped(title, label, "\\textit{%s}")
        rows += [[line, *blank] for line in (f"\\midrule {head}", *rest)]
        for (_, of), cells in zip(section.index, section.to_numpy(), strict=True):
            head, *rest = _wrapped(of, label)
            rows += [[head, *cells], *([line, *blank] for line in rest)]
    flat = pd.DataFrame(rows, columns=["", *text.columns])
    style = flat.style.hide(axis="index").format_index(_stacked, axis=1)
    tabular = style.to_latex(hrules=True, column_format="l" + "r" * len(text.columns))
    tabular = tabular.replace("\\midrule\n\\midrule", "\\midrule").strip()
    name = re.sub("[^A-Za-z0-9.]+", "-", name)
    return _FLOAT % {"float": kind, "caption": escaped(caption), "label": name, "tabular": tabular}


def _wrapped(text: str, width: int, form: str = "%s") -> list[str]:
    """A label as LaTeX has it in lines of at most `width` characters, the further ones indented."""
    lines = textwrap.wrap(text, width) or [""]
    return ["\\quad " * (place > 0) + form % escaped(line) for place, line in enumerate(lines)]


def _heading(text: str) -> list[str]:
    return textwrap.wrap(text, _HEADING, break_long_words=False)


def _stacked(title: str) -> str:
    lines = "\\\\".join(map(escaped, _heading(title)))
    return f"\\shortstack[r]{{{lines}}}"


def _printed(cell: str) -> str:
    """The characters that LaTeX prints of a cell, without a dagger."""
    return re.sub(r"\\[a-z]+|[\\${}^]", "", cell)
