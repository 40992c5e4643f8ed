"""What a method is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from lazybench.config import check_name
from lazybench.errors import LazyBenchError
from lazybench.methods.shared import COUNT, check_settings, number, setting
from lazybench.model.decoding import Decoder
from lazybench.model.instance import make
from lazybench.model.prompts import Prompt
from lazyllm import Stats


@dataclass(frozen=True)
class Output:
    """What a method made of a prompt.

    Attributes:
        tokens: ids of the new tokens, as `decode` returned them.
        prompt_computed: mean over layers of the prompt tokens computed there for the answer, as a fraction of the
            prompt (Table 2). A token that is computed twice in a layer counts twice, so it may be above 1. Passes over
            other texts than the prompt, such as a scorer's over single sentences, count in the times alone.
        stats: what LazyLLM's engine counted, for methods that run on it.
    """

    tokens: list[int]
    prompt_computed: float
    stats: Stats | None = None


def answer(method: "Method", prompt: Prompt, decode: Decoder, seed: int) -> Output:
    """What `method.generate` makes of a prompt within its session; `LazyBenchError` where it breaks its contract."""
    given = prompt.ids.clone()
    with method.session(prompt, decode) as decode.session:
        decode.start()
        output = method.generate(prompt, decode, seed)
    decode.session = None  # it may keep tensors alive
    if not torch.equal(prompt.ids, given):
        wrong = "changed prompt.ids in place, which other passes need as they were: make a new tensor"
    elif not isinstance(output, Output):
        wrong = f"returned a {type(output).__name__}: return lazybench.methods.Output(tokens, prompt_computed)"
    elif decode.answer is None:
        wrong = "did not call decode, which generates the answer and takes its times"
    elif output.tokens != decode.answer:
        wrong = "returned other tokens than decode did: Output.tokens are what decode returned"
    elif not 0 < number(output.prompt_computed) < math.inf:
        wrong = f"returned prompt_computed={output.prompt_computed!r}: it is a number above 0, 1 for the whole prompt"
    else:
        return output
    raise LazyBenchError(f"method {method.name}: generate {wrong}")


@dataclass
class Method(ABC):
    """A way to prune prompts: a small dataclass whose fields are its settings, explained in `conf/method/NAME.yaml`.

    Everything in `generate` is timed, from the tokenised prompt to the last token. It calls `decode` once, on
    whatever it makes of the prompt. What switches the model over to the method, and does nothing to the prompt, is
    its `session`, which is not timed.

    Attributes:
        name: its name in run folders, and in tables if it has no label.
        repeats: how many seeds are run on each record and averaged.
        prefills: for `plan`: its TTFT at most, as a multiple of the unmodified model's.
        label: its name in tables and figures; None for `name`.
        colour: its colour in figures, one of Matplotlib's; None for the next one that is free.
    """

    prefills: ClassVar[float] = 1.0
    label: ClassVar[str | None] = None
    colour: ClassVar[str | None] = None

    name: str
    repeats: int = setting(1, COUNT)

    def __post_init__(self) -> None:
        """Refuse settings that break their rule by a `LazyBenchError`; see `lazybench.methods.shared.setting`."""
        check_settings(self)

    @property
    def appearance(self) -> dict[str, str]:
        """How reports show it: `label` and `colour`, as far as its class sets them."""
        shown = {"label": self.label, "colour": self.colour}
        return {key: value for key, value in shown.items() if value is not None}

    def check(self, model: PreTrainedModel) -> None:  # noqa: B027  (most methods work on every model)
        """Refuse a model that it cannot work on by a `LazyBenchError`, before a sweep starts, maybe without weights."""

    def prepare(self, model: PreTrainedModel) -> None:
        """Get ready for `model`, untimed, before anything is written; a `LazyBenchError` refuses it."""
        self.check(model)

    def session(self, prompt: Prompt, decode: Decoder) -> AbstractContextManager[Any]:
        """What is entered before the clock starts and left behind the last token; `decode.session` is what it gives."""
        return nullcontext()

    def pruning(self, share: float) -> "Method":
        """The same method where it prunes such a share of the prompt's tokens in the end, 0 to 1: for `match`.

        Raises:
            LazyBenchError: nobody knows which of its settings does that. By default it is `keep`, what is left.
        """
        if not any(of.name == "keep" for of in fields(self)):
            raise LazyBenchError(f"method {self.name} cannot be matched: it has no `keep`, and no `pruning` of its own")
        return replace(self, keep=round(1 - share, 4))

    def trials(self) -> "Sequence[Method]":
        """The settings that `match tune=true` tries: as many for each method that is compared, itself if no others."""
        return [self]

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        """Of how many of a prompt's tokens it computes each layer for the first token, a layer twice where it does.

        Raises:
            LazyBenchError: that is not known of it.
        """
        raise LazyBenchError(f"method {self.name} does not say what it computes: match it without tune=true")

    @property
    def keep_1(self) -> "Method | None":
        """Its engine with nothing pruned, timed beside it to tell pruning's part; None without an engine of its own."""
        return None

    @abstractmethod
    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        """Answer `prompt`.

        Args:
            prompt: the tokenised prompt; `prompt.ids` is int64 (1, tokens).
            decode: greedy generation; `decode.model` is the model under test.
            seed: 0 to `repeats - 1`; the same seed must give the same tokens.
        """


def build_method(settings: dict[str, Any]) -> Method:
    """The method that a config's `method` describes; `LazyBenchError` if it is none, or refuses its settings."""
    method = make("method", settings, "a class such as lazybench.methods.lazyllm.LazyLLM")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={settings['_target_']} is not a lazybench.methods.Method")
    check_name("method.name", method.name)
    check_settings(method)  # a class with a `__post_init__` of its own may not have
    return method
