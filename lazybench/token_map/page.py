"""The token map of a generation: the depth of each token, the tokens revived at each step, and the page of both."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader

from lazyllm import LazyLLMError, Stats

_REPLACEMENT = "\ufffd"  # decoded from bytes that are not a character, or not yet a complete one
_MAX_TOKENS = 8  # tokens after which an incomplete character, of at most four bytes, counts as broken


@dataclass(frozen=True)
class TokenMap:
    """The tokens of one generation; a step is one forward pass, step 0 is prefill."""

    title: str  # heading of the generation
    schedule: str  # the stages that prune, as text
    layers_by_depth: list[int]  # for each depth, the number of layers that computed a token; the last is the model's
    ids: list[int]  # the tokens of prompt and answer
    prompt_length: int  # tokens up to the last step with several new ones; a prompt may come in chunks or turns
    num_tokens: list[int]  # for each step, the number of tokens so far; the step generates the next one
    depths: list[int]  # for each token, the number of stages that kept it in its first step
    # By step and stage, the sorted positions of revived tokens: tokens of earlier steps whose keys and values were
    # computed after the stage.
    revived: list[list[list[int]]]

    @classmethod
    def from_stats(cls, stats: Stats | None, ids: torch.Tensor | Sequence[int], title: str) -> "TokenMap":
        """Build the map of a generation from its stats and its ids, prompt and answer: (tokens,) or (1, tokens).

        Raises:
            LazyLLMError: no positions were recorded, nothing was pruned, or `ids` are of another generation.
        """
        if stats is None or not stats.positions:
            raise LazyLLMError("no positions were recorded: generate under lazyllm.enable(..., record_positions=True)")
        if not stats.stages:
            raise LazyLLMError("nothing was pruned, so there is no map of it: give a schedule with a keep below 1")
        num_tokens = [step[0].shape[0] for step in stats.positions]
        tokens = torch.as_tensor(ids).flatten().tolist()
        # No step computed the last token that was generated.
        if len(tokens) not in (num_tokens[-1], num_tokens[-1] + 1):
            raise LazyLLMError(
                f"{len(tokens)} ids do not fit the generation, which computed {num_tokens[-1]} tokens: give the ids of "
                "its prompt and answer, such as output[0], without padding"
            )
        depths, revived, earlier, prompt_length = torch.zeros(num_tokens[-1], dtype=torch.int64), [], 0, 0
        for step, total in zip(stats.computed, num_tokens, strict=True):
            after_stages = [step[layer + 1] for layer in stats.stages]
            for positions in after_stages:
                depths[positions[positions >= earlier]] += 1
            revived.append([positions[positions < earlier].tolist() for positions in after_stages])
            prompt_length = total if total - earlier > 1 or not earlier else prompt_length
            earlier = total
        layers = [*(stage.layer + 1 for stage in stats.schedule.stages), len(stats.positions[0])]
        return cls(title, str(stats.schedule), layers, tokens, prompt_length, num_tokens, depths.tolist(), revived)

    @property
    def prompt_computed(self) -> float:
        """The fraction of prompt tokens times layers that prefill computed."""
        computed = sum(self.layers_by_depth[depth] for depth in self.depths[: self.prompt_length])
        return computed / (self.prompt_length * self.layers_by_depth[-1])


def token_texts(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """Yield the text of each token; joined, they are the text of all.

    A single token may hold part of a character's bytes, or a space that only a longer text shows, so it is decoded
    together with the tokens before it. The last token of a character has its text; its other tokens are empty.
    """

    def decode(window: Sequence[int]) -> str:
        return tokenizer.decode(list(window), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    start, complete = 0, 0  # the window begins with the last tokens that completed a character
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        if text.endswith(_REPLACEMENT) and end - complete < _MAX_TOKENS and end < len(ids):
            yield ""
            continue
        yield text[len(decode(ids[start:complete])) :]
        start, complete = complete, end


class Page(str):
    """An HTML document in ASCII. A notebook shows it in a frame, so that neither changes the look of the other."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 46rem; border: 1px solid #8886"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self)}"></iframe>'


def render(maps: Sequence[TokenMap], tokenizer: Any, details: Mapping[str, str] | None = None) -> Page:
    """Return the page of generations from the same prompt, side by side, with `details` at the top.

    It opens at the step that revives most tokens. Its script reads `data`, JSON: `prompt`, the text of each prompt
    token, and `maps`, with each generation's `answer`, the text of each token after the prompt, and `num_tokens`,
    `revived` and the prompt's `depths`, as in `TokenMap`.
    """
    length, texts = maps[0].prompt_length, [list(token_texts(tokenizer, one.ids)) for one in maps]
    steps = zip_longest(*(one.revived for one in maps), fillvalue=())
    num_revived = [sum(len(positions) for stages in step for positions in stages) for step in steps]
    generations = [
        {"answer": text[length:], "num_tokens": one.num_tokens, "depths": one.depths[:length], "revived": one.revived}
        for one, text in zip(maps, texts, strict=True)
    ]
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    text = environment.get_template("page.html").render(
        details={**(details or {}), "Prompt": f"{length:,} tokens"},
        steps=len(num_revived),
        opens=num_revived.index(max(num_revived)),
        maps=[_heading(one) for one in maps],
        data={"prompt": texts[0][:length], "maps": generations},
    )
    return Page(text.encode("ascii", "xmlcharrefreplace").decode("ascii"))


def _heading(one: TokenMap) -> dict[str, Any]:
    """Return a generation's title and stages, and for each depth its layers, counts and colours."""
    tokens = Counter(one.depths[: one.prompt_length])
    revived = [0, *(sum(map(len, steps)) for steps in zip(*one.revived, strict=True))]
    ranges = pairwise([0, *one.layers_by_depth])
    layers = [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in ranges]
    return {
        "title": one.title,
        "stages": f"{one.schedule}; {one.prompt_computed:.0%} of prefill computed".replace("; ", "\n"),
        "rows": [(text, tokens[depth], revived[depth]) for depth, text in enumerate(layers)],
        "colours": palette(len(layers)),
    }


def palette(levels: int) -> list[tuple[str, str, str, str]]:
    """Return the CSS colours of each depth: background and text on a light page, then on a dark one.

    Deeper tokens contrast more with the page. ColorBrewer's YlGnBu is for the colour-blind, too.
    """
    from matplotlib import colormaps  # takes long to import
    from matplotlib.colors import to_hex

    colours = []
    for level in range(levels):
        light = level / (levels - 1)
        pairs = [
            (to_hex(colormaps["YlGnBu"](shade)), "#000" if shade < 0.68 else "#fff")
            for shade in (light, 0.8 - 0.75 * light)
        ]
        colours.append((*pairs[0], *pairs[1]))
    return colours
