"""The map as one page of HTML that loads nothing from anywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any

from lazybench.token_map.palette import palette
from lazybench.token_map.reach import Reach
from lazybench.token_map.texts import texts
from lazyllm import LazyLLMError

_KEY = (
    "A token's colour says how many layers it went through in prefilling. <span class=go>Framed</span> tokens are "
    "revived for the chosen token of the answer, <span class=stay>dashed</span> ones not as far as the last layer."
)
_HEADS = "".join(
    f"<th scope=col>{head}"
    for head in ("Layers", "prompt tokens that got no further", "revived for this token", "revived in all")
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


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

    Its script reads `data`, JSON: `prompt`, the text of each token of the prompt, and `maps`, for each generation

    - `answer`, the text of each token behind the prompt,
    - `totals` and `depths`, as in `Reach`, the latter of the prompt's tokens,
    - `revived`, as in `Reach`, each list as its first position and the steps from one to the next.

    Args:
        reaches: the generations.
        tokenizer: the model's, whose `decode` gives the tokens' text.
        about: what else to say at the top, such as the model, by name.

    Raises:
        LazyLLMError: the prompts differ.
    """
    first = reaches[0]
    prompt = first.ids[: first.prompt]
    if any(reach.ids[: reach.prompt] != prompt for reach in reaches):
        raise LazyLLMError("the generations are of different prompts: a page shows one prompt")
    split = [list(texts(tokenizer, reach.ids)) for reach in reaches]
    data = {
        "prompt": split[0][: len(prompt)],
        "maps": [_data(reach, found[len(prompt) :]) for reach, found in zip(reaches, split, strict=True)],
    }
    heading = " | ".join(reach.title for reach in reaches)
    said = {**(about or {}), "Prompt": f"{len(prompt):,} tokens"}
    steps = max(len(reach.totals) for reach in reaches)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Token map: {escape(heading)}</title>",
        f"<style>\n{_part('page.css')}{_colours(reaches)}</style>\n</head>\n<body>\n<main>\n<h1>Token map</h1>",
        f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>' for name, text in said.items())}"
        f"</dl>\n<p class=key>{_KEY}</p>\n<noscript><p>This page needs JavaScript, its own alone.</p></noscript>",
        _links(reaches) if len(reaches) > 1 else "",
        _slider(steps),
        "<div id=maps>",
        *(_map(reach, number, alone=len(reaches) == 1) for number, reach in enumerate(reaches)),
        "</div>\n</main>\n<div id=tip role=tooltip hidden></div>",
        f'<script type="application/json" id=data>{_json(data)}</script>',
        f"<script>\n{_part('page.js')}</script>\n</body>\n</html>\n",
    ]
    return Page("\n".join(parts).encode("ascii", "xmlcharrefreplace").decode("ascii"))


def _links(reaches: Iterable[Reach]) -> str:
    links = (f"<a href=#m{number}>{escape(reach.title)}</a>" for number, reach in enumerate(reaches))
    return f"<nav>{''.join(links)}</nav>"


def _slider(steps: int) -> str:
    return (
        "<div class=bar>\n<label for=step id=at></label>\n"
        "<button type=button id=back aria-label='One token back'>&#9664;</button>\n"
        f"<input type=range id=step min=0 max={steps - 1} value=0 step=1>\n"
        "<button type=button id=on aria-label='One token on'>&#9654;</button>\n</div>"
    )


def _map(reach: Reach, number: int, alone: bool) -> str:
    """One generation: what it is, what the colours mean with counts, its answer, and the prompt's text to fill in."""
    name = "" if alone else f"<p class=name aria-hidden=true>{escape(reach.title)}</p>"
    reached = Counter(reach.depths[: reach.prompt])
    in_all = [sum(len(step[stage]) for step in reach.revived) for stage in range(len(reach.schedule.stages))]
    cuts = [0, *(stage.layer + 1 for stage in reach.schedule.stages), reach.layers]
    stages, rows = str(reach.schedule).replace("; ", "\n"), []
    for depth, (start, end) in enumerate(pairwise(cuts)):
        layers = f"{start}&ndash;{end - 1}" if end - start > 1 else f"{start}"
        revived = "<td><td>"
        if depth:
            revived = f"<td class=now>0<td>{in_all[depth - 1]:,}"
            layers = f"<label><input type=checkbox checked value={depth - 1}>{layers}</label>"
        rows.append(f"<tr><th scope=row><i class=d{depth}></i>{layers}<td>{reached[depth]:,}{revived}")
    return "\n".join(
        [
            f'<article id=m{number} aria-label="{escape(reach.title)}">',
            f"<header><h2>{escape(reach.title)}</h2><p>{escape(stages)}</p></header>",
            f"<table><thead><tr>{_HEADS}</thead>\n<tbody>",
            *rows,
            f"</tbody></table>\n<div class=body>\n<div class=top>{name}<canvas aria-hidden=true></canvas>",
            "<p class=answer aria-label=Answer></p></div>\n<p class=text aria-label=Prompt></p></div>\n</article>",
        ]
    )


def _colours(reaches: Iterable[Reach]) -> str:
    """The colours of each generation's depths: those that all reach to the end are the same in all of them."""
    rules = {
        dark: [
            f"#m{number} .d{depth} {{ background: {paper}; color: {ink}; }}"
            for number, reach in enumerate(reaches)
            for depth, (paper, ink) in enumerate(palette(len(reach.schedule.stages) + 1, dark))
        ]
        for dark in (False, True)
    }
    light, dark = ("\n".join(rules[dark]) for dark in (False, True))
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _data(reach: Reach, answer: list[str]) -> dict[str, Any]:
    gaps = [
        [[position - before for before, position in pairwise([0, *positions])] for positions in step]
        for step in reach.revived
    ]
    return {"answer": answer, "totals": reach.totals, "depths": reach.depths[: reach.prompt], "revived": gaps}


def _json(data: Any) -> str:
    """JSON that holds nothing that could end the element it is in, or begin another."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _part(name: str) -> str:
    return files("lazybench.token_map").joinpath(name).read_text("ascii")
