"""One sequence of a batch: its tokens so far, which of them are protected, and the counts of what was computed."""

import torch
from torch import Tensor

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.kv_cache import LayerGroup
from lazyllm.core.schedule import PruningSchedule


class Stats:
    """Counts of one sequence's generation, over all turns of a conversation.

    A step is one forward pass, step 0 is prefill.

    Attributes:
        prompt_length: tokens of the first prompt, all its chunks included.
        stages: the layers after which this generation prunes.
        steps: number of finished steps.
        positions: with `record_positions=True`, `positions[step][layer]` is the sorted active set, int64 (n,).
        computed: with `record_positions=True`, `computed[step][layer]` are the sorted positions whose keys and
            values were computed in that layer at that step, int64 (n,).
        protected: number of protected tokens.
        exceeded: the layers after which a stage kept all protected tokens, although they are more than it keeps.
        importance: with `record_importance=True`, the newest token's mean attention probability on each active token in
            prefill, (n,), one per layer with attention, in order.
    """

    def __init__(self, groups: list[LayerGroup], index: int) -> None:
        # Not the groups: a reference to them would keep all keys and values alive.
        self._slots, self._index = [group.slots for group in groups[1:]], index
        self._sizes = [len(group.layers) for group in groups]
        self._stages = [group.stage for group in groups[:-1]]
        self._num_queries: list[list[int]] = []  # by step and group, as the next
        self._num_active: list[list[int]] = []
        self._kv_bytes: list[list[int]] = []  # by step and layer
        self._aux_bytes: list[int] = []  # by step
        self.prompt_length = self.protected = self.steps = 0
        self.stages = [stage.layer for stage in self._stages]
        self.exceeded: set[int] = set()
        self.positions: list[list[Tensor]] = []
        self.computed: list[list[Tensor]] = []
        self.importance: list[Tensor] = []

    def add_step(self, prompt_length: int, groups: list[LayerGroup], kv_bytes: list[int], aux_bytes: int) -> None:
        """Add the counts of a finished forward pass."""
        self.prompt_length = prompt_length
        self.steps += 1
        self._num_queries.append([group.queries.counts[self._index] for group in groups])
        self._num_active.append([group.num_active[self._index] for group in groups])
        self._kv_bytes.append(kv_bytes)
        self._aux_bytes.append(aux_bytes)

    @property
    def schedule(self) -> PruningSchedule:
        """The stages that prune."""
        return PruningSchedule(self._stages)

    @property
    def num_computed(self) -> Tensor:
        """Tokens computed in each layer at each step, int64 (steps, layers)."""
        return self._by_layer(self._num_queries)

    @property
    def active(self) -> Tensor:
        """Size of the active set of each layer at each step, int64 (steps, layers)."""
        return self._by_layer(self._num_active)

    @property
    def kv_bytes(self) -> Tensor:
        """Bytes allocated for keys and values in each layer after each step, with spare room, int64 (steps, layers)."""
        return torch.tensor(self._kv_bytes, dtype=torch.int64).reshape(-1, sum(self._sizes))

    @property
    def aux_bytes(self) -> Tensor:
        """Bytes allocated for the Aux Cache after each step, int64 (steps,)."""
        return torch.tensor(self._aux_bytes, dtype=torch.int64)

    @property
    def prompt_computed(self) -> float:
        """Mean over layers of the fraction of prompt tokens that have keys and values there (paper, Table 2)."""
        cached = [slots.data[self._index, : self.prompt_length] >= 0 for slots in self._slots]
        fractions = [1.0, *(int(mask.sum()) / self.prompt_length for mask in cached)]
        by_layer = [part for part, size in zip(fractions, self._sizes, strict=True) for _ in range(size)]
        return sum(by_layer) / len(by_layer)

    def __repr__(self) -> str:
        if not self.steps:
            return "Stats(no step finished)"
        counts = self.num_computed
        decoding = counts[counts[:, 0] == 1]  # steps of one new token: all others computed in them were revived
        revived = (decoding - 1).sum().item() / max(1, decoding.numel())
        computed = f"{self.prompt_length} prompt tokens, {self.prompt_computed:.1%} computed"
        return f"Stats({computed}, {revived:.1f} revived per layer and decoding step)"

    def _by_layer(self, by_group: list[list[int]]) -> Tensor:
        """Return counts of each group at each step as a table, int64 (steps, layers)."""
        table = torch.tensor(by_group, dtype=torch.int64).reshape(-1, len(self._sizes))
        return table.repeat_interleave(torch.tensor(self._sizes), dim=1)


def only(sequences: list[Stats]) -> Stats:
    """Return the counts of the only sequence; raise `LazyLLMError` if there are several, or none yet."""
    if len(sequences) != 1:
        raise LazyLLMError(f"{len(sequences)} sequences were generated: lazy.sequences[i] has the stats of one")
    return sequences[0]


class Sequence:
    """The tokens of one sequence, for the engine and its ranking."""

    stats: Stats  # set when the first step begins

    def __init__(self, index: int) -> None:
        self.index = index  # in the batch
        self.num_computed_tokens = 0  # tokens of the steps before the current one
        self.num_new_tokens = 0  # tokens that the current step adds
        self.prompt_length = 0  # tokens given before the first was generated, all chunks included
        self.is_short = False  # whether the prompt is too short to be pruned
        self.ranks = True  # whether stages rank in the current step
        self._num_single = 0  # steps of one new token since the last of several
        self.protected = torch.empty(0, dtype=torch.int64)  # positions kept at every stage, sorted
        self.last_protected = -1  # the last of these, -1 if there are none

    @property
    def num_tokens(self) -> int:
        """Number of positions, including those of the current step."""
        return self.num_computed_tokens + self.num_new_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether the current step is the first."""
        return self.num_computed_tokens == 0

    def begin_step(self, num_new_tokens: int, is_prompt: bool, every: int | None) -> None:
        """Start a step of `num_new_tokens`, 0 or more; with `is_prompt` they extend a prompt without an answer yet.

        Stages rank in every step of several new tokens, and after it in every `every`-th step of one new token. With
        `every=None` they rank in prefill only; in short prompts never.
        """
        self.num_new_tokens = num_new_tokens
        if (self.is_prefill or is_prompt) and self.prompt_length == self.num_computed_tokens:
            self.prompt_length = self.num_tokens
        if self.is_prefill or num_new_tokens > 1:
            self._num_single = 0
        elif num_new_tokens:
            self._num_single += 1
        is_due = self.is_prefill if every is None else self._num_single % every == 0
        self.ranks = num_new_tokens > 0 and is_due and not self.is_short

    def protect(self, positions: Tensor) -> None:
        """Keep these positions at every stage, sorted, int64 (n,) on the CPU."""
        self.protected, self.stats.protected = positions, len(positions)
        self.last_protected = int(positions[-1]) if len(positions) else -1

    def protected_on(self, device: torch.device) -> Tensor:
        """Return the protected positions, moved to a device."""
        self.protected = self.protected.to(device)
        return self.protected

    def end_step(self) -> None:
        """Mark the tokens of the step as computed."""
        self.num_computed_tokens, self.num_new_tokens = self.num_tokens, 0
