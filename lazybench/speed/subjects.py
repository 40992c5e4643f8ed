"""What is timed at one prompt length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

import lazyllm
from lazybench.config import SpeedConfig
from lazybench.data import load_facts, sample
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazybench.speed.memory import Memory, measure
from lazyllm import LazyLLMError

# Memory peaks in prefilling; these show what decoding holds on top, before the caches grow.
MEMORY_TOKENS = 16
_DATASET = "gov_report"
_SPARE = 32  # tokens: truncation decodes, joins and tokenises anew, which may change the count a little
# Names of passes; those of the unmodified model on part of the prompt are token counts.
WHOLE, METHOD, KEEP_1 = "unmodified", "method", "keep_1"


@dataclass(frozen=True)
class Subjects:
    """A method, the unmodified model, and the unmodified model at each token count that the method's layers see.

    Attributes:
        method: the method under test, prepared.
        decode: greedy generation of as many tokens as are measured.
        cpu_share: a pass on a CPU that got less of wall time times threads is taken again.
    """

    method: Method
    decode: Decoder
    prompt: Prompt
    cpu_share: float

    def untimed(self, new_tokens: int) -> Subjects:
        """The same with so many new tokens, each pass taken as it is."""
        return replace(self, decode=Decoder(self.decode.model, new_tokens), cpu_share=0)

    @cached_property
    def counts(self) -> list[int] | None:
        """Tokens in each layer while the prompt is prefilled; None for a method that has no schedule of layers."""
        placed = getattr(self.method, "placed", None)
        if placed is None:
            return None
        layers = self.decode.model.config.num_hidden_layers
        kept = {stage.layer: stage.kept for stage in placed(self.decode.model).stages}
        counts = [self.prompt.ids.shape[1]]
        for layer in range(layers - 1):
            counts.append(kept[layer](counts[-1]) if layer in kept else counts[-1])
        return counts

    def runs(self) -> dict[str | int, Callable[[int], Pass]]:
        """The passes to time, by name; each takes the number of the repeat, which is the method's seed."""
        runs = {WHOLE: lambda repeat: self._pass(UNMODIFIED), METHOD: partial(self._pass, self.method)}
        if (keep_1 := self.method.keep_1) is not None:
            runs[KEEP_1] = lambda repeat: self._pass(keep_1)
        for count in sorted(set(self.counts or ()) - {self.prompt.ids.shape[1]}):
            runs[count] = partial(self._part, count)
        return runs

    @cached_property
    def memory(self) -> dict[str, Memory]:
        """The memory that the unmodified model and the method take in prefilling and the first steps, by name."""
        few = self.untimed(min(MEMORY_TOKENS, self.decode.max_new_tokens))
        return {name: few._memory(name) for name in (WHOLE, METHOD)}

    def _memory(self, name: str) -> Memory:
        """The memory that one of the `runs` takes; keys and values also where LazyLLM's engine holds them."""
        passes: list[Pass] = []
        run = self.runs()[name]
        found = measure(self.decode.model.device, self.layers, lambda: passes.append(run(0)))
        stats = passes[0].output.stats
        return found if stats is None else replace(found, kv=stats.kv_bytes.tolist())

    @cached_property
    def layers(self) -> Sequence[nn.Module]:
        """The model's decoder layers; none of a model in which they are not known."""
        try:
            return list(lazyllm.enable(self.decode.model, ()).layers)
        except LazyLLMError:  # other methods run on it all the same
            return []

    def _pass(self, method: Method, seed: int = 0) -> Pass:
        return self._timed(method, self.prompt, self.decode, seed)

    def _part(self, count: int, _: int) -> Pass:
        """The first token after the prompt's first `count` tokens."""
        first = Decoder(self.decode.model, max_new_tokens=1)
        return self._timed(UNMODIFIED, replace(self.prompt, ids=self.prompt.ids[:, :count]), first, 0)

    def _timed(self, method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
        return undisturbed(lambda: timed(method, prompt, decode, seed), decode.model.device, self.cpu_share)


def prompt_of(length: int, tokenizer: PreTrainedTokenizerBase, config: SpeedConfig) -> Prompt:
    """A summarization prompt of exactly `length` tokens, about `config.text` or, without one, a generated report.

    What LazyLLM revives depends on real attention, so its ids are not random ones.

    Raises:
        LazyBenchError: the text is not there, or too short.
    """
    record = sample.load(_DATASET, 1, 0, min(sample.MAX_TOKENS, max(2 * length, sample.MIN_TOKENS)))[0]
    if config.text is not None:
        try:
            record = replace(record, context=Path(config.text).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise LazyBenchError(f"text={config.text} cannot be read: {error}") from None
    # No more context than the prompt can hold: methods that work on the context are timed on the same text.
    ids = tokenizer(record.context, add_special_tokens=False, verbose=False).input_ids[: length + _SPARE]
    record = replace(record, context=tokenizer.decode(ids))
    model = replace(config.model, limit=length + _SPARE, chat=None)
    prompt = PromptBuilder(tokenizer, model, load_facts({})[_DATASET]).build(record)
    if prompt.ids.shape[1] < length:
        source = "a sample text can have" if config.text is None else f"text={config.text} has"
        raise LazyBenchError(f"lengths: {length} tokens are more than {source}, {prompt.ids.shape[1]}")
    return replace(prompt, ids=prompt.ids[:, :length])
