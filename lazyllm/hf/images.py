"""What models of text and images need: masks that are made ahead of the decoder, and where text goes on after them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from lazyllm.core.attention import BLOCK_ELEMENTS
from lazyllm.hf.refusals import refuse_if

# The `ModelCalls` of a whole model whose forward pass is under way.
WITHIN: ContextVar[Any] = ContextVar("lazyllm_model", default=None)


class AheadMask:
    """What stands for such a mask: how it was to be made (transformers' mask interface)."""

    def __init__(self, **asked: Any) -> None:
        self.asked = asked

    def is_plain(self, window: int | None) -> bool:
        """Whether who sees whom is causality's, within a window if there is one; reads the device once a block."""
        asked = self.asked
        if asked["allow_is_causal_skip"]:
            return True  # without anything that the model adds to it
        plain: Any = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
        device, batch = asked["device"], asked["batch_size"]
        queries = torch.arange(asked["q_length"], device=device) + asked["q_offset"]
        keys = torch.arange(asked["kv_length"], device=device) + asked["kv_offset"]
        sequences, found = torch.arange(batch, device=device)[:, None, None], asked["mask_function"]
        blocks = queries[:, None].split(max(1, BLOCK_ELEMENTS // (batch * len(keys))))
        return all(bool((found(sequences, 0, rows, keys) == plain(0, 0, rows, keys)).all()) for rows in blocks)


def padding_of(mask: Any, window: int | None) -> Any:
    """The padding's mask, (sequences, tokens) or None, that masks made ahead were made of; another `mask` stays.

    The decoder makes the same from it, unless they say more: that is refused. Its sliding layers have this window.
    """
    masks = mask if isinstance(mask, dict) else {"": mask}
    if not masks or not all(isinstance(made, AheadMask) for made in masks.values()):
        return mask
    plain = (made.is_plain(window if kind == "sliding_attention" else None) for kind, made in masks.items())
    refuse_if(not all(plain), "not_plainly_causal")
    return next(iter(masks.values())).asked["attention_mask"]


class RopeDeltas:
    """What the modules of a model keep under the name `rope_deltas`: by how much positions exceed a text's own."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._parts = [part for part in modules if "rope_deltas" in vars(part)]
        # The model has them once, for all threads: generations take turns.
        self._lock = threading.RLock()

    def get(self) -> list[Any]:
        return [part.rope_deltas for part in self._parts]

    def set(self, deltas: list[Any]) -> None:
        for part, kept in zip(self._parts, deltas, strict=True):
            part.rope_deltas = kept

    @contextmanager
    def of(self, cache: Any, back: bool = False) -> Iterator[None]:
        """Have the model go on with what it kept for the generation of a `LazyCache`, or begin one with another cache.

        Other threads wait until the end. With `back` the model then has again what it had before.
        """
        if not self._parts:
            yield
            return
        with self._lock:
            before = self.get()
            generation = getattr(cache, "generation", None)
            self.set(getattr(generation, "rope_deltas", None) or [None] * len(self._parts))
            try:
                yield
            finally:
                if back:
                    self.set(before)
