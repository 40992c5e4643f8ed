"""Models of text and images: masks made before the decoder runs, and positions of the text after an image."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from lazyllm.core.attention import BLOCK_ELEMENTS
from lazyllm.core.errors import LazyLLMError

NOT_CAUSAL = "the attention mask is not plainly causal, as where tokens of an image see each other: it is not supported"


@dataclass
class DeferredMask:
    """A mask that a model makes before it runs the decoder: the arguments of transformers' mask interface."""

    arguments: dict[str, Any]

    def is_causal(self, window: int | None) -> bool:
        """Return whether it is causal, within a window if there is one; reads the device once a block."""
        mask = self.arguments
        if mask["allow_is_causal_skip"]:
            return True  # the model adds nothing to causality
        causal: Any = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
        device, batch_size, visible = mask["device"], mask["batch_size"], mask["mask_function"]
        queries = torch.arange(mask["q_length"], device=device) + mask["q_offset"]
        keys = torch.arange(mask["kv_length"], device=device) + mask["kv_offset"]
        batch = torch.arange(batch_size, device=device)[:, None, None]
        blocks = queries[:, None].split(max(1, BLOCK_ELEMENTS // (batch_size * len(keys))))
        return all(bool((visible(batch, 0, rows, keys) == causal(0, 0, rows, keys)).all()) for rows in blocks)


def padding_mask(mask: Any, window: int | None) -> Any:
    """Return the padding's mask, (batch, tokens) or None, that deferred masks were made of; another mask unchanged.

    The decoder makes the same of it, with the window of its sliding layers, unless they are not causal: then refuse.
    """
    masks = mask if isinstance(mask, dict) else {"": mask}
    if not masks or not all(isinstance(each, DeferredMask) for each in masks.values()):
        return mask
    if not all(each.is_causal(window if kind == "sliding_attention" else None) for kind, each in masks.items()):
        raise LazyLLMError(NOT_CAUSAL)
    return next(iter(masks.values())).arguments["attention_mask"]


class RopeDeltas:
    """The `rope_deltas` of a model's modules: by how much positions after an image exceed the count of tokens."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = [module for module in modules if "rope_deltas" in vars(module)]
        # The model has them once, for all threads: generations take turns.
        self._lock = threading.RLock()

    def get(self) -> list[Any]:
        return [module.rope_deltas for module in self._modules]

    def set(self, deltas: list[Any]) -> None:
        for module, value in zip(self._modules, deltas, strict=True):
            module.rope_deltas = value

    @contextmanager
    def use_those_of(self, cache: Any, restore: bool = False) -> Iterator[None]:
        """Give the model those of the generation with this cache, or none for a new one; other threads wait meanwhile.

        With `restore` the model has its earlier ones again at the end.
        """
        if not self._modules:
            yield
            return
        with self._lock:
            before = self.get()
            engine = getattr(cache, "engine", None)
            self.set(getattr(engine, "rope_deltas", None) or [None] * len(self._modules))
            try:
                yield
            finally:
                if restore:
                    self.set(before)
