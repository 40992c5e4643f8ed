"""The map as one page of HTML that loads nothing from anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from lazybench.token_map.reach import Reach, texts
from lazyllm import LazyLLMError


class Page(str):
    """An HTML document in ASCII. A notebook shows it in a frame, so that the two leave each other's look alone."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 46rem; border: 1px solid #8886"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self)}"></iframe>'

    def __repr__(self) -> str:
        return f"<token map, {len(self):,} characters of HTML>"


def page(reaches: Sequence[Reach], tokenizer: Any, about: Mapping[str, str] | None = None) -> Page:
    """The page of one generation, or of several from the same prompt side by side.

    It opens at the token for which most is revived. Its script reads `data`, JSON: `prompt`, the text of each token of
    the prompt, and `maps`, for each generation `answer`, the text of each token behind the prompt, and `totals`,
    `revived` and the prompt's `depths`, as in `Reach`.

    Args:
        reaches: the generations.
        tokenizer: the model's, whose `decode` gives the tokens' text.
        about: what else to say at the top, such as the model, by name.

    Raises:
        LazyLLMError: the prompts differ.
    """
    prompt = reaches[0].ids[: reaches[0].prompt]
    if any(reach.ids[: reach.prompt] != prompt for reach in reaches):
        raise LazyLLMError("the generations are of different prompts: a page shows one prompt")
    split = [list(texts(tokenizer, reach.ids)) for reach in reaches]
    end = len(prompt)
    maps = [
        {"answer": of[end:], "totals": reach.totals, "depths": reach.depths[:end], "revived": reach.revived}
        for reach, of in zip(reaches, split, strict=True)
    ]
    came = [0] * max(len(reach.totals) for reach in reaches)
    for reach in reaches:
        for step, stages in enumerate(reach.revived):
            came[step] += sum(map(len, stages))
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    text = environment.get_template("page.html").render(
        about={**(about or {}), "Prompt": f"{end:,} tokens"},
        steps=len(came),
        opens=came.index(max(came)),
        maps=[_head(reach) for reach in reaches],
        data={"prompt": split[0][:end], "maps": maps},
    )
    return Page(text.encode("ascii", "xmlcharrefreplace").decode("ascii"))


def _head(reach: Reach) -> dict[str, Any]:
    """What stands above a generation's text: its title, its stages, and for each depth layers, counts and colours."""
    reached = Counter(reach.depths[: reach.prompt])
    revived = [0, *(sum(map(len, stage)) for stage in zip(*reach.revived, strict=True))]
    cuts = pairwise([0, *(stage.layer + 1 for stage in reach.schedule.stages), reach.layers])
    layers = [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in cuts]
    return {
        "title": reach.title,
        "stages": str(reach.schedule).replace("; ", "\n"),
        "rows": [(of, reached[depth], revived[depth]) for depth, of in enumerate(layers)],
        "colours": palette(len(layers)),
    }


def palette(levels: int) -> list[tuple[str, str, str, str]]:
    """Paper and ink of each depth on a light page, and on a dark one, as CSS.

    The deeper, the further from the page's own colour; the colour-blind can tell them apart (ColorBrewer's YlGnBu).
    """
    from matplotlib import colormaps  # takes long to import
    from matplotlib.colors import to_hex

    shares = [level / (levels - 1) for level in range(levels)]
    both = [(share, 0.8 - 0.75 * share) for share in shares]
    inked = [[(to_hex(colormaps["YlGnBu"](at)), "#000" if at < 0.68 else "#fff") for at in of] for of in both]
    return [(*light, *dark) for light, dark in inked]
