"""The interface of a ranking: it observes a layer's attention, and chooses which tokens a stage keeps."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from lazyllm.core.attention import MaskFunction, causal
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.groups import LayerGroup
from lazyllm.core.importance import Scores, exact, most_important, probabilities
from lazyllm.core.sequence import Sequence


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer over one sequence, as a ranking observes it.

    In prefill queries and keys are the layer's active tokens in order of position. In a later step the queries are of
    the tokens computed now, and the keys lie in their slots, inactive ones among them: `key_positions` and
    `active_mask` tell, and `Ranking.by_position` puts importance in order.

    Attributes:
        layer: the decoder layer.
        query: (1, heads, num_queries, head_dim), the newest token's query last.
        key: (1, kv_heads, n_keys, head_dim).
        value: (1, kv_heads, n_keys, value_dim).
        scores: how the layer makes scores: scaling, soft cap, attention sinks.
        sequence: the sequence.
        window: who sees whom, where the layer sees less than all earlier positions; else None.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scores: Scores
    sequence: Sequence
    window: MaskFunction | None = None

    @property
    def key_positions(self) -> Tensor:
        """Position of each key, int64 (n_keys,)."""
        return self.sequence.key_positions(self.sequence.group_of[self.layer])

    @property
    def active_mask(self) -> Tensor | None:
        """Which keys are active in this step, bool (n_keys,); None means all."""
        return self.sequence.active_mask(self.sequence.group_of[self.layer])

    def probabilities(self, query: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the attention probability of a few queries on each key.

        Args:
            query: (1, heads, queries, head_dim); by default the newest token's.
            positions: their positions, int64 (queries,).

        Returns:
            (1, kv_heads, heads per kv_head, queries, n_keys), 0 for keys that a query does not see, in float32, or
            float64 for a float64 model. Under attention sinks those of a query sum to less than 1.
        """
        query = self.query[:, :, -1:] if query is None else query
        return probabilities(query, self.key, self._visible(positions), self.scores, exact(query.dtype))

    def _visible(self, positions: Tensor | None) -> Tensor | None:
        """Return which keys the queries at `positions` see, bool (queries, n_keys) or (n_keys,); None means all."""
        active_mask = self.active_mask
        if positions is None and self.window is None:
            return active_mask
        keys = self.key_positions
        positions = keys.new_tensor([self.sequence.num_tokens - 1]) if positions is None else positions
        visible = (self.window or causal)(0, 0, positions[:, None], keys)
        return visible if active_mask is None else visible & active_mask


class Ranking(ABC):
    """Rank the active tokens at the stages; another way of ranking is a subclass, best a dataclass of its settings.

    `lazyllm.enable` is given an instance. Each sequence works on a deep copy of it, so what it keeps in `self` reaches
    no other generation and no other thread. A subclass must define `observe`.

    Attributes:
        single_stage: whether it works with one stage only.
        revives: whether a pruned token may be active again in a later step; with `for_good` none is.
        for_good: whether it ranks in prefill alone: what it prunes never returns, and all later tokens are kept. Then
            layers that carry a state from token to token can follow, as in hybrid models.
        checked: whether the engine checks what `survivors` returns at every stage, and adds the protected tokens, which
            takes device reads. A subclass is, unless it says `class Mine(Ranking, checked=False)`; then `survivors`
            must return `most_important`'s.
        parallel: whether it ranks alike in all processes of a tensor-parallel model, by `over_processes`. A subclass
            says so with `class Mine(Ranking, parallel=True)`.
        processes: those among which the model's heads are split; None means one process.
        importance: set by `observe`: the importance of each position, (positions,), negative where it is not active.
        sequence: the tokens so far.
    """

    single_stage = False
    revives = True
    for_good = False
    checked = True
    parallel = False
    processes: ProcessGroup | None = None
    importance: Tensor
    sequence: Sequence

    def __init_subclass__(cls, checked: bool = True, parallel: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checked, cls.parallel = checked, parallel

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise `LazyLLMError` for settings out of range; called by `enable`."""

    def wants(self, layer: int) -> bool:
        """Return whether to observe `layer` in this step; by default, if a stage follows it."""
        group = self.group(layer)
        return group.stage is not None and layer == group.layers[-1]

    @abstractmethod
    def observe(self, attention: LayerAttention) -> None:
        """Set `importance` from the attention of a layer that `wants` asked for."""

    def survivors(self, layer: int, count: int) -> Tensor:
        """Return the positions kept after `layer`, sorted, each once, int64 (k,), the newest among them.

        By default the `count` with the largest `importance`, as many as the schedule keeps. They must be among
        `active(layer)`; without `revives`, those of earlier steps among the positions kept before.
        """
        return self.most_important(layer, count)

    def most_important(self, layer: int, count: int) -> Tensor:
        """Return the `count` positions with the largest `importance`, protected ones before all others.

        Raises:
            LazyLLMError: `observe` of a checked ranking did not set the importance of every active position.
        """
        if self.checked:
            _check_importance(self, self.sequence, self.group(layer))
        importance = self.importance
        if len(self.sequence.protected):
            importance = importance.index_fill(0, self.sequence.protected_on(importance.device), math.inf)
        return most_important(importance, count)

    def group(self, layer: int) -> LayerGroup:
        """Return the layers between two stages that `layer` belongs to."""
        return self.sequence.group_of[layer]

    def active(self, layer: int) -> Tensor:
        """Return the sorted active positions of `layer` in this step, int64 (num_active,), on the layer's device."""
        return self.sequence.active(self.group(layer))

    def uncomputed(self, layer: int) -> Tensor:
        """Return which positions have no KV entry in the layer after `layer`, which a stage follows, bool (positions,).

        Keeping one of an earlier step revives it.
        """
        return self.sequence.uncomputed(self.group(layer))

    def by_position(self, layer: int, importance: Tensor) -> Tensor:
        """Return the importance of each position, (positions,), -1 if inactive, from that of each key, (n_keys,)."""
        group = self.group(layer)
        if group.index == 0:
            return importance
        if (active_mask := self.sequence.active_mask(group)) is not None:
            importance = torch.where(active_mask, importance, -1)
        by_position = importance.new_full((self.sequence.num_tokens,), -1)
        return by_position.index_copy_(0, self.sequence.key_positions(group), importance)

    def over_processes(self, importance: Tensor, how: str = "mean") -> Tensor:
        """Return the `mean` or `max` of importance over all processes that share the model's heads, (n,).

        Under tensor parallelism each process observes its own heads, and all of them must call this: it takes one
        all-reduce, and gives the same in all of them. In one process it returns `importance`.
        """
        if self.processes is None:
            return importance
        importance = importance.clone()
        all_reduce(importance, ReduceOp.MAX if how == "max" else ReduceOp.SUM, self.processes)
        return importance if how == "max" else importance / self.processes.size()


def _check_importance(ranking: Ranking, sequence: Sequence, group: LayerGroup) -> None:
    """Raise `LazyLLMError` unless `importance` has a float for each position, from 0 on if active; reads the device."""
    importance, positions = getattr(ranking, "importance", None), sequence.num_tokens
    is_shaped = isinstance(importance, Tensor) and importance.shape == (positions,) and importance.is_floating_point()
    if not is_shaped or int((importance >= 0).sum()) < group.num_active[sequence.index]:
        must = f"a float for each of {positions} positions, as self.by_position makes of one for each key"
        raise LazyLLMError(
            f"{type(ranking).__name__}.observe must leave in self.importance {must}, and for active ones a number "
            "from 0 on"
        )


def check_survivors(ranking: Ranking, survivors: object, layer: int) -> None:
    """Raise `LazyLLMError` unless `survivors` are what `Ranking.survivors` promises; reads the device once."""
    is_right, sequence = False, ranking.sequence
    newest = sequence.num_tokens - 1
    if isinstance(survivors, Tensor) and survivors.dtype == torch.int64 and survivors.ndim == 1:
        allowed = torch.isin(survivors, ranking.active(layer))
        if not ranking.revives:
            uncomputed = ranking.uncomputed(layer).to(survivors.device)[survivors.clamp(0, newest)]
            allowed &= ~(uncomputed & (survivors < sequence.num_computed_tokens))
        is_right = bool(allowed.all() & (survivors[1:] > survivors[:-1]).all() & (survivors[-1:] == newest).any())
    if not is_right:
        must = f"return positions of active tokens, sorted, each once, the newest ({newest}) last, as an int64 tensor"
        more = "" if ranking.revives else ", and none that was pruned before, as revives is False"
        raise LazyLLMError(f"{type(ranking).__name__}.survivors after layer {layer} must {must}{more}")
