"""SpecPrefill (Liu et al. 2025, arXiv 2502.02789)."""

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lazyllm
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.base import Method, Output
from lazybench.methods.shared import COUNT, MODEL, ODD, SHARE, load_second, pooled, setting
from lazybench.model.decoding import Decoder, check_takes_positions, positions_of, stop_ids
from lazybench.model.prompts import Prompt


@dataclass
class SpecPrefill(Method):
    """A small draft model picks chunks of the prompt; the model computes those alone, at their original positions.

    The draft reads the prompt and answers with up to `look_ahead` tokens of its own, fewer where its text ends. The
    queries are those of the last prompt token and of these tokens but the last. Of each the attention probability on
    the prompt's tokens, softmax over these alone, is averaged over `pooling` neighbours, and the largest over all heads
    and layers taken. A token's importance is the mean over queries, a chunk's the mean over its tokens. The best chunks
    go on.

    This follows the authors' code, but that the prompt's last chunk always goes on, since the answer follows on it.

    All of it is timed. `prompt_computed` is the share of the prompt that the model computes; the draft's pass counts in
    the times alone. Where the model is its own draft it counts as a second pass, and nothing is faster. Where all
    chunks stay there is nothing to pick, and one ordinary pass.
    """

    prefills = 2.0
    label, colour = "SpecPrefill", "tab:brown"

    draft: str | None = setting(None, MODEL)
    keep: float = setting(0.5, SHARE)
    look_ahead: int = setting(8, COUNT)
    pooling: int = setting(13, ODD)
    chunk: int = setting(32, COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._draft: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None

    def check(self, model: PreTrainedModel) -> None:
        check_takes_positions(model)
        if self.draft is None:
            lazyllm.enable(model, ())  # refuses what it could not look into

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        self._draft = load_second(self, model)
        if self._draft is not None:
            lazyllm.enable(self._draft[0], ())

    def session(self, prompt: Prompt, decode: Decoder) -> "AbstractContextManager[tuple[LookAhead, lazyllm.Session]]":
        if self._draft is not None and prompt.builder.tokenizer.get_vocab() != self._draft[1].get_vocab():
            raise LazyBenchError(
                f"method.draft={self.draft} has another vocabulary than the model, so its ids are other words: take a "
                "draft of the model's own family"
            )
        watch = LookAhead(self.pooling, prompt.ids.shape[1])
        # Not entered yet: where the model is its own draft, it is to answer as it is.
        return nullcontext((watch, lazyllm.enable(self._drafting(decode), (), selection=watch)))

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        tokens = prompt.ids.shape[1]
        chunks = math.ceil(tokens / self.chunk)
        count = math.ceil(self.keep * chunks - 1e-9)
        if count == chunks:
            return Output(decode(prompt.ids), prompt_computed=1.0)
        kept = self._best(self._importance(prompt, decode), count)
        computed = len(kept) / tokens + (self._draft is None)
        return Output(decode(prompt.ids[:, kept], positions=kept[None]), prompt_computed=computed)

    def _drafting(self, decode: Decoder) -> PreTrainedModel:
        return decode.model if self._draft is None else self._draft[0]

    def _importance(self, prompt: Prompt, decode: Decoder) -> Tensor:
        """Importance of each token of the prompt, (tokens,), on the CPU."""
        model = self._drafting(decode)
        holds, needed = positions_of(model), prompt.ids.shape[1] + self.look_ahead
        if holds is not None and needed > holds:
            raise RecordFailure(f"{needed} tokens of prompt and look-ahead are more than the draft's {holds}")
        stops, (watch, watching) = stop_ids(model.generation_config.eos_token_id), decode.session
        ids, cache = prompt.ids.to(model.device), None
        with torch.no_grad(), watching:
            for _ in range(self.look_ahead):
                output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                ids, cache = output.logits[:, -1].argmax(dim=-1, keepdim=True), output.past_key_values
                if int(ids) in stops:
                    break
        return torch.stack(watch.largest).mean(dim=0).cpu()

    def _best(self, importance: Tensor, count: int) -> Tensor:
        """Positions of the tokens in the `count` best chunks, sorted, int64 (kept,)."""
        by_chunk = torch.stack([of.mean() for of in importance.split(self.chunk)])
        by_chunk[-1] = math.inf
        chosen = by_chunk.sort(descending=True, stable=True).indices[:count].sort().values
        members = torch.arange(len(importance)).split(self.chunk)
        return torch.cat([members[index] for index in chosen.tolist()])


class LookAhead(lazyllm.Selection, checked=False):
    """Watches a draft that answers a prompt, in every layer that sees more than a window, and prunes nothing.

    `largest` has, of each pass so far, the newest token's pooled attention on each of the prompt's `tokens`, the
    largest over layers and heads, (tokens,).
    """

    def __init__(self, pooling: int, tokens: int) -> None:
        self.pooling, self.tokens = pooling, tokens
        self.largest: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "LookAhead":
        return copy.copy(self)  # a generation works on a deep copy, and what it saw is asked of the original

    def wants(self, layer: int) -> bool:
        return layer in self.cache.group_of[layer].ranking

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        prompt = key[:, :, : self.tokens]
        attention = lazyllm.attention_on(prompt, query[:, :, -1:], None, scaling, softcap, self.sinks)
        largest = pooled(attention.flatten(0, 3), self.pooling).amax(dim=0)
        if layer == self.cache.group_of[layer].ranking[0]:
            self.largest.append(largest)
        else:
            self.largest[-1] = torch.maximum(self.largest[-1].to(largest.device), largest)
