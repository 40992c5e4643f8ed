"""The interface of a method."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from lazybench.data import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.model.batch import BatchDecoder, unpruned
from lazybench.model.decoding import Decoder
from lazybench.model.instance import make
from lazybench.model.prompts import Prompt
from lazybench.rules import COUNT, NAME, as_number, check_settings, setting
from lazyllm import Stats


@dataclass(frozen=True)
class Output:
    """A method's answer to a prompt."""

    tokens: list[int]  # ids of the new tokens, as `decode` returned them
    # Mean over layers of the prompt tokens computed for the answer, as a fraction of the prompt (Table 2). A token
    # computed twice in a layer counts twice, so it may exceed 1. Passes over other texts, such as a scorer's over
    # single sentences, count in the times alone.
    prompt_computed: float
    stats: Stats | None = None  # counts of LazyLLM's engine, for methods that run on it


def answers_batches(method: "Method") -> bool:
    """Return whether a method answers several prompts at once.

    A subclass that redefines `generate` or `session`, but not `generate_batch`, answers one by one: its base's
    `generate_batch` would ignore the change.
    """
    names = {"generate", "generate_batch", "session"}
    first = next(kind for kind in type(method).__mro__ if names & vars(kind).keys())
    return "generate_batch" in vars(first)


def answer(method: "Method", prompt: Prompt, decode: Decoder, seed: int) -> Output:
    """Call `method.generate` in its session; `LazyBenchError` if it breaks the contract."""
    ids = prompt.ids.clone()
    with method.session(prompt, decode) as decode.session:
        decode.start()
        output = method.generate(prompt, decode, seed)
    decode.session = None  # it may keep tensors alive
    if not torch.equal(prompt.ids, ids):
        wrong = "changed prompt.ids in place, which other passes need as they were: make a new tensor"
    elif decode.answer is None:
        wrong = "did not call decode, which generates the answer and takes its times"
    elif output.tokens != decode.answer:
        wrong = "returned other tokens than decode did: Output.tokens are what decode returned"
    elif not 0 < as_number(output.prompt_computed) < math.inf:
        wrong = f"returned prompt_computed={output.prompt_computed!r}: it is a number above 0, 1 for the whole prompt"
    else:
        return output
    raise LazyBenchError(f"method {method.name}: generate {wrong}")


@dataclass
class Method(ABC):
    """A way to prune prompts: a small dataclass whose fields are its settings, explained in `conf/method/NAME.yaml`.

    All of `generate` is timed, from the tokenised prompt to the last token. It calls `decode` once, on its version of
    the prompt. Whatever prepares the model and reads nothing of the prompt belongs into `session`, which is not timed.
    """

    prefills: ClassVar[float] = 1.0  # for `plan`: upper bound of its TTFT, as a multiple of the unmodified model's
    label: ClassVar[str | None] = None  # its name in tables and figures; None for `name`

    name: str = setting(MISSING, NAME)  # in run folders, and in tables if it has no label
    repeats: int = setting(1, COUNT)  # number of seeds to run on each record and average

    def __post_init__(self) -> None:
        """Refuse settings that break their rule by a `LazyBenchError`; see `lazybench.rules.setting`."""
        check_settings(self, "method.")

    def check(self, model: PreTrainedModel) -> None:  # noqa: B027  (most methods work on every model)
        """Raise `LazyBenchError` for an unsupported model, before a sweep starts; the model may have no weights."""

    def prepare(self, model: PreTrainedModel) -> None:
        """Load what it needs for `model`, untimed, before anything is written; `LazyBenchError` refuses the model."""
        self.check(model)

    def session(self, prompt: Prompt, decode: Decoder) -> AbstractContextManager[Any]:
        """Return a context that is entered before the clock starts; its value becomes `decode.session`."""
        return nullcontext()

    def pruning(self, share: float) -> "Method":
        """Return this method with settings that prune a share of the prompt's tokens, 0 to 1, for `match`.

        Raises:
            LazyBenchError: it has no setting for that. By default it is `keep`, the share that is kept.
        """
        if not any(field.name == "keep" for field in fields(self)):
            raise LazyBenchError(f"method {self.name} cannot be matched: it has no `keep`, and no `pruning` of its own")
        return replace(self, keep=round(1 - share, 4))

    def trials(self) -> "Sequence[Method]":
        """Return the variants that `match tune=true` tries: equally many for each method, or itself alone."""
        return [self]

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        """Return how many tokens of a prompt each layer computes for the first token; a layer run twice is twice there.

        Raises:
            LazyBenchError: it is not known.
        """
        raise LazyBenchError(f"method {self.name} cannot be matched: it does not say what it computes")

    def for_record(self, record: Record) -> "Method":
        """Return the method that answers a record: itself, unless it chooses among several."""
        return self

    @property
    def keep_1(self) -> "Method | None":
        """Its engine with nothing pruned, timed beside it to tell pruning's part; None without an engine."""
        return None

    @abstractmethod
    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        """Answer `prompt`.

        Args:
            prompt: the tokenised prompt; `prompt.ids` is int64 (1, tokens).
            decode: greedy generation; `decode.model` is the model under test.
            seed: 0 to `repeats - 1`; the same seed must give the same tokens.
        """

    def generate_batch(self, prompts: Sequence[Prompt], decode: BatchDecoder, seeds: Sequence[int]) -> None:  # noqa: B027
        """Answer several prompts at once; a method that does not define this is asked one prompt after the other.

        Args:
            prompts: the tokenised prompts.
            decode: greedy generation for several prompts, called once at most.
            seeds: of each prompt.
        """


@dataclass
class Shortening(Method):
    """A method that shortens the prompt, and has the unmodified model answer it: a subclass defines `shorten`."""

    @abstractmethod
    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[torch.Tensor, float]:
        """Return the tokens to answer, int64 (1, tokens), and `Output.prompt_computed`; arguments as `generate`'s."""

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        ids, prompt_computed = self.shorten(prompt, decode, seed)
        return Output(decode(ids), prompt_computed)

    def generate_batch(self, prompts: Sequence[Prompt], decode: BatchDecoder, seeds: Sequence[int]) -> None:
        ids_by_number, shares = {}, []
        for number, (prompt, decoder, seed) in enumerate(zip(prompts, decode.decoders, seeds, strict=True)):
            try:
                with self.session(prompt, decoder) as decoder.session:
                    ids, prompt_computed = self.shorten(prompt, decoder, seed)
                decoder.check(ids)
            except RecordFailure as failure:
                decode.finish(number, failure)
            else:
                ids_by_number[number] = ids
                shares.append(prompt_computed)
        if ids_by_number:
            with unpruned(decode.decoders[0].model):
                decode(ids_by_number, lambda index, tokens: Output(tokens, shares[index]))


def build_method(settings: dict[str, Any]) -> Method:
    """Make the method of a config's `method`; `LazyBenchError` if it is none, or refuses its settings."""
    method = make("method", settings, "a class such as lazybench.methods.lazyllm.LazyLLM")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={settings['_target_']} is not a lazybench.methods.Method")
    check_settings(method, "method.")  # in case its `__post_init__` does not call this one
    return method
