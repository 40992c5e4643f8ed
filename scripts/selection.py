"""What choosing a prompt's tokens costs: lazyllm.select, then the shorter prompt, beside the whole prompt.

    python scripts/selection.py RECORDS.jsonl... --output FILE.csv

Each record's context is cut to 3,500 tokens. Seconds, of the embedded model in bfloat16: `whole`, its first token from
the whole prompt; `select`, the choice; `shorter`, its first token from what was chosen. One round that is not counted
goes before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
import yaml
from transformers import PreTrainedModel

import lazyllm
from lazybench.config import CONF, ModelConfig
from lazybench.model.loading import load_model, load_tokenizer

TOKENS = 3500
# Each leaves 30%: half of the layers deep, a quarter, and in two steps.
SCHEDULES = ("50%:0.3", "23%:0.3", "13%:0.6,50%:0.5")


def main() -> None:
    """Measure, and write a row a record and schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="files of records with a context, as LongBench's")
    parser.add_argument("--output", type=Path, required=True, help="CSV to write")
    asked = parser.parse_args()
    embedded = yaml.safe_load((CONF / "model/smollm2_135m.yaml").read_text("utf-8"))
    config = ModelConfig(**embedded | {"dtype": "bfloat16", "device": "cpu"})
    model, tokenizer = load_model(config), load_tokenizer(config)
    contexts = [json.loads(line)["context"] for path in asked.records for line in path.read_text("utf-8").splitlines()]
    prompts = [ids for text in contexts if len(ids := tokenizer(text).input_ids[:TOKENS]) == TOKENS]
    rows = [row for prompt in [prompts[0], *prompts] for row in measured(model, torch.tensor([prompt]))]
    pd.DataFrame(rows[len(SCHEDULES) :]).to_csv(asked.output, index=False, float_format="%.4g", lineterminator="\n")


@torch.no_grad()
def measured(model: PreTrainedModel, ids: torch.Tensor) -> list[dict[str, object]]:
    """A row a schedule of one prompt, int64 (1, tokens)."""
    rows = []
    for schedule in SCHEDULES:
        whole, _ = timed(lambda: model(ids, logits_to_keep=1))
        select, kept = timed(lambda schedule=schedule: lazyllm.select(model, ids, schedule))
        shorter, _ = timed(lambda kept=kept: model(kept.ids[None], logits_to_keep=1))
        tokens = {"tokens": ids.shape[1], "kept": len(kept.ids), "prompt_computed": kept.prompt_computed}
        rows.append({"schedule": schedule, **tokens, "whole": whole, "select": select, "shorter": shorter})
    return rows


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Seconds that some work takes, and what it gives."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


if __name__ == "__main__":
    main()
