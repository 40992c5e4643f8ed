"""Draws a token map as wide as a paper's column: words shaded by the number of layers they went through."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lazybench.report.figures import style
from lazybench.token_map.page import TokenMap, palette, token_texts

_LETTERS = 54  # of a line, in a font of one width
_LINE = 0.15  # inches
_SIZE = 72 * style.COLUMN / (_LETTERS + 2) / 0.602  # points at which a line of DejaVu Sans Mono fills a column


class _Look(NamedTuple):
    background: str = "none"
    ink: str = "black"
    weight: str = "normal"
    framed: bool = False


_ANSWER = _Look("black", "white", "bold")
_Piece = tuple[str, _Look]


def picture(reaches: Sequence[TokenMap], tokenizer: Any, about: Mapping[str, str], kind: str = ".png") -> bytes:
    """Draw the text of each generation below `about`, its answer white on black; `kind` is `.png` or `.pdf`."""
    with style.styled():
        figure, file = _draw(reaches, tokenizer, about), BytesIO()
        figure.savefig(file, format=kind[1:], metadata={"CreationDate" if kind == ".pdf" else "Software": None})
    return file.getvalue()


def _draw(reaches: Sequence[TokenMap], tokenizer: Any, about: Mapping[str, str]) -> Figure:
    lines = [[(f"{name}: {text}", _Look(ink=style.GREY))] for name, text in about.items()]
    for reach in reaches:
        title = [(reach.title, _Look(weight="bold")), (f", {reach.prompt_computed:.0%} of the work", _Look())]
        lines += [[], title, *_text(reach, tokenizer)]
    letters = [*_layout(lines)]
    rows = letters[-1][0] + 1.5
    figure = Figure(figsize=(style.COLUMN, _LINE * rows))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, _LETTERS + 1), ylim=(rows, -0.5))
    axes.axis("off")
    for (row, look), group in groupby(letters, lambda letter: (letter[0], letter[3])):
        run = [*group]
        frame = {"edgecolor": style.VERMILLION, "zorder": 2} if look.framed else {"linewidth": 0}
        axes.add_patch(Rectangle((run[0][1], row + 0.06), len(run), 0.88, facecolor=look.background, **frame))
        words = {"color": look.ink, "weight": look.weight, "family": "monospace", "fontsize": _SIZE, "ha": "center"}
        for _, column, sign, _ in run:  # one by one: together they would not keep to the columns
            axes.text(column + 0.5, row + 0.72, sign, **words)
    return figure


def _text(reach: TokenMap, tokenizer: Any) -> Iterator[list[_Piece]]:
    """Yield the legend, and the prompt with the answer after it."""
    revived = {token for stages in reach.revived for positions in stages for token in positions}
    looks = [_Look(paper, ink) for paper, ink, *_ in palette(len(reach.layers_by_depth))]
    names = [*(f" {end} layers " for end in reach.layers_by_depth[:-1]), f" all {reach.num_layers} layers "]
    yield [*zip(names, looks, strict=True), *([(" revived ", _Look(framed=True))] if revived else [])]
    words = [*token_texts(tokenizer, reach.ids)]
    while not words[-1].strip():
        words.pop()
    prompt = [
        looks[depth]._replace(framed=token in revived)
        for token, depth in enumerate(reach.depths[: reach.prompt_length])
    ]
    yield [*zip(words, prompt + [_ANSWER] * (len(words) - len(prompt)), strict=True)]


def _layout(lines: Sequence[Sequence[_Piece]]) -> Iterator[tuple[int, int, str, _Look]]:
    """Yield row, column, sign and look of each sign; words that do not fit go to the next row."""
    row = 0
    for pieces in lines:
        looks = [(sign, look) for text, look in pieces for sign in text]
        column = start = 0
        for word in re.findall(rf"\n|[^\S\n]*\S{{0,{_LETTERS}}}", "".join(sign for sign, _ in looks)):
            if word == "\n" or column + len(word) > _LETTERS:
                row, column = row + 1, 0
            for sign, look in looks[start : start + len(word)]:
                if column or start == 0 or not sign.isspace():
                    yield row, column, sign, look
                    column += 1
            start += len(word)
        row += 1
