"""What pruning does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

import lazyllm
from lazybench.data import Record
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

    @property
    def columns(self) -> dict[str, str]:
        """Both as columns of a table."""
        return {"schedule": self.schedule.spec, "importance": str(self.importance)}


@dataclass(frozen=True)
class Harmed:
    """What a candidate does to one record.

    Attributes:
        kl: the divergence of its next tokens, in nats.
        rows: tokens computed in each layer at each decode step, int64 (steps, layers).
    """

    kl: float
    rows: torch.Tensor


class CandidateFailure(LazyBenchError):
    """The model does not work when it is pruned like this."""


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
        # By record: the ids of the answer's tokens, and the log-probabilities at each of them, on the CPU.
        self._answers: dict[tuple[str, str], tuple[list[int], torch.Tensor]] = {}

    def of(self, candidate: Candidate, record: Record) -> Harmed:
        """KL(unmodified || pruned) of the next token, in nats: mean over the answer's tokens; and what was computed.

        The pruned model prefills the prompt, then gets the unmodified model's answer token by token, whatever its own
        would be: so decoding and revival count, and a difference is counted where it arises.

        Raises:
            LazyBenchError: the unmodified model cannot run on the record.
            CandidateFailure: the pruned model's logits are not finite.
            LazyLLMError: the model cannot be pruned like this.
        """
        self.learn(record)
        answer, expected = self._answers[record.key]
        with lazyllm.enable(self._model, candidate.schedule, selection=candidate.importance) as lazy:
            found = self._log_probabilities(self._ask(record)[0].ids, answer)
        expected, found = expected.to(found.device).double(), found.double()
        divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
        if not math.isfinite(divergence):
            raise CandidateFailure(f"{candidate.name}: logits that are not finite on {record.dataset} {record.id}")
        return Harmed(max(0.0, divergence), lazy.stats.rows[1:])

    def learn(self, record: Record) -> None:
        """Have the unmodified model answer a record, once.

        Raises:
            LazyBenchError: it cannot.
        """
        if record.key in self._answers:
            return
        prompt, decode = self._ask(record)
        decode.max_new_tokens = min(decode.max_new_tokens, self._tokens)
        try:
            answer = decode(prompt.ids)
        except RecordFailure as error:
            raise LazyBenchError(f"{record.dataset} {record.id} cannot be calibrated on: {error}") from error
        # By the same passes as a candidate's: only pruning makes a difference.
        self._answers[record.key] = answer, self._log_probabilities(prompt.ids, answer).cpu()

    @torch.no_grad()
    def _log_probabilities(self, ids: torch.Tensor, answer: list[int]) -> torch.Tensor:
        """Of every token at each token of the answer to a prompt's ids, (answer tokens, vocabulary), float32."""
        cache, logits, ids = None, [], ids.to(self._model.device)
        for token in answer:
            output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logits.append(output.logits[0, -1])
            ids = torch.tensor([[token]], device=self._model.device)
        return torch.stack(logits).float().log_softmax(dim=-1)
