"""The unmodified model."""

from dataclasses import dataclass

from lazybench.methods.base import Method, Output
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


@dataclass
class Baseline(Method):
    """Answer the prompt as it is."""

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        return Output(decode(prompt.ids), prompt_computed=1.0)
