"""How deep each token of a generation got, where and when it came back, and what its text is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lazyllm import LazyLLMError, PruningSchedule, Stats

_UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
_LONGEST = 8  # tokens without an end of their character, after which it is none: it has at most four bytes


@dataclass(frozen=True)
class Reach:
    """One generation, token by token; a step is one forward pass, step 0 is prefilling.

    Attributes:
        title: what the generation is called.
        schedule: its stages.
        layers: how many layers the model has.
        ids: token ids of the text so far.
        prompt: how many of them had come by the last step that began with more than one: the prompt's, in chunks or
            turns too.
        totals: how many had come by each step; the next one is what the step generated.
        depths: for each token that has come, how many stages it passed in the step that it came with.
        revived: `revived[step][stage]` are the sorted positions of the tokens of earlier steps that got keys and values
            behind that stage in that step. It happens to a token at most once a stage.
    """

    title: str
    schedule: PruningSchedule
    layers: int
    ids: list[int]
    prompt: int
    totals: list[int]
    depths: list[int]
    revived: list[list[list[int]]]

    @classmethod
    def of(cls, stats: Stats | None, ids: torch.Tensor | Iterable[int], title: str) -> Reach:
        """What `stats` recorded of the generation of `ids`.

        Args:
            stats: of a generation with `record_positions=True`.
            ids: its prompt and answer, int64 (tokens,) or (1, tokens), without padding.
            title: what to call it.

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


def texts(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """The text of each token; together they are the whole text.

    A token alone is often no text: it may hold some bytes of a character, or a space that is one only within a text.
    So tokens are decoded with those before them. A character whose bytes lie in several tokens belongs to the last of
    these, and the others of them yield an empty text.

    Args:
        tokenizer: what `decode(ids)` makes text with.
        ids: token ids.
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
