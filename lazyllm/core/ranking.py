"""The interface of a ranking: it observes queries and keys, and says which tokens go on at a stage."""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from lazyllm.core.attention import causal
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.importance import most_important

if TYPE_CHECKING:
    from lazyllm.core.state import Sequence


class Selection(ABC):
    """Ranks the active tokens at the stages; another way of ranking is a subclass, best a dataclass of its settings.

    `lazyllm.enable` is given an instance. Each generation works on a deep copy of it, so what it keeps in `self`
    reaches no other generation and no other thread. At least `observe` is to be written.

    Attributes:
        single_stage: whether it works with one stage only.
        revives: whether a token that was left behind may go on in a later step; with `for_good` none does.
        for_good: whether it ranks in prefilling alone: what it leaves behind never returns, and all later tokens go on.
            Then layers that carry a state from token to token can follow, as in hybrid models.
        checked: whether what `survivors` returns is checked at every stage, which takes a read of the device each time.
            A subclass is, unless it says `class Mine(Selection, checked=False)`.
        parallel: whether it ranks alike in all processes of a tensor-parallel model, by `over_processes`. A subclass
            says so with `class Mine(Selection, parallel=True)`.
        processes: those among which the model's heads are split; None means one process.
        protects: set by `most_important`: that the protected tokens are among those that it gives. What a `checked`
            selection, or another one without it, gives goes on besides them.
        importance: set by `observe`: the importance of each position, (positions,), negative where it takes no part.
        cache: the state of the sequence, prompt length and positions so far among it.
        values: within `observe`, the values of the keys, (1, kv_heads, n_keys, value_dim).
        sinks: within `observe`, each query head's logit of attending to no token, (heads,), in a model with such sinks.
    """

    single_stage = False
    revives = True
    for_good = False
    checked = True
    parallel = False
    processes: ProcessGroup | None = None
    protects = False
    importance: Tensor
    cache: "Sequence"
    values: Tensor | None = None
    sinks: Tensor | None = None

    def __init_subclass__(cls, checked: bool = True, parallel: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checked, cls.parallel = checked, parallel

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise `LazyLLMError` for settings that are not right; called by `enable`."""

    def wants(self, layer: int) -> bool:
        """Whether the queries and keys of `layer` are needed at this step; by default, if a stage ends it."""
        group = self.cache.group_of[layer]
        return group.stage is not None and layer == group.layers[-1]

    @abstractmethod
    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        """Take the queries and keys of a layer that was wanted.

        In prefilling both are the layer's active tokens in order of position. In a later step the queries are of the
        tokens computed now, and the keys stand where `key_positions` says, among them some that sit this step out:
        `present` tells which take part, and `by_position` puts importance in order.

        Args:
            layer: the layer under way.
            query: (1, heads, rows, head_dim), the newest token's query last.
            key: (1, kv_heads, n_keys, head_dim), those that attention gets.
            scaling: factor on the scores.
            softcap: where the model caps its scores, `softcap * tanh(score / softcap)`.
        """

    def survivors(self, layer: int, count: int) -> Tensor:
        """Positions that go on after `layer`, sorted, each once, int64 (k,), the newest among them.

        By default the `count` with the largest `importance`, as many as the schedule keeps. They are among
        `active(layer)`; without `revives`, those of earlier steps among those that have gone on before. A `checked`
        selection is held to this at every stage.
        """
        return self.most_important(count)

    def most_important(self, count: int) -> Tensor:
        """The `count` positions with the largest `importance`, the protected before all others."""
        if self.checked:
            check_importance(self)
        importance, protected = self.importance, self.cache.protected
        if len(protected):
            importance = importance.index_fill(0, self.cache.protected_on(importance.device), math.inf)
            self.protects = True
        return most_important(importance, count)

    def active(self, layer: int) -> Tensor:
        """Positions that take part in `layer` at this step, sorted, int64 (n_active,), on the layer's device."""
        return self.cache.active(self.cache.group_of[layer])

    def key_positions(self, layer: int) -> Tensor:
        """Position of each key that attention gets in `layer`, int64 (n_keys,), on the layer's device."""
        return self.cache.key_positions(self.cache.group_of[layer])

    def present(self, layer: int) -> Tensor | None:
        """Which of those keys take part in this step, bool (n_keys,); None means all of them."""
        return self.cache.present(self.cache.group_of[layer])

    def seen(self, layer: int, positions: Tensor | None = None) -> Tensor | None:
        """Within `observe`: which keys the queries at `positions`, int64 (queries,), see, bool (queries, n_keys).

        By default the newest token's, bool (1, n_keys); None means all of them.
        """
        present, window = self.present(layer), self.cache.window
        if positions is None and window is None:
            return present
        held = self.key_positions(layer)
        positions = held.new_tensor([self.cache.total - 1]) if positions is None else positions
        visible = (window or causal)(0, 0, positions[:, None], held)
        return visible if present is None else visible & present

    def by_position(self, layer: int, importance: Tensor) -> Tensor:
        """Importance of each position, (positions,), -1 where it takes no part, from that of each key, (n_keys,)."""
        if self.cache.group_of[layer].index == 0:
            return importance
        if (present := self.present(layer)) is not None:
            importance = torch.where(present, importance, -1)
        return importance.new_full((self.cache.total,), -1).index_copy_(0, self.key_positions(layer), importance)

    def uncomputed(self, layer: int) -> Tensor:
        """Which positions have no key and value in the layer after `layer`, which a stage ends, bool (positions,).

        Those of earlier steps among them were left behind: to let one go on is to revive it.
        """
        return self.cache.uncomputed(self.cache.group_of[layer])

    def over_processes(self, importance: Tensor, how: str = "mean") -> Tensor:
        """Importance over all the model's query heads, (n,), from the `mean` or `max` over those of this process.

        Under tensor parallelism each process observes its own heads, and all of them call this: it takes one
        all-reduce, and gives the same in all of them. Else nothing is done.
        """
        if self.processes is None:
            return importance
        importance = importance.clone()
        all_reduce(importance, ReduceOp.MAX if how == "max" else ReduceOp.SUM, self.processes)
        return importance if how == "max" else importance / self.processes.size()


def check_importance(selection: Selection) -> None:
    """Raise `LazyLLMError` unless `observe` has left a float for each position, from 0 on; reads the device once."""
    found, positions = getattr(selection, "importance", None), selection.cache.total
    shaped = isinstance(found, Tensor) and found.shape == (positions,) and found.is_floating_point()
    if not shaped or int((found >= 0).sum()) < selection.cache.n_active:
        must = f"a float for each of {positions} positions, as self.by_position makes of one for each key"
        right = "and for those that take part a number from 0 on"
        raise LazyLLMError(f"{type(selection).__name__}.observe must leave in self.importance {must}, {right}")


def check_survivors(selection: Selection, survivors: object, layer: int) -> None:
    """Raise `LazyLLMError` unless `survivors` are what `Selection.survivors` promises; reads the device once."""
    right, newest = False, selection.cache.total - 1
    if isinstance(survivors, Tensor) and survivors.dtype == torch.int64 and survivors.ndim == 1:
        allowed = torch.isin(survivors, selection.active(layer))
        if not selection.revives:
            uncomputed = selection.uncomputed(layer).to(survivors.device)[survivors.clamp(0, newest)]
            allowed &= ~(uncomputed & (survivors < selection.cache.seen))
        right = bool(allowed.all() & (survivors[1:] > survivors[:-1]).all() & (survivors[-1:] == newest).any())
    if not right:
        must = f"return positions of active tokens, sorted, each once, the newest ({newest}) last, as an int64 tensor"
        more = "" if selection.revives else ", and none that was left behind before, as revives is False"
        raise LazyLLMError(f"{type(selection).__name__}.survivors after layer {layer} must {must}{more}")
