"""Draw a token map as wide as a paper's column: words shaded by the number of layers that computed them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lazybench.report.figures import style
from lazybench.token_map.page import TokenMap, palette, token_texts

_LETTERS = 54  # in a line of a monospace font
_LINE = 0.15  # inches
_SIZE = 72 * style.COLUMN / (_LETTERS + 2) / 0.602  # points at which a line of DejaVu Sans Mono fills a column
_Piece = tuple[str, str, str, str]  # a text, its ink, its background and its frame


def picture(maps: Sequence[TokenMap], tokenizer: Any, details: Mapping[str, str], kind: str = ".png") -> bytes:
    """Draw `details` and the text of each generation, its answer white on black; `kind` is `.png` or `.pdf`."""
    pieces = [(f"{name}: {text}\n", style.GREY, "none", "none") for name, text in details.items()]
    pieces += [piece for one in maps for piece in _generation(one, tokenizer)]
    file, row, column = BytesIO(), 0, 0
    with style.styled():
        figure = Figure()
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, _LETTERS + 1))
        axes.axis("off")
        for text, ink, background, frame in pieces:
            # A word that does not fit begins the next line.
            for part in re.findall(rf"\n|[^\S\n]*\S{{1,{_LETTERS}}}|[^\S\n]", text):
                if part == "\n" or column + len(part) > _LETTERS:
                    row, column, part = row + 1, 0, part.lstrip()
                box = {"facecolor": background, "edgecolor": frame, "zorder": 1 + (frame != "none")}
                axes.add_patch(Rectangle((column, row + 0.06), len(part), 0.88, **box))
                axes.text(column, row + 0.72, part, color=ink, family="monospace", fontsize=_SIZE)
                column += len(part)
        axes.set_ylim(row + 0.5, -0.5)
        figure.set_size_inches(style.COLUMN, _LINE * (row + 1))
        figure.savefig(file, format=kind[1:], metadata=style.METADATA[kind[1:]])
    return file.getvalue()


def _generation(one: TokenMap, tokenizer: Any) -> Iterator[_Piece]:
    """Yield the pieces of a generation: its title, its legend, and its prompt and answer."""
    yield f"\n{one.title}, {one.prompt_computed:.0%} of the work\n", "black", "none", "none"
    colours = [(ink, paper) for paper, ink, *_ in palette(len(one.layers_by_depth))]
    for layers, colour in zip(one.layers_by_depth, colours, strict=True):
        yield f" {layers} layers ", *colour, "none"
    revived = {token for stages in one.revived for positions in stages for token in positions}
    if revived:
        yield " revived", "black", "none", style.VERMILLION
    yield "\n", "black", "none", "none"
    texts = [*token_texts(tokenizer, one.ids)]
    for token, (text, depth) in enumerate(zip(texts[: one.prompt_length], one.depths, strict=False)):
        yield text, *colours[depth], style.VERMILLION if token in revived else "none"
    yield "".join(texts[one.prompt_length :]).rstrip() + "\n", "white", "black", "none"
