"""Draw a token map as wide as a paper's column: words shaded by the number of layers that computed them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lazybench.report.figures import style
from lazybench.token_map.page import TokenMap, palette, token_texts

_LETTERS = 54  # in a line of a monospace font
_LINE = 0.15  # inches
_SIZE = 72 * style.COLUMN / (_LETTERS + 2) / 0.602  # points at which a line of DejaVu Sans Mono fills a column


class _Look(NamedTuple):
    background: str = "none"
    ink: str = "black"
    weight: str = "normal"
    framed: bool = False


_Text = Sequence[tuple[str, _Look]]


def picture(maps: Sequence[TokenMap], tokenizer: Any, details: Mapping[str, str], kind: str = ".png") -> bytes:
    """Draw `details` and the text of each generation, its answer white on black; `kind` is `.png` or `.pdf`."""
    texts = [[(f"{name}: {text}", _Look(ink=style.GREY))] for name, text in details.items()]
    for one in maps:
        texts += [[], *_generation(one, tokenizer)]
    letters = [*_layout(texts)]
    rows, file = letters[-1][0] + 1.5, BytesIO()
    with style.styled():
        figure = Figure(figsize=(style.COLUMN, _LINE * rows))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, _LETTERS + 1), ylim=(rows, -0.5))
        axes.axis("off")
        for (row, look), group in groupby(letters, lambda letter: (letter[0], letter[3])):
            run = [*group]
            frame = {"edgecolor": style.VERMILLION, "zorder": 2} if look.framed else {"linewidth": 0}
            axes.add_patch(Rectangle((run[0][1], row + 0.06), len(run), 0.88, facecolor=look.background, **frame))
            font = {"color": look.ink, "weight": look.weight, "family": "monospace", "fontsize": _SIZE, "ha": "center"}
            for _, column, letter, _ in run:  # single letters stay in their columns
                axes.text(column + 0.5, row + 0.72, letter, **font)
        figure.savefig(file, format=kind[1:], metadata={"CreationDate" if kind == ".pdf" else "Software": None})
    return file.getvalue()


def _generation(one: TokenMap, tokenizer: Any) -> list[_Text]:
    """Return three texts of a generation: its title, its legend, and its prompt and answer."""
    title = [(one.title, _Look(weight="bold")), (f", {one.prompt_computed:.0%} of the work", _Look())]
    *pruned, num_layers = one.layers_by_depth
    looks = [_Look(paper, ink) for paper, ink, *_ in palette(len(one.layers_by_depth))]
    revived = {token for stages in one.revived for positions in stages for token in positions}
    names = [f" {layers} layers " for layers in pruned] + [f" all {num_layers} layers "]
    legend = list(zip(names, looks, strict=True))
    if revived:
        legend.append((" revived ", _Look(framed=True)))
    words = list(token_texts(tokenizer, one.ids))
    while not words[-1].strip():
        words.pop()
    depths = enumerate(one.depths[: one.prompt_length])
    by_token = [looks[depth]._replace(framed=token in revived) for token, depth in depths]
    by_token += [_Look("black", "white", "bold")] * (len(words) - one.prompt_length)
    return [title, legend, list(zip(words, by_token, strict=True))]


def _layout(texts: Sequence[_Text]) -> Iterator[tuple[int, int, str, _Look]]:
    """Yield row, column, letter and look of each letter; a word that does not fit begins the next row."""
    row = 0
    for text in texts:
        letters, column = [(letter, look) for word, look in text for letter in word], 0
        for word in re.finditer(rf"\n|[^\S\n]*\S{{0,{_LETTERS}}}", "".join(letter for letter, _ in letters)):
            if word[0] == "\n" or column + len(word[0]) > _LETTERS:
                row, column = row + 1, 0
            for letter, look in letters[word.start() : word.end()]:
                if column or word.start() == 0 or not letter.isspace():
                    yield row, column, letter, look
                    column += 1
        row += 1
