"""What is asked of the records of a dataset, and the example that stands before some of their texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lazybench.data.facts import DatasetFacts


@dataclass(frozen=True)
class Asked:
    """What is asked of the records of a dataset.

    Attributes:
        facts: the dataset's facts.
        tokens: most tokens of a prompt and its answer together.
        prompt_tokens: the tokens of the whole prompt that a context and an input make.
    """

    facts: DatasetFacts
    tokens: int
    prompt_tokens: Callable[[str, str], int]

    @property
    def room(self) -> int:
        """Most tokens of a prompt: what its answer, at its longest, leaves."""
        return self.tokens - self.facts.max_new_tokens

    def example(self, context: str, query: str, answer: str, end: str) -> str:
        """What to put before a text, so that its prompt begins with a solved example, and then goes on as ever.

        RULER puts the example's whole prompt before the record's own. A dataset's prompt has its instruction once: so
        the example takes that one, and the record's text gets another.

        Args:
            context: the example's text.
            query: its input.
            answer: its answer.
            end: what divides it from the prompt.
        """
        instruction, _, question = self.facts.prompt.partition("{context}")
        question = (question + self.facts.answer_prefix).format(input=query)
        return f"{context}{question} {answer}{end}{instruction.format(input=query)}"
