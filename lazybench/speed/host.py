"""What LazyLLM's engine costs the host: decode steps of a model so narrow that little but launching work takes time."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

import pandas as pd
import torch
from tqdm import trange
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lazyllm
from lazybench.model.decoding import synchronize

UNMODIFIED = "unmodified"
# A keep of 1 would be no stage; of fewer than 10,000 tokens 0.9999 keeps all as well.
SCHEDULES = {"nothing pruned": "", "stages that keep all": "23%:0.9999,50%:0.9999", "default": "23%:0.6,50%:0.6"}
SEQUENCES = (1, 16)
LAYERS, WIDTH, TOKENS = 30, 64, 1000
WARMUP, STEPS = 5, 40


@torch.no_grad()
def measure(device: torch.device) -> pd.DataFrame:
    """Decode steps on a device behind `TOKENS` random tokens of prompt, unmodified and under each schedule in turn.

    Returns:
        `sequences` of the batch, `engine`, `step_ms`, the median of `STEPS` steps on one thread, and `ratio`, the
        median of what a step takes over the unmodified model's step of the same round.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return pd.DataFrame([row for sequences in SEQUENCES for row in _rows(sequences, device)])
    finally:
        torch.set_num_threads(threads)


def _rows(sequences: int, device: torch.device) -> Iterator[dict[str, object]]:
    # A model for each, since a cache belongs to one `with` and the steps are taken in turn.
    models = {name: _model().to(device) for name in (UNMODIFIED, *SCHEDULES)}
    with ExitStack() as entered:
        for name, schedule in SCHEDULES.items():
            entered.enter_context(lazyllm.enable(models[name], schedule))
        steps = {name: _steps(model, sequences) for name, model in models.items()}
        rounds = trange(WARMUP + STEPS, unit="round", desc=f"batch of {sequences}")
        taken = [{name: next(of) for name, of in steps.items()} for _ in rounds][WARMUP:]
    for name in models:
        ratio = median(seconds[name] / seconds[UNMODIFIED] for seconds in taken)
        step_ms = 1e3 * median(seconds[name] for seconds in taken)
        yield {"sequences": sequences, "engine": name, "step_ms": step_ms, "ratio": ratio}


def _model() -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS, "vocab_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval()


def _steps(model: PreTrainedModel, sequences: int) -> Iterator[float]:
    """Seconds of each decode step of a greedy generation without an end."""
    ids = torch.randint(3, 256, (sequences, TOKENS), generator=torch.Generator().manual_seed(0)).to(model.device)
    mask, cache = torch.ones_like(ids), None
    while True:
        start = time.perf_counter()
        output = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
        synchronize(model.device)
        seconds = time.perf_counter() - start
        if cache is not None:
            yield seconds
        ids, cache = output.logits[:, -1].argmax(dim=-1, keepdim=True), output.past_key_values
        mask = torch.cat([mask, mask[:, :1]], dim=1)
