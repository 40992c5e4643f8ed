"""What the tests of several sequences share: padding them, and what each does alone."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

import lazyllm

PAD = 0


def padded(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of several lengths with padding at their left, and the mask that hides it, int64 (texts, longest)."""
    longest = max(map(len, texts))
    ids = torch.tensor([[PAD] * (longest - len(text)) + text for text in texts])
    return ids, torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])


def answers(output: torch.Tensor, start: int, end: int | None) -> list[list[int]]:
    """The generated tokens of each sequence, from column `start`, up to the token `end` that ends it."""
    found = []
    for row in output[:, start:].tolist():
        stop = row.index(end) + 1 if end in row else len(row)
        found.append(row[:stop])
    return found


def alone(model: PreTrainedModel, texts: list[list[int]], **generation: object) -> list[list[int]]:
    """What the model answers to each text alone."""
    found = []
    for text in texts:
        ids = torch.tensor([text])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **generation)
        found.append(output[0, len(text) :].tolist())
    return found


def same(found: lazyllm.Stats, expected: lazyllm.Stats) -> None:
    """Assert that two sequences were computed alike, token by token."""
    assert found.prompt_length == expected.prompt_length
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.active, expected.active)
    assert found.prompt_computed == expected.prompt_computed
    for of, wanted in ((found.positions, expected.positions), (found.computed, expected.computed)):
        assert [[layer.tolist() for layer in step] for step in of] == [
            [layer.tolist() for layer in step] for step in wanted
        ]
    for row, wanted in zip(found.importance, expected.importance, strict=True):
        torch.testing.assert_close(row, wanted, rtol=1e-6, atol=1e-9)
