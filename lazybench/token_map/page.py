"""How deep each token of a generation got, where and when it came back, and the page of HTML that shows it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader

from lazyllm import LazyLLMError, PruningSchedule, Stats

_UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
_LONGEST = 8  # tokens without an end of their character, after which it is none: it has at most four bytes


@dataclass(frozen=True)
class Reach:
    """One generation, token by token; a step is one forward pass, step 0 is prefilling."""

    title: str
    schedule: PruningSchedule
    layers: int  # of the model
    ids: list[int]  # of the text so far
    prompt: int  # how many had come by the last step that began with several: the prompt's, in chunks or turns too
    totals: list[int]  # how many had come by each step; the next one is what the step generated
    depths: list[int]  # for each token that has come, how many stages it passed in the step that it came with
    # By step and stage, the sorted positions of the tokens of earlier steps that got keys and values behind it then.
    revived: list[list[list[int]]]

    @classmethod
    def of(cls, stats: Stats | None, ids: torch.Tensor | Iterable[int], title: str) -> "Reach":
        """What `stats` recorded of a generation: of its prompt and answer, int64 (tokens,) or (1, tokens), unpadded.

        Raises:
            LazyLLMError: no positions were recorded, nothing was pruned, or `ids` are of another generation.
        """
        if stats is None or not stats.positions:
            raise LazyLLMError("no positions were recorded: generate under lazyllm.enable(..., record_positions=True)")
        if not stats.stages:
            raise LazyLLMError("nothing was pruned, so there is no map of it: give a schedule with a keep below 1")
        totals = [step[0].shape[0] for step in stats.positions]
        tokens = torch.as_tensor(ids if isinstance(ids, torch.Tensor) else list(ids)).flatten().tolist()
        # The last token that was generated has not come in any step.
        if len(tokens) not in (totals[-1], totals[-1] + 1):
            raise LazyLLMError(
                f"{len(tokens)} ids do not fit the generation, which computed {totals[-1]} tokens: give the ids of its "
                "prompt and answer, such as output[0], without padding"
            )
        depths, revived, before, prompt = torch.zeros(totals[-1], dtype=torch.int64), [], 0, 0
        for step, total in zip(stats.computed, totals, strict=True):
            came = [step[layer + 1] for layer in stats.stages]
            for positions in came:
                depths[positions[positions >= before]] += 1
            revived.append([positions[positions < before].tolist() for positions in came])
            prompt = total if total - before > 1 or not before else prompt
            before = total
        layers = len(stats.positions[0])
        return cls(title, stats.schedule, layers, tokens, prompt, totals, depths.tolist(), revived)

    @property
    def ends(self) -> list[int]:
        """How many layers a token of each depth went through."""
        return [*(stage.layer + 1 for stage in self.schedule.stages), self.layers]

    @property
    def prefilled(self) -> float:
        """How much of the prompt's tokens times layers prefilling computed, 0 to 1."""
        return sum(self.ends[depth] for depth in self.depths[: self.prompt]) / (self.prompt * self.layers)


def texts(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """The text of each token; together they are the whole text.

    A token alone is often no text: it may hold some bytes of a character, or a space that is one only within a text.
    So tokens are decoded with those before them. A character whose bytes lie in several tokens belongs to the last of
    these, and the others of them yield an empty text.
    """

    def decode(of: Sequence[int]) -> str:
        return tokenizer.decode(list(of), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    # The window begins with the last token or tokens that ended a character.
    start, ended, shown = 0, 0, 0
    for last in range(len(ids)):
        text = decode(ids[start : last + 1])
        ends = not text.endswith(_UNKNOWN) or last + 1 - ended >= _LONGEST or last + 1 == len(ids)
        known = text if ends else text.rstrip(_UNKNOWN)
        yield known[shown:]
        shown = max(shown, len(known))
        if ends:
            start, ended = ended, last + 1
            shown = len(decode(ids[start:ended]))


class Page(str):
    """An HTML document in ASCII. A notebook shows it in a frame, so that the two leave each other's look alone."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 46rem; border: 1px solid #8886"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self)}"></iframe>'

    def __repr__(self) -> str:
        return f"<token map, {len(self):,} characters of HTML>"


def page(reaches: Sequence[Reach], tokenizer: Any, about: Mapping[str, str] | None = None) -> Page:
    """The page of one generation, or of several from the same prompt side by side, with `about` at the top.

    It opens at the token for which most is revived. Its script reads `data`, JSON: `prompt`, the text of each token of
    the prompt, and `maps`, for each generation `answer`, the text of each token behind the prompt, and `totals`,
    `revived` and the prompt's `depths`, as in `Reach`.

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
    cuts = pairwise([0, *reach.ends])
    layers = [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in cuts]
    return {
        "title": reach.title,
        "stages": f"{reach.schedule}; {reach.prefilled:.0%} of the work of prefilling".replace("; ", "\n"),
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
