"""The cache that transformers passes from step to step; it holds the engine of a generation."""

import copy
from typing import Any, NoReturn

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.sequence import Stats, only
from lazyllm.hf import private
from lazyllm.hf.attention_interface import CURRENT_ENGINE
from lazyllm.hf.engine import HFEngine


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise LazyLLMError(
        "LazyLLM's cache has no crop (assisted decoding), does not branch (beam search), and cannot be pickled, "
        "offloaded or compressed: use copy.deepcopy to fork it"
    )


class _Layers(list):
    """Plain layers without keys: transformers checks the class of each, and must not read one."""

    __getitem__ = _refuse


class LazyCache(Cache):
    """A `Cache` of transformers whose keys and values are the engine's."""

    engine: HFEngine
    is_croppable = False

    @classmethod
    def of_engine(cls, engine: HFEngine, empty: Cache | None) -> "LazyCache":
        """Return the cache of an engine: turn the user's empty one into it, or make one."""
        # transformers keeps the state of layers that carry one from token to token.
        layers = engine.state_layers or _Layers(DynamicLayer() for _ in engine.group_of)
        cache: Any = cls(layers=layers) if empty is None else empty
        cache.__class__, cache.layers, cache.engine = cls, layers, engine
        setattr(cache, private.STOPS_AT_ONCE, True)
        return cache

    @property
    def stats(self) -> Stats:
        """Counts of the only sequence; `LazyLLMError` if there are several."""
        return only(self.sequences)

    @property
    def sequences(self) -> list[Stats]:
        """Counts of each sequence of the batch."""
        return [sequence.stats for sequence in self.engine.sequences]

    def __deepcopy__(self, memo: dict[int, Any]) -> "LazyCache":
        return LazyCache.of_engine(copy.deepcopy(self.engine, memo), None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values of a layer, see `LayerGroup.update`."""
        if CURRENT_ENGINE.get() is not self.engine or layer_idx not in self.engine.group.layers:
            raise LazyLLMError("this cache belongs to a generation on another model, or under a `with` that has ended")
        return self.engine.group.update(layer_idx, key_states, value_states)

    def __bool__(self) -> bool:
        # Phi-3 drops a truthy cache when its rotary tables change; LazyLLM refuses that step instead.
        return bool(self.engine.state_layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if self.engine.is_in_layer:
            raise unsupported("the decoder layers take positions from the cache's length")
        return self.engine.packer.num_columns

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.engine.packer.num_columns + query_length, 0

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = __reduce_ex__ = _refuse
    offload = prefetch = activate_past_recording = update_indexer = early_initialization = _refuse
