"""GemFilter (Shi et al. 2024, arXiv 2409.17422)."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lazyllm
from lazybench.methods.base import Output
from lazybench.methods.engine import OneStage
from lazybench.methods.shared import LAYER, ODD, pooled, setting
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


@dataclass
class GemFilter(OneStage):
    """Run the prompt up to a filter layer, pick tokens there, then run the model on those as an ordinary prompt.

    The importance of a token is the last token's raw score on it in the filter layer, `q k`, summed over heads and
    averaged over `pooling` neighbours. Whatever ranks highest is kept: the last token gets no special treatment.
    The paper keeps a number of tokens, 1,024 to 4,096.

    `prompt_computed` counts both passes: the layers up to the filter on every token, then all layers on the kept ones,
    which are thus computed twice. It may be above 1. With `keep=1` there is nothing to pick, and one ordinary pass.
    """

    layer: int | str = setting("44%", LAYER)
    pooling: int = setting(5, ODD)

    keep_1 = None  # nothing of the engine's runs with it

    @property
    def selection(self) -> "FilterSelection":
        return FilterSelection()

    def trials(self) -> list[Self]:
        settings = product(("8%", "17%", "25%", "33%"), (self.pooling, 15, 31))
        return [replace(self, layer=layer, pooling=of) for layer, of in settings]

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        if self.keep == 1:
            return super().layer_tokens(model, tokens)
        [stage], layers = self.placed(model).stages, model.config.get_text_config().num_hidden_layers
        return [tokens] * (stage.layer + 1) + [stage.kept(tokens)] * layers

    def session(self, prompt: Prompt, decode: Decoder) -> AbstractContextManager[lazyllm.Session]:
        # Not entered yet: the model is to answer as it is.
        return nullcontext(super().session(prompt, decode))

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        if self.keep == 1:
            return Output(decode(prompt.ids), prompt_computed=1.0)
        stage, scores = decode.session.schedule.stages[0], self._scores(decode, prompt.ids)
        count = stage.kept(scores.shape[0])
        kept = pooled(scores[None], self.pooling)[0].sort(descending=True, stable=True).indices[:count].sort().values
        computed = (stage.layer + 1) / len(decode.session.layers) + count / scores.shape[0]
        return Output(decode(prompt.ids[:, kept.to(prompt.ids.device)]), prompt_computed=computed)

    @torch.no_grad()
    def _scores(self, decode: Decoder, ids: Tensor) -> Tensor:
        try:
            with decode.session:
                decode.model(ids.to(decode.model.device), logits_to_keep=1)
        except Scored as scored:
            return scored.args[0]
        raise AssertionError("the filter layer was not reached")


class Scored(Exception):
    """The filter layer has been reached, nothing behind it is needed; its argument is the raw scores, (tokens,)."""


class FilterSelection(lazyllm.FrozenSelection, checked=False):
    """Ends the pass at the filter layer, with the last token's scores there."""

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        batch, kv_heads, _, width = key.shape
        last = query[:, :, -1].reshape(batch, kv_heads, -1, width).float()
        raise Scored(torch.matmul(last, key.float().transpose(-1, -2)).sum(dim=(1, 2))[0])
