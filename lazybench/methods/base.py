"""The interface of a method."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

import lazyllm
from lazybench.data import Record
from lazybench.errors import LazyBenchError
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
    # single sentences, count only in the times.
    prompt_computed: float
    stats: Stats | None = None  # counts of LazyLLM's engine, for methods that run on it
    # Those that `decode` kept, (tokens, vocabulary), float32, on the CPU; a method leaves it.
    logits: torch.Tensor | None = None


def answer(method: "Method", decode: Decoder) -> list[Output]:
    """Answer a decoder's questions by a method, in its session; `LazyBenchError` if it breaks the contract."""
    prompts = [question.prompt for question in decode.questions]
    seeds = [question.seed for question in decode.questions]
    ids = [prompt.ids.clone() for prompt in prompts]
    with method.session(prompts, decode) as decode.session:
        decode.start()
        outputs = [*method.generate(prompts, decode, seeds)]
    decode.session = None  # it may keep tensors alive
    shares = [output.prompt_computed for output in outputs]
    if not all(torch.equal(prompt.ids, before) for prompt, before in zip(prompts, ids, strict=True)):
        wrong = "changed prompt.ids in place, which other passes need as they were: make a new tensor"
    elif decode.answers is None:
        wrong = "did not call decode, which generates and times the answers"
    elif [output.tokens for output in outputs] != decode.answers:
        wrong = "returned other tokens than decode did: Output.tokens must be those that decode returned"
    elif not all(0 < as_number(share) < math.inf for share in shares):
        wrong = f"returned prompt_computed={shares}: it is a number above 0, 1 for the whole prompt"
    else:
        return outputs
    raise LazyBenchError(f"method {method.name}: generate {wrong}")


@dataclass
class Method(ABC):
    """A way to prune prompts: a small dataclass whose fields are its settings, explained in `conf/method/NAME.yaml`.

    All of `generate` is timed, from the tokenised prompt to the last token. It calls `decode` once, on its version of
    the prompts. Preparation of the model that does not read the prompts belongs in `session`, which is not timed.
    """

    can_batch: ClassVar[bool] = False  # whether it answers several prompts at once; timed answers are batches of one
    ttft_bound: ClassVar[float] = 1.0  # for `plan`: upper bound of its TTFT, as a multiple of the unmodified model's
    label: ClassVar[str | None] = None  # its name in tables and figures; None for `name`

    name: str = setting(MISSING, NAME)  # in run folders, and in tables if it has no label
    repeats: int = setting(1, COUNT)  # number of seeds to run on each record and average

    def __post_init__(self) -> None:
        """Refuse settings that break their rule by a `LazyBenchError`; see `lazybench.rules.setting`."""
        check_settings(self, "method.")

    def check(self, model: PreTrainedModel) -> None:  # noqa: B027  (most methods work on every model)
        """Raise `LazyBenchError` for an unsupported model, before a sweep starts; the model may have no weights."""

    def prepare(self, model: PreTrainedModel) -> None:
        """Load models or files, untimed, before anything is written; `LazyBenchError` if `model` is unsupported."""
        self.check(model)

    def session(self, prompts: Sequence[Prompt], decode: Decoder) -> AbstractContextManager[Any]:
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
        """Return the variants that `match tune=true` tries: the same number for each method, or only itself."""
        return [self]

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        """Return how many prompt tokens each layer computes for the first token, twice for a layer that runs twice.

        Raises:
            LazyBenchError: the method does not define it.
        """
        raise LazyBenchError(f"method {self.name} cannot be matched: it does not define layer_tokens")

    def for_record(self, record: Record) -> "Method":
        """Return the method that answers a record: itself, unless it chooses among several."""
        return self

    @property
    def nothing_pruned(self) -> "Method | None":
        """Its engine with nothing pruned, timed beside it to isolate the effect of pruning; None without one."""
        return None

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt], decode: Decoder, seeds: Sequence[int]) -> Sequence[Output]:
        """Answer prompts: one, or with `can_batch` any number.

        Args:
            prompts: the tokenised prompts; `prompt.ids` is int64 (1, tokens).
            decode: greedy generation, called once with the token ids for each prompt, int64 (1, tokens); it returns
                the new tokens of each. `decode.model` is the model under test.
            seeds: of each prompt, 0 to `repeats - 1`; the same seed must give the same tokens.

        Raises:
            RecordFailure: a prompt cannot be answered; those of a batch are then answered one by one.
        """


@dataclass
class Shortening(Method):
    """A method that shortens the prompt, and has the unmodified model answer it: a subclass defines `shorten`."""

    can_batch = True

    @abstractmethod
    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[torch.Tensor, float]:
        """Return the tokens to answer, int64 (1, tokens), and `Output.prompt_computed`.

        `decode` has the model under test, and `session`; `seed` is as in `generate`.
        """

    def generate(self, prompts: Sequence[Prompt], decode: Decoder, seeds: Sequence[int]) -> Sequence[Output]:
        pairs = zip(prompts, seeds, strict=True)
        ids, shares = zip(*(self.shorten(prompt, decode, seed) for prompt, seed in pairs), strict=True)
        engine: AbstractContextManager[Any] = nullcontext()
        if len(ids) > 1:
            with suppress(lazyllm.LazyLLMError):  # a model that it does not support computes the padded batch
                engine = lazyllm.enable(decode.model, ())  # skips padding and ended sequences
        with engine:
            return [Output(tokens, share) for tokens, share in zip(decode(ids), shares, strict=True)]


def build_method(settings: dict[str, Any]) -> Method:
    """Make the method of a config's `method`; `LazyBenchError` if it is none, or refuses its settings."""
    method = make("method", settings, "a class such as lazybench.methods.lazyllm.LazyLLM")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={settings['_target_']} is not a lazybench.methods.Method")
    check_settings(method, "method.")  # in case its `__post_init__` does not call this one
    return method
