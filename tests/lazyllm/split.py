"""Run by each of two processes: a model whose heads are split over them gives what the unsplit model gives.

    python -m torch.distributed.run --nproc-per-node=2 split.py FOLDER...

Each folder holds a model of `CASES`. Prints one line for each case that is the same; anything else is an error.
"""

import sys
from pathlib import Path
from unittest import mock

import naive_importance
import torch
from checks import assert_same_stats
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])
PARTS = {**naive_importance.ALONE, "all": naive_importance.ALL}
WAYS = {
    "eq1": (STAGES, None),
    "static": (lazyllm.PruningSchedule([(2, 0.5)]), lazyllm.StaticRanking()),
    **{name: (STAGES, lazyllm.AttentionRanking(**parts)) for name, parts in PARTS.items()},
}


def answer(model, schedule, ranking):
    """Two turns of a ragged batch: what is generated, and what was computed for it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 97, (2, 40), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    recording = {"record_positions": True, "record_importance": True}
    generation = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 6, "return_dict_in_generate": True}
    with lazyllm.enable(model, schedule, ranking=ranking, **recording) as lazy:
        first = model.generate(ids, attention_mask=mask, **generation)
        ids = torch.cat([first.sequences, ids[:, -9:]], dim=1)
        mask = torch.cat([mask, torch.ones(2, ids.shape[1] - 40, dtype=mask.dtype)], dim=1)
        second = model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **generation)
    return second.sequences.tolist(), lazy.sequences


def check(model, unsplit, name):
    schedule, ranking = WAYS[name]
    (tokens, sequences), (expected_tokens, expected) = (answer(each, schedule, ranking) for each in (model, unsplit))
    assert tokens == expected_tokens, name
    for stats, other in zip(sequences, expected, strict=True):
        assert_same_stats(stats, other)


class Own(lazyllm.Ranking):
    """Eq. 1 over the heads of this process, which differs from other processes'."""

    def observe(self, attention):
        self.importance = self.by_position(attention.layer, self.eq1(attention))

    def eq1(self, attention):
        return attention.probabilities().mean(dim=(1, 2, 3))[0]


class Together(Own, parallel=True):
    """Eq. 1 over the heads of all processes."""

    def eq1(self, attention):
        return self.over_processes(super().eq1(attention))


WAYS["own"] = STAGES, Together()
CASES = {"llama": tuple(WAYS), "phi3": ("eq1", "all"), "gemma2": ("eq1", "all")}  # which of them, by model


def main():
    for folder in sys.argv[1:]:
        model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
        assert model.tp_size == 2
        unsplit = AutoModelForCausalLM.from_pretrained(folder)
        for name in CASES[Path(folder).name]:
            check(model, unsplit, name)
            print(f"same: {Path(folder).name} {name};", flush=True)
        ids = torch.arange(3, 43)[None]
        counted = mock.patch("lazyllm.core.ranking.all_reduce", wraps=torch.distributed.all_reduce)
        with counted as reduce, lazyllm.enable(model, STAGES):
            model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
        assert reduce.call_count == 2 * 6, "one all-reduce a stage and step"
        try:
            lazyllm.enable(model, STAGES, ranking=Own())
        except lazyllm.LazyLLMError as error:
            print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    main()
