"""LazyLLM (Fu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

import lazyllm
from lazybench.decoding import Decoder
from lazybench.methods.base import Method, Output
from lazybench.prompts import Prompt


@dataclass
class LazyLLM(Method):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        schedule: `layer:keep` pairs as text or list; on the command line, where a comma outside brackets starts
            a sweep, `method.schedule=[10:0.7,20:0.5]`.
    """

    schedule: str | list[str] = ""

    def __post_init__(self) -> None:
        parts = self.schedule if isinstance(self.schedule, list) else [self.schedule]
        self._schedule = lazyllm.PruningSchedule.parse(" ".join(map(str, parts)))
        self.schedule = self._schedule.spec

    def prepare(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, self._schedule)  # refuses what it could not prune

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        with lazyllm.enable(decode.model, self._schedule) as lazy:
            tokens = decode(prompt.ids)
        return Output(tokens, lazy.stats.prompt_computed)
