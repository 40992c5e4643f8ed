"""What pruning does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

import lazyllm
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazyllm import Importance, PruningSchedule


@dataclass(frozen=True)
class Candidate:
    """A schedule, and the importance that ranks tokens at its stages."""

    schedule: PruningSchedule
    importance: Importance

    @property
    def name(self) -> str:
        """Both as text."""
        return f"{self.schedule.spec or 'no pruning'} {self.importance}"


class CandidateFailure(LazyBenchError):
    """Pruned like this the model does not work."""


@dataclass(frozen=True)
class _Lesson:
    """The unmodified model's answer to a prompt.

    Attributes:
        prompt: the prompt's ids, int64 (1, tokens).
        answer: ids of the answer's tokens.
        log_probabilities: of every token at each of them, (answer tokens, vocabulary), float32 on the CPU.
    """

    prompt: torch.Tensor
    answer: list[int]
    log_probabilities: torch.Tensor


class Harm:
    """Measures candidates on records; the unmodified model answers each record once.

    Args:
        model: the model under test.
        ask: a record's prompt, and the decoder with its dataset's settings.
        tokens: answer tokens to compare at most.
    """

    def __init__(self, model: PreTrainedModel, ask: Callable[[Record], tuple[Prompt, Decoder]], tokens: int) -> None:
        self._model = model
        self._ask = ask
        self._tokens = tokens
        self._lessons: dict[tuple[str, str], _Lesson] = {}

    def of(self, candidate: Candidate, record: Record) -> float:
        """KL(unmodified || pruned) of the next token, in nats: mean over the answer's tokens.

        The pruned model prefills the prompt, then gets the unmodified model's answer token by token, whatever its own
        would be: so decoding and revival count, and a difference is counted where it arises.

        Raises:
            LazyBenchError: the unmodified model cannot run on the record.
            CandidateFailure: the pruned model's logits are not finite.
            LazyLLMError: the model cannot be pruned like this.
        """
        self.learn(record)
        lesson = self._lessons[record.key]
        with lazyllm.enable(self._model, candidate.schedule, importance=candidate.importance):
            found = self._log_probabilities(lesson.prompt, lesson.answer)
        divergence = float(_divergence(lesson.log_probabilities.to(found.device), found).mean())
        if not math.isfinite(divergence):
            raise CandidateFailure(f"{candidate.name}: logits that are not finite on {record.dataset} {record.id}")
        return max(0.0, divergence)

    def learn(self, record: Record) -> None:
        """Have the unmodified model answer a record, once.

        Raises:
            LazyBenchError: it cannot.
        """
        if record.key in self._lessons:
            return
        prompt, decode = self._ask(record)
        decode.max_new_tokens = min(decode.max_new_tokens, self._tokens)
        try:
            answer = decode(prompt.ids)
        except RecordFailure as error:
            raise LazyBenchError(f"{record.dataset} {record.id} cannot be calibrated on: {error}") from error
        ids = prompt.ids.to(self._model.device)
        # By the same passes as a candidate's, so that nothing but pruning tells the two apart.
        self._lessons[record.key] = _Lesson(ids, answer, self._log_probabilities(ids, answer).cpu())

    @torch.no_grad()
    def _log_probabilities(self, ids: torch.Tensor, answer: list[int]) -> torch.Tensor:
        """Of every token at each token of the answer to a prompt's ids, (answer tokens, vocabulary), float32."""
        cache, logits = None, []
        for token in answer:
            output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logits.append(output.logits[0, -1])
            ids = torch.tensor([[token]], device=self._model.device)
        return torch.stack(logits).float().log_softmax(dim=-1)


def _divergence(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """KL of each row, in nats."""
    expected, found = expected.double(), found.double()
    return (expected.exp() * (expected - found)).sum(dim=-1)
