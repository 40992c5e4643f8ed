"""SnapKV (Li et al. 2024, arXiv 2404.14469)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.methods.shared import COUNT, KERNEL, ODD, SHARE, pooled, setting
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt

_NAME = "lazybench_snapkv"  # among transformers' attention functions
_filling: "ContextVar[SnapCache]" = ContextVar("filling")


@dataclass
class SnapKV(Method):
    """Compute the whole prompt, then keep the keys and values that its last tokens attend to, in each head others.

    It saves memory and attention in decoding, and nothing before the first token: TTFT is the unmodified model's, with
    the choice on top, and so is the first token; `prompt_computed` is 1.

    In each layer, once it has attended to the whole prompt, each token before the window has a score: the attention of
    the last `window` queries on it, summed, and pooled over `pooling` neighbours. The highest go into the cache, and
    the window itself. Tokens keep their positions, and the answer goes on behind the prompt's last one.

    The original has no key heads that several query heads share. Here such a head keeps one choice, by the mean of its
    query heads' scores, so that the cache gets no larger for being thinned out. It keeps a number, 1,024 to 4,096.
    """

    label, colour = "SnapKV", "tab:cyan"

    keep: float = setting(0.3, SHARE)
    window: int = setting(32, COUNT)
    pooling: int = setting(7, ODD)
    kernel: str = setting("max", KERNEL)

    def pruning(self, share: float) -> Method:
        raise LazyBenchError(f"method {self.name} cannot be matched: whatever it keeps, TTFT is the unmodified model's")

    def check(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, ())  # refuses what does not attend by softmax over a cache of its own
        if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
            raise LazyBenchError(
                f"method {self.name}: {type(model).__name__} has layers that see only a window of the prompt, whose "
                "cache it cannot thin out: take a model with full attention"
            )

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        if model.config.get_text_config()._attn_implementation != "sdpa":
            raise LazyBenchError(f"method {self.name} runs on SDPA alone: set model.attention=sdpa")
        if model.generation_config.prefill_chunk_size is not None:
            raise LazyBenchError(
                f"method {self.name} computes the prompt in one pass: take prefill_chunk_size out of the checkpoint's "
                "generation_config.json"
            )

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        count = lazyllm.Stage(0, self.keep).kept(prompt.ids.shape[1])
        cache = SnapCache(self, count, config=decode.model.config)
        with cache.filling(decode.model):
            return Output(decode(prompt.ids, cache=cache), prompt_computed=1.0)

    def kept(self, attention: torch.Tensor, count: int) -> torch.Tensor:
        """Positions of the `count` tokens that each head keeps, sorted, int64 (kv_heads, count).

        By the attention of the window's queries on all tokens, (kv_heads, heads of a group, queries, tokens).
        """
        heads, groups, window, tokens = attention.shape
        scores = attention[..., : tokens - window].sum(dim=2).flatten(0, 1)
        scores = pooled(scores, self.pooling, self.kernel).unflatten(0, (heads, groups)).mean(dim=1)
        recent = torch.arange(tokens - window, tokens, device=scores.device)[-count:].expand(heads, -1)
        chosen = scores.sort(dim=-1, descending=True, stable=True).indices[:, : count - recent.shape[1]]
        return torch.cat([chosen.sort(dim=-1).values, recent], dim=1)


class SnapCache(DynamicCache):
    """A cache that holds `count` tokens of a prompt in each head, once a layer has attended to all of them."""

    def __init__(self, method: SnapKV, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._method = method
        self._count = count

    @contextmanager
    def filling(self, model: PreTrainedModel) -> Iterator[None]:
        """Have `model` attend by way of this cache."""
        config = model.config.get_text_config()
        before, token = config._attn_implementation, _filling.set(self)
        config._attn_implementation = {"": _NAME}
        try:
            yield
        finally:
            config._attn_implementation = {"": before}
            _filling.reset(token)

    def thin_out(self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        """Keep in `layer`, whose queries and keys are (1, heads, tokens, head_dim), what its last queries attend to."""
        tokens = key.shape[2]
        if self._count >= tokens:
            return
        window, positions = min(self._method.window, tokens - 1), torch.arange(tokens, device=key.device)
        visible = positions <= positions[-window:, None]
        attention = lazyllm.attention_on(key, query[:, :, -window:], visible, scaling, None)[0]
        kept = self._method.kept(attention, self._count)[None, :, :, None]
        held = self.layers[layer]
        held.keys, held.values = (of.gather(2, kept.expand(-1, -1, -1, of.shape[3])) for of in (held.keys, held.values))


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    attended = sdpa_attention_forward(module, query, key, value, *args, **kwargs)
    if query.shape[2] == key.shape[2]:  # the prompt
        scaling = kwargs.get("scaling")
        _filling.get().thin_out(module.layer_idx, query, key, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return attended


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)
