"""The interface of a ranking: it observes a layer's attention, and chooses which tokens a stage keeps."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_reduce

from lazyllm.core.attention import LayerAttention
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.importance import most_important
from lazyllm.core.kv_cache import LayerGroup
from lazyllm.core.sequence import Sequence


class Ranking(ABC):
    """Rank the active tokens at the stages. Subclass it, best as a dataclass of settings, and define `observe`.

    Each sequence works on a deep copy of the instance that `lazyllm.enable` takes, so attributes that it sets are not
    shared with other generations or threads.

    Attributes:
        single_stage: whether it works with one stage only.
        revive: whether later steps rank, too, and revive pruned tokens. If not, only prefill ranks, and all later
            tokens are kept; then layers may carry a state from token to token, as those of hybrid models do.
        every: rank only in every `every`-th decoding step. In the others, where `sequence.ranks` is False, the active
            set is the previous one plus the newest token; `observe` is still called.
        checked: whether the engine checks the result of `survivors` and adds the protected tokens; this waits for the
            device. With `class Mine(Ranking, checked=False)` `survivors` must include the protected tokens itself.
        parallel: whether it ranks alike in all processes of a tensor-parallel model, using `over_processes`; declared
            as `class Mine(Ranking, parallel=True)`.
        processes: the processes that share the model's heads; None means one process.
        importance: set by `observe`: the importance of each position, (positions,), negative where it is not active.
        sequence: the tokens so far.
        group_of: the `LayerGroup` of each layer: the layers between two stages, and their cached and active tokens.
    """

    single_stage = False
    revive = True
    every = 1
    checked = True
    parallel = False
    processes: ProcessGroup | None = None
    importance: Tensor
    sequence: Sequence
    group_of: list[LayerGroup]

    def __init_subclass__(cls, checked: bool = True, parallel: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checked, cls.parallel = checked, parallel

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise `LazyLLMError` for settings out of range; called by `enable`."""

    def wants(self, layer: int) -> bool:
        """Return whether to observe a layer, one up to the last stage's; by default, only the stages' own layers."""
        return layer == self.group_of[layer].layers[-1]

    @abstractmethod
    def observe(self, attention: LayerAttention) -> None:
        """Set `importance` from the attention of a layer that `wants` asked for."""

    def survivors(self, layer: int, count: int) -> Tensor:
        """Return the positions kept after `layer`, sorted, each once, int64 (k,), the newest among them.

        They must be among `active(layer)`. By default they are the `count` with the largest `importance`, protected
        ones first; `count` is what the schedule keeps. NaN in the importance of a checked ranking raises.
        """
        importance = self.importance
        if self.checked and importance.isnan().any():
            raise LazyLLMError(f"{type(self).__name__}.observe set self.importance to NaN in layer {layer}")
        if len(self.sequence.protected):
            importance = importance.index_fill(0, self.sequence.protected_on(importance.device), math.inf)
        return most_important(importance, count)

    def active(self, layer: int) -> Tensor:
        """Return the sorted active positions of `layer` in this step, int64 (num_active,), on the layer's device."""
        return self.group_of[layer].active_positions(self.sequence.index, self.sequence.num_tokens)

    def uncomputed(self, layer: int) -> Tensor:
        """Return which positions have no KV entry after the stage that follows `layer`, bool (positions,).

        Keeping such a position of an earlier step revives it.
        """
        following = self.group_of[self.group_of[layer].layers.stop]
        return following.uncomputed(self.sequence.index, self.sequence.num_tokens)

    def by_position(self, layer: int, importance: Tensor) -> Tensor:
        """Reorder the importance of each key, (n_keys,), by position, (positions,), with -1 for inactive positions."""
        group, sequence = self.group_of[layer], self.sequence
        if group.index == 0:
            return importance
        if (is_active := group.active_keys(sequence.index)) is not None:
            importance = torch.where(is_active, importance, -1)
        by_position = importance.new_full((sequence.num_tokens,), -1)
        return by_position.index_copy_(0, group.key_positions(sequence.index), importance)

    def over_processes(self, importance: Tensor) -> Tensor:
        """Return the mean importance over all processes that share the model's heads, (n,).

        Under tensor parallelism each process observes its own heads, and all must call this, which costs one
        all-reduce. In one process it returns `importance`.
        """
        if self.processes is None:
            return importance
        importance = importance.clone()
        all_reduce(importance, group=self.processes)
        return importance / self.processes.size()


def check_survivors(ranking: Ranking, survivors: object, layer: int) -> None:
    """Raise `LazyLLMError` unless `survivors` are what `Ranking.survivors` promises; reads the device once."""
    is_right, newest = False, ranking.sequence.num_tokens - 1
    if isinstance(survivors, Tensor) and survivors.dtype == torch.int64 and survivors.ndim == 1:
        are_active = torch.isin(survivors, ranking.active(layer)).all()
        is_right = bool(are_active & (survivors[1:] > survivors[:-1]).all() & (survivors[-1:] == newest).any())
    if not is_right:
        must = f"positions of active tokens, sorted, each once, the newest ({newest}) last, as an int64 tensor"
        default = "by default, those of the largest self.importance, a number per position, see by_position"
        raise LazyLLMError(f"{type(ranking).__name__}.survivors after layer {layer} must be {must}; {default}")
