"""The engine: forward passes that rank, prune and revive tokens at each stage (paper, section 3.2)."""

from collections.abc import Iterable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lazyllm.core.attention import GroupAttention, Kernel, LayerInputs, WindowMask
from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.kv_cache import GrowingTensor, LayerGroup, Tokens, gather, partition, scatter
from lazyllm.core.ranking import Ranking, check_survivors
from lazyllm.core.schedule import PruningSchedule, nearest, rankable
from lazyllm.core.sequence import Sequence, Stats


@dataclass(frozen=True)
class Setup:
    """The settings that all generations of a session share."""

    schedule: PruningSchedule
    kernel: Kernel
    windows: list[int | None]  # how many positions each layer's cache holds in the unmodified model; None: all, 0: none
    processes: ProcessGroup | None  # the processes among which the model's heads are split; None means one process
    ranking: Ranking  # copied for each sequence
    min_tokens: int  # prompts of fewer tokens are not pruned
    record_positions: bool  # whether `Stats` keep active and computed positions
    record_importance: bool  # whether `Stats` keep the importance in every layer of prefill


class Engine:
    """The forward passes of one generation of a batch, each of them a step:

        engine.begin_step(...)  # every token so far is active in the first group of layers
        for layer, decoder_layer in enumerate(layers):
            if layer begins another group:
                hidden = engine.run_stage(hidden)  # rank, prune, revive
            hidden = decoder_layer(hidden)  # calls `group.update`, then `attend`, where rankings observe
        engine.end_step()

    Hidden states are packed, (1, tokens, hidden): the tokens of all sequences, one after the other, without padding.

    The Aux Cache (paper, section 3.2) has one entry per token, (batch, positions, hidden) in the model's dtype, on the
    device of the first stage. The active sets of a step are nested, so a token has KV entries down to some stage. Its
    entry is its output there, overwritten at deeper stages, and it resumes from that.

    Args:
        chunked_tokens: padded length of prompts that come in chunks, 0 if they do not.
        is_prompt_whole: whether prompts end with the first pass or, in chunks, at `chunked_tokens`.
    """

    def __init__(self, setup: Setup, batch_size: int, chunked_tokens: int, is_prompt_whole: bool) -> None:
        self.setup, self.chunked_tokens, self._is_prompt_whole = setup, chunked_tokens, is_prompt_whole
        self.sequences = [Sequence(index) for index in range(batch_size)]
        self.rankings = [deepcopy(setup.ranking) for _ in self.sequences]
        self.revives = setup.ranking.revive  # whether pruned tokens may be computed in a later step
        self.aux_cache = GrowingTensor(1, batch_size)
        self.groups: list[LayerGroup] = []  # the layers, cut at the stages when the first step begins
        self.group_of: list[LayerGroup] = []  # of each layer
        # State of the current step:
        self.live: list[Sequence] = []  # sequences with new tokens
        self.max_tokens = 0  # positions of the longest sequence
        self._is_plain_decode = False  # whether each live sequence has one new token, and no stage ranks
        self._observers: list[Sequence] = []  # sequences whose ranking observes attention
        # State of the current group:
        self.group: LayerGroup
        self.group_attention: GroupAttention

    def begin_step(self, num_new_tokens: list[int], positions: Tensor, is_chunk: bool) -> None:
        """Start a forward pass over new tokens, with every position active in the first group.

        Args:
            num_new_tokens: new tokens of each sequence.
            positions: positions of the new tokens, int64 (tokens,), one sequence after the other.
            is_chunk: whether the new tokens are a chunk of the prompts.
        """
        if not self.groups:
            self._begin_generation(num_new_tokens)
        every = self.setup.ranking.every if self.revives else None
        for sequence, count in zip(self.sequences, num_new_tokens, strict=True):
            sequence.begin_step(count, is_chunk or (count > 1 and not self._is_prompt_whole), every)
        self.live = [sequence for sequence in self.sequences if sequence.num_new_tokens]
        may_rank = [sequence for sequence in self.live if self.revives or sequence.is_prefill]
        self._observers = [sequence for sequence in may_rank if not sequence.is_short]
        self.max_tokens = max(sequence.num_tokens for sequence in self.sequences)
        self._is_plain_decode = max(num_new_tokens) == 1 and not any(sequence.ranks for sequence in self.live)
        self.groups[0].start(Tokens.pack(positions, num_new_tokens))
        for group in self.groups[1:]:
            group.slots.extend(self.max_tokens, positions[None] if group.slots.data is None else group.slots.data)
        self._begin_group(self.groups[0])

    def _begin_generation(self, num_new_tokens: list[int]) -> None:
        """Cut the layers at the stages, unless all prompts are too short to be pruned."""
        for sequence, count in zip(self.sequences, num_new_tokens, strict=True):
            sequence.is_short = max(count, self.chunked_tokens) < self.setup.min_tokens
        are_short = all(sequence.is_short for sequence in self.sequences)
        stages = () if are_short else self.setup.schedule.stages
        moves = self.setup.ranking.every > 1
        self.groups = partition(stages, self.setup.windows, len(self.sequences), moves)
        self.group_of = [group for group in self.groups for _ in group.layers]
        for ranking, sequence in zip(self.rankings, self.sequences, strict=True):
            sequence.stats = Stats(self.groups, sequence.index)
            ranking.sequence, ranking.group_of, ranking.processes = sequence, self.group_of, self.setup.processes

    def run_stage(self, hidden: Tensor) -> Tensor:
        """Rank, prune and revive at the stage that ends the current group, and begin the next group.

        Args:
            hidden: output of the group's last layer for the tokens that it computed, (1, n, hidden).

        Returns:
            the hidden states that the next group computes, (1, n, hidden).
        """
        following = self.groups[self.group.index + 1]
        following.to(self.group.device)
        if self._is_plain_decode:
            following.activate_newest(self.groups[0].queries)
        else:
            survivors = [self._rank(sequence) for sequence in self.sequences]
            self._prune(hidden, following, survivors)
            hidden = self._revive(following).to(hidden.device)
        self._begin_group(following)
        return hidden

    def _rank(self, sequence: Sequence) -> Tensor:
        """Return the positions that the stage of the current group keeps, sorted, int64 (k,).

        The stage keeps `max(1, ceil(keep * n))` of `n` active tokens, protected ones first, and never fewer than the
        protected ones. Refuse other positions of a checked ranking.
        """
        group, ranking, index = self.group, self.rankings[sequence.index], sequence.index
        if not sequence.ranks:  # keep the active set of the last step, add the new tokens
            return self.groups[group.index + 1].active_positions(index, sequence.num_tokens)
        layer, count = group.layers[-1], group.stage.kept(group.num_active[index])
        # The protected tokens, and the newest one if it is not among them.
        num_protected = len(sequence.protected) + (0 <= sequence.last_protected < sequence.num_tokens - 1)
        if count < num_protected:
            sequence.stats.exceeded.add(layer)
            count = num_protected
        survivors = ranking.survivors(layer, count)
        if ranking.checked:
            check_survivors(ranking, survivors, layer)
            survivors = survivors.clone()  # the ranking may reuse its own tensor
            if num_protected:
                survivors = torch.cat([survivors, sequence.protected_on(survivors.device)]).unique()
        return survivors

    def _prune(self, hidden: Tensor, following: LayerGroup, survivors: list[Tensor]) -> None:
        """Store all outputs of a stage's layer in the Aux Cache; only the survivors are active after it."""
        queries = self.group.queries
        aux_cache = self.aux_cache.extend(self.max_tokens, hidden)
        scatter(aux_cache, queries.batch_index, queries.positions, hidden[0])
        following.activate(survivors, [sequence.num_tokens for sequence in self.sequences])

    def _revive(self, following: LayerGroup) -> Tensor:
        """Read the hidden states of active tokens without a KV entry in the next group from the Aux Cache.

        In prefill these are all survivors. Later they are the new tokens that survive, and revived ones: tokens that
        were pruned here in all earlier steps, computed now at their own positions. Returns (1, n, hidden).
        """
        queries = following.queries
        return gather(self.aux_cache.data, queries.batch_index, queries.positions)[None]

    def end_step(self) -> None:
        """Count the finished forward pass, and mark its tokens as computed."""
        batch_size = len(self.sequences)
        if not self.revives:
            self.aux_cache = GrowingTensor(1, batch_size)  # nothing will resume from it
        pairs = [(group.keys[layer], group.values[layer]) for group in self.groups for layer in group.layers]
        kv_bytes = [(key.nbytes + value.nbytes) // batch_size for key, value in pairs]
        for sequence in self.live:
            if self.setup.record_positions:
                self._record_positions(sequence)
            sequence.stats.add_step(sequence.prompt_length, self.groups, kv_bytes, self.aux_cache.nbytes // batch_size)
            sequence.end_step()

    def attend(self, inputs: LayerInputs) -> Tensor:
        """Return the attention of a layer, (1, num_queries, heads, value_dim), over each sequence's active tokens.

        Raises:
            LazyLLMError: the layer does not attend exactly once to its own keys, or cannot rank under its window.
        """
        layer, query, key = inputs.layer, inputs.query, inputs.key
        if (query.shape[2], key.shape[0], key.shape[2]) != self.group_attention.shape:
            raise unsupported(f"decoder layer {layer} does not attend exactly once to its own cached keys")
        if inputs.window is not None or self.setup.windows[layer] is not None:
            self._check_window(layer, inputs.window)
        observers = self._observers if layer in self._observed_layers else ()
        if observers or self.setup.record_importance:
            self._observe(inputs, observers)
        return self.group_attention.attend(inputs)

    def _begin_group(self, group: LayerGroup) -> None:
        """Make `group`, whose tokens of this step are set, the current one."""
        self.group, self.group_attention = group, GroupAttention(self.setup.kernel, group, self.live)

    def _record_positions(self, sequence: Sequence) -> None:
        index = sequence.index
        active = [group.active_positions(index, sequence.num_tokens).cpu() for group in self.groups]
        computed = [group.query_positions(index).cpu() for group in self.groups]
        sequence.stats.positions.append([active[group.index] for group in self.group_of])
        sequence.stats.computed.append([computed[group.index] for group in self.group_of])

    @cached_property
    def _observed_layers(self) -> set[int]:
        """The layers that rankings observe."""
        layers = range(self.groups[-1].layers.start)
        return {layer for layer in layers if self.rankings[0].wants(layer)}

    def _observe(self, inputs: LayerInputs, observers: Iterable[Sequence]) -> None:
        """Show a layer's attention to the observers' rankings, and record its importance if the session does."""
        # Rankings are exact even under autocast.
        device = inputs.query.device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            for attention in self.group_attention.by_sequence(inputs):
                sequence = attention.sequence
                ranking = self.rankings[sequence.index]
                if sequence.is_prefill and self.setup.record_importance:
                    importance = attention.probabilities().mean(dim=(1, 2, 3))[0]
                    sequence.stats.importance.append(ranking.over_processes(importance))
                if sequence in observers:
                    ranking.observe(attention)

    def _check_window(self, layer: int, window: WindowMask | None) -> None:
        """Refuse a layer whose cache drops tokens that its mask shows, or that cannot see the tokens it ranks."""
        num_tokens, size = max(sequence.num_tokens for sequence in self.live), self.setup.windows[layer]
        if window is None and size is not None and num_tokens > size:
            wrong = f"the cache of layer {layer} drops all but {size} positions, which is not in the layer's mask"
            raise LazyLLMError(f"{wrong}: this architecture is supported up to {size} tokens of prompt and answer")
        # A ranking may observe windowed layers before the stage's own. If all layers are windowed, stages may use any.
        ranks = layer == self.group.layers[-1] and layer in self._observed_layers and any(s.ranks for s in self.live)
        if window is not None and num_tokens > window.size and ranks and (full := rankable(self.setup.windows)):
            wrong = f"layer {layer} sees only a window of {window.size} of the {num_tokens} tokens"
            raise LazyLLMError(f"{wrong}, so it cannot rank them: put the stage after layer {nearest(full, layer)}")
