"""What transformers carries from step to step, and so the way back to a generation."""

import copy
from typing import Any, NoReturn

import torch
from transformers import Cache

from lazyllm.core.stats import Stats, only
from lazyllm.hf.attention_interface import CURRENT
from lazyllm.hf.generation import Generation
from lazyllm.hf.refusals import refusal, refuse_if


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise refusal("cache_lacks")


class _NoLayers(list):
    __getitem__ = _refuse


class LazyCache(Cache):
    """Stands where transformers expects a `Cache`, of which it has little: a generation belongs to whoever holds it."""

    generation: Generation
    is_croppable = False
    _is_user_defined = True  # has `generate` stop at once, and not undo a pass: on Apple's GPUs it defers stopping

    @classmethod
    def of(cls, generation: Generation, given: Cache | None) -> "LazyCache":
        """The cache of a generation: the empty one that was given, which becomes it, or else a new one."""
        cache: Any = cls(layers=_NoLayers()) if given is None else given
        # Of layers that carry a state, transformers keeps that.
        cache.__class__, cache.layers, cache.generation = cls, generation.state_layers or _NoLayers(), generation
        return cache

    @property
    def stats(self) -> Stats:
        """Counts of the only sequence, see `only`."""
        return only(self.sequences)

    @property
    def sequences(self) -> list[Stats]:
        """Counts of each sequence of the batch."""
        return [sequence.stats for sequence in self.generation.sequences]

    def __deepcopy__(self, memo: dict[int, Any]) -> "LazyCache":
        """A second one of the same tokens, of a generation that goes on by itself."""
        return LazyCache.of(copy.deepcopy(self.generation, memo), None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of a layer's rows; see `Engine.update`."""
        refuse_if(CURRENT.get() is not self.generation, "cache_elsewhere")
        return self.generation.update(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """See `Generation.offset`."""
        return self.generation.offset()

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.generation.batch.columns + query_length, 0

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = __reduce_ex__ = _refuse
    offload = prefetch = activate_past_recording = update_indexer = early_initialization = _refuse
