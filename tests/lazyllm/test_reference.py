"""`lazyllm.reference` gives the known answers; `test_exactness` holds the engine to the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lazyllm import reference

KNOWN_ANSWERS = Path(__file__).parents[3] / "shared" / "reference"


@pytest.mark.parametrize("case", range(6))
def test_known_answers(case):
    folder = KNOWN_ANSWERS / f"case{case}"
    if not folder.exists():
        pytest.skip(f"no known answers at {folder}")
    expected = json.loads((folder / "expected.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    found = reference.run(model, expected["prompt"], expected["stages"], len(expected["tokens"]))
    assert found.tokens == expected["tokens"]
    assert [[len(rows) for rows in step] for step in found.rows] == expected["rows"]
    assert found.active == expected["active_positions"]
    unmodified = reference.run(model, expected["prompt"], [], len(expected["tokens"]))
    assert unmodified.tokens == expected["unmodified_tokens"]
