"""One sequence of a batch: its tokens so far, its active and protected positions, and its counts."""

import torch
from torch import Tensor

from lazyllm.core.groups import LayerGroup
from lazyllm.core.stats import Stats


class Sequence:
    """The tokens of one sequence, as the engine and a ranking see them."""

    def __init__(self, groups: list[LayerGroup], index: int, record_positions: bool) -> None:
        self.index = index  # in the batch
        self._groups = groups
        self.group_of = [group for group in groups for _ in group.layers]  # of each layer
        self.num_computed_tokens = 0  # tokens of the steps before the current one
        self.num_new_tokens = 0  # tokens that the current step adds
        self.prompt_length = 0  # tokens given before the first was generated, all chunks included
        self.is_short = False  # whether the prompt is too short to be pruned
        self.ranks = True  # whether stages rank in the current step
        self._num_single = 0  # steps of one new token since the last of several
        self.stats = Stats(groups, index)
        self._record_positions = record_positions
        self.protect(torch.empty(0, dtype=torch.int64))

    @property
    def num_tokens(self) -> int:
        """Number of positions, including those of the current step."""
        return self.num_computed_tokens + self.num_new_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether the current step is the first."""
        return self.num_computed_tokens == 0

    def begin_step(self, num_new_tokens: int, every: int | None) -> None:
        """Start a step of `num_new_tokens`, 0 or more.

        Stages rank in every step of several new tokens, and after it in every `every`-th step of one new token. With
        `every=None` they rank in prefill only.
        """
        self.num_new_tokens = num_new_tokens
        if self.is_prefill or num_new_tokens > 1:
            self._num_single = 0
        elif num_new_tokens:
            self._num_single += 1
        is_due = self.is_prefill if every is None else self._num_single % every == 0
        self.ranks = num_new_tokens > 0 and is_due

    def key_positions(self, group: LayerGroup) -> Tensor:
        """Return the position of each cached key, in order of slots, int64 (n_keys,)."""
        if group.index == 0:
            return torch.arange(self.num_tokens, device=group.device)
        return group.positions.data[self.index, group.first_key : group.num_cached[self.index]]

    def query_positions(self, group: LayerGroup) -> Tensor:
        """Return the sorted positions computed in this step, int64 (num_queries,)."""
        return group.query_positions.split(group.num_queries)[self.index]

    def active(self, group: LayerGroup) -> Tensor:
        """Return the sorted active positions of this step, int64 (num_active,)."""
        newer = torch.arange(group.ranked_tokens[self.index], self.num_tokens, device=group.device)
        ranked = group.active[self.index]
        return newer if ranked is None else torch.cat([ranked, newer])

    def active_mask(self, group: LayerGroup) -> Tensor | None:
        """Return which cached keys are active in this step, bool (n_keys,); None means all."""
        n_keys = group.num_cached[self.index] - group.first_key
        if group.active_mask is None or n_keys == group.num_active[self.index]:
            return None
        return group.active_mask[self.index, :n_keys]

    def uncomputed(self, group: LayerGroup) -> Tensor:
        """Return which positions have no KV entry after the stage that ends `group`, bool (positions,)."""
        slots = self.group_of[group.layers.stop].slots
        return slots.data[self.index, : self.num_tokens] < 0

    def protect(self, positions: Tensor) -> None:
        """Keep these positions at every stage, sorted, int64 (n,) on the CPU."""
        self.protected, self.stats.protected = positions, len(positions)
        self.last_protected = int(positions[-1]) if len(positions) else -1  # -1 if there are none

    def protected_on(self, device: torch.device) -> Tensor:
        """Return the protected positions, moved to a device."""
        self.protected = self.protected.to(device)
        return self.protected

    def end_step(self, kv_bytes: list[int], aux_bytes: int) -> None:
        """Count the finished forward pass, and mark its tokens as computed."""
        if self._record_positions:
            active = [self.active(group).cpu() for group in self._groups]
            computed = [self.query_positions(group).cpu() for group in self._groups]
            self.stats.positions.append([active[group.index] for group in self.group_of])
            self.stats.computed.append([computed[group.index] for group in self.group_of])
        self.stats.add_step(self.prompt_length, kv_bytes, aux_bytes)
        self.num_computed_tokens, self.num_new_tokens = self.num_tokens, 0
