"""Random token drop."""

import random
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from lazybench.methods.base import Shortening
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.rules import COUNT, SHARE, setting
from lazyllm import Stage


@dataclass
class RandomDrop(Shortening):
    """Drop prompt tokens at random; the rest are an ordinary, shorter prompt.

    Special tokens and the last token are kept. Of `n` tokens `ceil(keep * n)` remain, or all special ones if these are
    more. The draw is uniform, without replacement, and depends only on the seed and the record's id.
    """

    repeats: int = setting(5, COUNT)
    keep: float = setting(0.5, SHARE)

    @property
    def ttft_bound(self) -> float:
        return self.keep

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        return [Stage(0, self.keep).kept(tokens)] * model.config.get_text_config().num_hidden_layers

    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[torch.Tensor, float]:
        ids = prompt.ids[0].tolist()
        special = set(prompt.builder.tokenizer.all_special_ids)
        droppable = [position for position, token in enumerate(ids[:-1]) if token not in special]
        excess = min(len(droppable), len(ids) - Stage(0, self.keep).kept(len(ids)))
        # Python's generator draws the same on every device and with every version of torch.
        dropped = set(random.Random(f"{seed}/{prompt.record.id}").sample(droppable, excess))
        kept = [token for position, token in enumerate(ids) if position not in dropped]
        return torch.tensor([kept]), len(kept) / len(ids)
