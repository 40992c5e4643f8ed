"""What a method is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from lazybench.decoding import Decoder
from lazybench.prompts import Prompt
from lazyllm import Stats


@dataclass(frozen=True)
class Output:
    """What a method made of a prompt.

    Attributes:
        tokens: ids of the new tokens, as the decoder returned them.
        prompt_computed: mean over layers of the fraction of prompt tokens computed there, in (0, 1] (Table 2).
        stats: what LazyLLM's engine counted, for methods that run on it.
    """

    tokens: list[int]
    prompt_computed: float
    stats: Stats | None = None


@dataclass
class Method(ABC):
    """A way to prune prompts: a small dataclass whose fields are its settings.

    Everything in `generate` is timed, from the tokenised prompt to the last token. It calls `decode` once, on
    whatever it makes of the prompt.

    Attributes:
        name: its name in run folders and tables.
        repeats: how many seeds are run on each record and averaged.
        prefills: for plans: its time to first token at most, in times of the unmodified model's.
    """

    prefills: ClassVar[float] = 1.0

    name: str
    repeats: int = 1

    def check(self, model: PreTrainedModel) -> None:  # noqa: B027  (most methods work on every model)
        """Refuse a model by its structure, before a sweep starts.

        Args:
            model: the model under test, maybe on the meta device: without weights.

        Raises:
            LazyBenchError: the method cannot work on this model.
        """

    def prepare(self, model: PreTrainedModel) -> None:
        """Get ready for `model`, untimed, before anything is written.

        Raises:
            LazyBenchError: the method cannot work on this model.
        """
        self.check(model)

    @abstractmethod
    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        """Answer `prompt`.

        Args:
            prompt: the tokenised prompt; `prompt.ids` is int64 (1, tokens).
            decode: greedy generation; `decode.model` is the model under test.
            seed: 0 to `repeats - 1`; the same seed must give the same tokens.
        """
