"""What models of text and images need: masks that are made ahead of the decoder, and where text goes on after them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from lazyllm.hf.refusals import refuse_if

# Whether the forward pass of a whole model under lazyllm.enable is under way.
WITHIN: ContextVar[bool] = ContextVar("lazyllm_model", default=False)

_BLOCK_ELEMENTS = 1 << 22


class AheadMask:
    """What stands for such a mask: how it was to be made (transformers' mask interface)."""

    def __init__(self, **kwargs: Any) -> None:
        self.padding: torch.Tensor | None = kwargs["attention_mask"]
        self._asked = kwargs

    def is_plain(self, window: int | None) -> bool:
        """Whether who sees whom is causality's, within a window if there is one; reads the device once a block."""
        asked = self._asked
        if asked["allow_is_causal_skip"]:
            return True  # without anything that the model adds to it
        plain = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
        queries = torch.arange(asked["q_length"], device=asked["device"]) + asked["q_offset"]
        keys = torch.arange(asked["kv_length"], device=asked["device"]) + asked["kv_offset"]
        for rows in queries[:, None].split(max(1, _BLOCK_ELEMENTS // len(keys))):
            expected = plain(0, 0, rows, keys[None])
            for sequence in range(asked["batch_size"]):
                if not torch.equal(asked["mask_function"](sequence, 0, rows, keys[None]), expected):
                    return False
        return True


def padding_of(mask: Any, window: int | None) -> Any:
    """The mask of the padding, (sequences, tokens) or None, that masks made ahead were made of, if `mask` is of those.

    The decoder makes the same from it. `window` is that of its layers with sliding attention.

    Raises:
        LazyLLMError: the masks say more than that.
    """
    masks = mask if isinstance(mask, dict) else {"": mask}
    if not masks or not all(isinstance(made, AheadMask) for made in masks.values()):
        return mask
    refuse_if(
        not all((made.is_plain(window if kind == "sliding_attention" else None) for kind, made in masks.items())),
        "images_see",
    )
    return next(iter(masks.values())).padding


class _Thread(threading.local):
    """Whether a thread keeps the others out."""

    holds = False


class RopeDeltas:
    """What the parts of a model keep under the name `rope_deltas`: by how much positions exceed a text's own."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self._parts = parts
        # The model has them once, for all threads: whoever goes on keeps the others out until they are used.
        self._lock = threading.RLock()
        self._thread = _Thread()

    def get(self) -> list[Any]:
        return [part.rope_deltas for part in self._parts]

    def set(self, deltas: list[Any]) -> None:
        for part, kept in zip(self._parts, deltas, strict=True):
            part.rope_deltas = kept

    @contextmanager
    def of(self, kept: list[Any] | None, back: bool = False) -> Iterator[None]:
        """Have the model go on with what it kept for a generation, or begin one with None.

        Other threads wait until `let_go`, or the end. With `back` the model then has again what it had before.
        """
        if not self._parts:
            yield
            return
        before, outer = self.get(), self._thread.holds
        self._lock.acquire()
        self._thread.holds = True
        try:
            self.set([None] * len(self._parts) if kept is None else kept)
            yield
        finally:
            self.let_go()
            self._thread.holds = outer
            if back:
                self.set(before)

    def let_go(self) -> None:
        """The positions of this thread's pass are known: let other threads go on."""
        if self._thread.holds:
            self._thread.holds = False
            self._lock.release()
