"""The unmodified model."""

from dataclasses import dataclass

import torch

from lazybench.methods.base import Shortening
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


@dataclass
class Baseline(Shortening):
    """Answer the prompt as it is."""

    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[torch.Tensor, float]:
        return prompt.ids, 1.0
