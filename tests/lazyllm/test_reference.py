"""`lazyllm.reference` gives the known answers; `test_exactness` holds the engine to the same ones."""

from __future__ import annotations

import families
import pytest

from lazyllm import reference


@pytest.mark.parametrize("case", range(6))
def test_known_answers(case):
    model, expected = families.known_answer(case)
    found = reference.run(model, expected["prompt"], expected["stages"], len(expected["tokens"]))
    assert found.tokens == expected["tokens"]
    assert [[len(rows) for rows in step] for step in found.rows] == expected["rows"]
    assert found.active == expected["active_positions"]
    unmodified = reference.run(model, expected["prompt"], [], len(expected["tokens"]))
    assert unmodified.tokens == expected["unmodified_tokens"]
