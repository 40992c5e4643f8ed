"""LazyLLM (Fu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import lazyllm
from lazybench.decoding import Decoder
from lazybench.methods.base import Method, Output
from lazybench.prompts import Prompt


@dataclass
class LazyLLM(Method):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        schedule: `layer:keep` pairs, e.g. `10:0.7,20:0.5`.
    """

    schedule: str = ""

    def __post_init__(self) -> None:
        self._schedule = lazyllm.PruningSchedule.parse(self.schedule)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        with lazyllm.enable(decode.model, self._schedule) as lazy:
            tokens = decode(prompt.ids)
        return Output(tokens, lazy.stats.prompt_computed)
