"""GemFilter (Shi et al. 2024, arXiv 2409.17422)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lazyllm
from lazybench.methods.base import Shortening
from lazybench.methods.engine import OneStage
from lazybench.methods.shared import pool
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.rules import LAYER, ODD, setting


@dataclass
class GemFilter(Shortening, OneStage):
    """Run the prompt up to a filter layer, select tokens there, then run the model on these as an ordinary prompt.

    A token's importance is the last query's raw score `q k` on it in the filter layer, summed over heads and averaged
    over `pooling` neighbours. The last token is kept only if it ranks high enough. The paper keeps a number of tokens,
    1,024 to 4,096.

    `prompt_computed` counts both passes, so it may exceed 1: the layers up to the filter on every token, then all
    layers on the kept ones. With `keep=1` there is one ordinary pass.
    """

    layer: int | str = setting("44%", LAYER)
    pooling: int = setting(5, ODD)

    nothing_pruned = None  # its answer is generated without the engine

    @property
    def ranking(self) -> "FilterRanking":
        return FilterRanking()

    def trials(self) -> list[Self]:
        settings = product(("8%", "17%", "25%", "33%"), (self.pooling, 15, 31))
        return [replace(self, layer=layer, pooling=size) for layer, size in settings]

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        if self.keep == 1:
            return super().layer_tokens(model, tokens)
        [stage], layers = self.resolve_schedule(model).stages, model.config.get_text_config().num_hidden_layers
        return [tokens] * (stage.layer + 1) + [stage.kept(tokens)] * layers

    def session(self, prompts: Sequence[Prompt], decode: Decoder) -> AbstractContextManager[lazyllm.Session]:
        # Entered only for the first pass: the unmodified model answers.
        return nullcontext(super().session(prompts, decode))

    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[Tensor, float]:
        if self.keep == 1:
            return prompt.ids, 1.0
        stage, scores = decode.session.schedule.stages[0], self._scores(decode, prompt.ids)
        count = stage.kept(scores.shape[0])
        kept = pool(scores[None], self.pooling)[0].sort(descending=True, stable=True).indices[:count].sort().values
        computed = (stage.layer + 1) / len(decode.session.layers) + count / scores.shape[0]
        return prompt.ids[:, kept.to(prompt.ids.device)], computed

    @torch.no_grad()
    def _scores(self, decode: Decoder, ids: Tensor) -> Tensor:
        """Run the first pass, and return the last query's raw scores in the filter layer, (tokens,)."""
        try:
            with decode.session:
                decode.model(ids.to(decode.model.device), logits_to_keep=1)
        except FilterReached as reached:
            return reached.args[0]
        raise AssertionError("the filter layer was not reached")


class FilterReached(Exception):
    """Ends the first pass after the filter layer; its argument is the raw scores, (tokens,)."""


class FilterRanking(lazyllm.FrozenRanking, checked=False):
    """Raises `FilterReached` in the filter layer."""

    def observe(self, attention: lazyllm.LayerAttention) -> None:
        batch, kv_heads, _, head_dim = attention.key.shape
        last = attention.query[:, :, -1].reshape(batch, kv_heads, -1, head_dim).float()
        raise FilterReached(torch.matmul(last, attention.key.float().transpose(-1, -2)).sum(dim=(1, 2))[0])
