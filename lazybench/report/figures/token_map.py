"""A token map as a picture, as wide as a paper's column: words shaded by how many layers they went through."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lazybench.report.figures import style
from lazybench.token_map.page import Reach, palette, texts

_LETTERS = 54  # of a line, all as wide as each other
_LINE = 0.15  # inches
_SIZE = 72 * style.COLUMN / (_LETTERS + 2) / 0.602  # points, at which letters of DejaVu Sans Mono fill a line


class _Look(NamedTuple):
    paper: str = "none"
    ink: str = "black"
    weight: str = "normal"
    framed: bool = False


_ANSWER = _Look("black", "white", "bold")
_Piece = tuple[str, _Look]


def picture(reaches: Sequence[Reach], tokenizer: Any, about: Mapping[str, str], kind: str = ".png") -> bytes:
    """`about`, and below it the text of each generation, its answer white on black; `kind` may be `.pdf`, too."""
    with style.styled():
        figure, file = _draw(reaches, tokenizer, about), BytesIO()
        figure.savefig(file, format=kind[1:], metadata={"CreationDate" if kind == ".pdf" else "Software": None})
    return file.getvalue()


def _draw(reaches: Sequence[Reach], tokenizer: Any, about: Mapping[str, str]) -> Figure:
    lines = [[(f"{name}: {text}", _Look(ink=style.GREY))] for name, text in about.items()]
    for reach in reaches:
        title = [(reach.title, _Look(weight="bold")), (f", {reach.prefilled:.0%} of the work", _Look())]
        lines += [[], title, *_text(reach, tokenizer)]
    placed = [*_placed(lines)]
    rows = placed[-1][0] + 1.5
    figure = Figure(figsize=(style.COLUMN, _LINE * rows))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, _LETTERS + 1), ylim=(rows, -0.5))
    axes.axis("off")
    for (row, look), letters in groupby(placed, lambda of: (of[0], of[3])):
        run = [*letters]
        frame = {"edgecolor": style.VERMILLION, "zorder": 2} if look.framed else {"linewidth": 0}
        axes.add_patch(Rectangle((run[0][1], row + 0.06), len(run), 0.88, facecolor=look.paper, **frame))
        words = {"color": look.ink, "weight": look.weight, "family": "monospace", "fontsize": _SIZE, "ha": "center"}
        for _, column, sign, _ in run:  # one by one: together they would not keep to the columns
            axes.text(column + 0.5, row + 0.72, sign, **words)
    return figure


def _text(reach: Reach, tokenizer: Any) -> Iterator[list[_Piece]]:
    """What the looks mean, and the prompt with the answer behind it."""
    back = {token for stages in reach.revived for found in stages for token in found}
    looks = [_Look(paper, ink) for paper, ink, *_ in palette(len(reach.ends))]
    names = [*(f" {end} layers " for end in reach.ends[:-1]), f" all {reach.layers} layers "]
    yield [*zip(names, looks, strict=True), *([(" came back ", _Look(framed=True))] if back else [])]
    words = [*texts(tokenizer, reach.ids)]
    while not words[-1].strip():
        words.pop()
    of = [looks[depth]._replace(framed=token in back) for token, depth in enumerate(reach.depths[: reach.prompt])]
    yield [*zip(words, of + [_ANSWER] * (len(words) - len(of)), strict=True)]


def _placed(lines: Sequence[Sequence[_Piece]]) -> Iterator[tuple[int, int, str, _Look]]:
    """Row, column, sign and look of each sign; words that do not fit go to the next row."""
    row = 0
    for pieces in lines:
        looks = [(sign, look) for text, look in pieces for sign in text]
        column = at = 0
        for word in re.findall(rf"\n|[^\S\n]*\S{{0,{_LETTERS}}}", "".join(sign for sign, _ in looks)):
            if word == "\n" or column + len(word) > _LETTERS:
                row, column = row + 1, 0
            for sign, look in looks[at : at + len(word)]:
                if column or at == 0 or not sign.isspace():
                    yield row, column, sign, look
                    column += 1
            at += len(word)
        row += 1
