"""What LazyLLM computed in one generation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule
from lazyllm.tokens import TokenCache

if TYPE_CHECKING:
    from lazybench.token_map.page import Page


class Stats:
    """Counts of one sequence's generation; a step is one forward pass, step 0 is prefilling.

    Attributes:
        prompt_length: tokens of the first pass, which is the prompt, or its first chunk.
        schedule: the stages that prune.
        stages: the layers after which this generation prunes.
        positions: with `record_positions=True`, `positions[step][layer]` is the sorted active set, int64 (n,).
        computed: with `record_positions=True`, `computed[step][layer]` are the sorted positions whose keys and
            values were computed in that layer at that step, int64 (n,).
        importance: with `record_importance=True`, `importance[layer]` is the newest token's mean attention
            probability on each active token in prefilling, (n,).
    """

    def __init__(self, cache: TokenCache, record_positions: bool) -> None:
        # The segments alone: holding on to the cache would keep all its keys and values alive.
        self._segments = cache.segments
        self._record_positions = record_positions
        self._rows: list[list[int]] = []
        self._active: list[list[int]] = []
        self._kv_bytes: list[list[int]] = []
        self._aux_bytes: list[int] = []
        self.prompt_length = 0
        self.schedule = PruningSchedule(segment.stage for segment in cache.segments[:-1])
        self.stages = [stage.layer for stage in self.schedule.stages]
        self.positions: list[list[torch.Tensor]] = []
        self.computed: list[list[torch.Tensor]] = []
        self.importance: list[torch.Tensor] = []

    def add_step(self, cache: TokenCache) -> None:
        """Take the counts of the forward pass that has just gone through all layers."""
        self.prompt_length = cache.prompt_length
        self._rows.append([segment.n_rows for segment in self._segments for _ in segment.layers])
        self._active.append([segment.n_active for segment in self._segments for _ in segment.layers])
        self._kv_bytes.append([key.nbytes + value.nbytes for key, value in zip(cache.keys, cache.values, strict=True)])
        self._aux_bytes.append(cache.aux.nbytes)
        if self._record_positions:
            for kept, positions in ((self.positions, cache.active), (self.computed, cache.rows)):
                kept.append([of for part in self._segments for of in [positions(part).cpu()] * len(part.layers)])

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return len(self._rows)

    @property
    def rows(self) -> torch.Tensor:
        """Tokens computed in each layer at each step, int64 (steps, layers)."""
        return self._table(self._rows)

    @property
    def active(self) -> torch.Tensor:
        """Size of the active set of each layer at each step, int64 (steps, layers)."""
        return self._table(self._active)

    @property
    def kv_bytes(self) -> torch.Tensor:
        """Bytes allocated for keys and values in each layer after each step, int64 (steps, layers).

        Tokens that have not been computed in a layer take none there; room for some tokens to come is counted.
        """
        return self._table(self._kv_bytes)

    @property
    def aux_bytes(self) -> torch.Tensor:
        """Bytes allocated for the Aux Cache after each step, int64 (steps,)."""
        return torch.tensor(self._aux_bytes, dtype=torch.int64)

    @property
    def prompt_computed(self) -> float:
        """Mean over layers of the fraction of prompt tokens that have keys and values there (paper, Table 2).

        Raises:
            LazyLLMError: no step has been finished.
        """
        if not self._rows:
            raise LazyLLMError("no step of this generation was finished, so nothing is known of its prompt")
        fractions = [1.0] * len(self._segments[0].layers)
        for segment in self._segments[1:]:
            held = int((segment.slots.view[: self.prompt_length] >= 0).sum())
            fractions += [held / self.prompt_length] * len(segment.layers)
        return sum(fractions) / len(fractions)

    def html(self, tokenizer: Any, ids: torch.Tensor | Iterable[int], title: str = "LazyLLM") -> Page:
        """A page of this generation's text: how deep each token got in prefilling, and which came back, step by step.

        It is one HTML document that loads nothing: a string to write to a file, which a notebook shows as it is.

        Args:
            tokenizer: the model's, whose `decode` gives the tokens' text.
            ids: ids of the prompt and the answer, without padding, int64 (tokens,), such as `output[0]`.
            title: what to call the generation, such as its model and method.

        Raises:
            LazyLLMError: it was not generated with `record_positions=True`, nothing was pruned, or the ids do not fit.
        """
        from lazybench.token_map.page import page
        from lazybench.token_map.reach import Reach

        return page([Reach.of(self, ids, title)], tokenizer)

    def _table(self, counts: list[list[int]]) -> torch.Tensor:
        return torch.tensor(counts, dtype=torch.int64).reshape(-1, self._segments[-1].layers.stop)


def only(sequences: list[Stats]) -> Stats:
    """The counts where there is one sequence.

    Raises:
        LazyLLMError: there are several.
    """
    if len(sequences) > 1:
        raise LazyLLMError(f"{len(sequences)} sequences were generated at once: lazy.sequences[i] has the stats of one")
    return sequences[0]
