"""How deep each token of a generation got, and where and when it came back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from lazyllm import LazyLLMError, PruningSchedule, Stats


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
    def of(cls, stats: Stats, ids: torch.Tensor | Iterable[int], title: str) -> Reach:
        """What `stats` recorded of the generation of `ids`.

        Args:
            stats: of a generation with `record_positions=True`.
            ids: its prompt and answer, int64 (tokens,) or (1, tokens), without padding.
            title: what to call it.

        Raises:
            LazyLLMError: no positions were recorded, nothing was pruned, or `ids` are of another generation.
        """
        if not stats.positions:
            raise LazyLLMError(
                "no positions were recorded, which the map shows: generate under "
                "lazyllm.enable(..., record_positions=True)"
            )
        if not stats.stages:
            raise LazyLLMError("nothing was pruned, so there is no map of it: give a schedule with a keep below 1")
        behind = [layer + 1 for layer in stats.stages]
        totals = [step[0].shape[0] for step in stats.positions]
        tokens = _as_list(ids)
        # The last token that was generated has not come in any step.
        if len(tokens) not in (totals[-1], totals[-1] + 1):
            raise LazyLLMError(
                f"{len(tokens)} ids do not fit the generation, which computed {totals[-1]} tokens: give the ids of its "
                "prompt and answer, such as output[0], without padding"
            )
        depths, revived, before = torch.zeros(totals[-1], dtype=torch.int64), [], 0
        for step, total in zip(stats.computed, totals, strict=True):
            came = [step[layer] for layer in behind]
            for positions in came:
                depths[positions[positions >= before]] += 1
            revived.append([positions[positions < before].tolist() for positions in came])
            before = total
        steps = zip(totals, [0, *totals], strict=False)
        prompt = max(total for total, earlier in steps if total - earlier > 1 or not earlier)
        layers = len(stats.positions[0])
        return cls(title, stats.schedule, layers, tokens, prompt, totals, depths.tolist(), revived)


def _as_list(ids: torch.Tensor | Iterable[int]) -> list[int]:
    tensor = torch.as_tensor(ids if isinstance(ids, torch.Tensor) else list(ids))
    tensor = tensor[0] if tensor.ndim == 2 and tensor.shape[0] == 1 else tensor
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        shape = tuple(tensor.shape)
        raise LazyLLMError(f"ids must be token ids of one sequence, int64 (tokens,), not {tensor.dtype} of {shape}")
    return tensor.tolist()
