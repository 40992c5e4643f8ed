"""What pruning does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

import lazyllm
from lazybench.data.record import Record
from lazybench.decoding import Decoder
from lazybench.prompts import Prompt
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
            RecordFailure: the model cannot hold the prompt, or its logits are not finite.
        """
        lesson = self._lesson(record)
        with lazyllm.enable(self._model, candidate.schedule, importance=candidate.importance):
            found = self._log_probabilities(lesson)
        return max(0.0, float(_divergence(lesson.log_probabilities.to(found.device), found).mean()))

    def _lesson(self, record: Record) -> _Lesson:
        if record.key not in self._lessons:
            prompt, decode = self._ask(record)
            decode.max_new_tokens = min(decode.max_new_tokens, self._tokens)
            answer = decode(prompt.ids)
            lesson = _Lesson(prompt.ids.to(self._model.device), answer, torch.empty(0))
            # By the same passes as a candidate's, so that nothing but pruning tells the two apart.
            known = self._log_probabilities(lesson).cpu()
            self._lessons[record.key] = _Lesson(lesson.prompt, answer, known)
        return self._lessons[record.key]

    @torch.no_grad()
    def _log_probabilities(self, lesson: _Lesson) -> torch.Tensor:
        """Of every token at each token of the answer, (answer tokens, vocabulary), float32."""
        ids, cache, logits = lesson.prompt, None, []
        for token in lesson.answer:
            output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logits.append(output.logits[0, -1])
            ids = torch.tensor([[token]], device=self._model.device)
        return torch.stack(logits).float().log_softmax(dim=-1)


def _divergence(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """KL of each row, in nats."""
    expected, found = expected.double(), found.double()
    return (expected.exp() * (expected - found)).sum(dim=-1)
