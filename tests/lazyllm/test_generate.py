"""Everything `generate` does, under LazyLLM."""

from __future__ import annotations

import families
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TextGenerationPipeline,
)
from transformers.generation.streamers import BaseStreamer

import lazyllm
from lazyllm import reference

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])
KEEP_ALL = lazyllm.PruningSchedule([(1, 1.0)])


def test_sampling_draws_what_the_unmodified_model_draws(model, ids):
    torch.manual_seed(7)
    before = model.generate(ids, do_sample=True, temperature=0.8, top_p=0.9, max_new_tokens=12)
    torch.manual_seed(7)
    with lazyllm.enable(model, KEEP_ALL):
        after = model.generate(ids, do_sample=True, temperature=0.8, top_p=0.9, max_new_tokens=12)
    assert torch.equal(before, after)


def test_logits_processors_stopping_criteria_and_streamers_run(model, ids):
    class Forbid(LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert scores.shape == (1, families.VOCABULARY)
            scores[:, :50] = float("-inf")
            return scores

    class StopAtFive(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([input_ids.shape[1] == ids.shape[1] + 5])

    class Collect(BaseStreamer):
        def __init__(self):
            self.pieces = []

        def put(self, value):
            self.pieces.append(value)

        def end(self):
            self.pieces.append(None)

    streamer = Collect()
    with lazyllm.enable(model, STAGES) as lazy:
        output = model.generate(
            ids,
            max_new_tokens=20,
            do_sample=False,
            logits_processor=LogitsProcessorList([Forbid()]),
            stopping_criteria=StoppingCriteriaList([StopAtFive()]),
            streamer=streamer,
        )
    assert output.shape[1] == ids.shape[1] + 5
    assert (output[0, ids.shape[1] :] >= 50).all()
    assert streamer.pieces[-1] is None
    assert len(streamer.pieces) == 1 + 5 + 1
    assert lazy.stats.rows.shape == (5, 5)


def test_end_of_sequence_ends_the_generation(model, ids):
    with lazyllm.enable(model, STAGES):
        free = families.generate(model, ids, 8).sequences[0, ids.shape[1] :].tolist()
        stop = free[3]
        stopped = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=stop)
    assert stopped[0, ids.shape[1] :].tolist() == free[: free.index(stop) + 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_with_the_unmodified_model(ids, dtype):
    model = families.build("llama", dtype=dtype)
    before = families.generate(model, ids, 8)
    with lazyllm.enable(model, KEEP_ALL):
        after = families.generate(model, ids, 8)
    assert torch.equal(before.sequences, after.sequences)
    with lazyllm.enable(model, STAGES) as lazy:
        pruned = families.generate(model, ids, 8)
        cache = pruned.past_key_values
    assert torch.isfinite(torch.stack(pruned.logits)).all()
    assert cache.generation.aux.view.dtype == dtype
    assert lazy.stats.active[0].tolist() == [40, 40, 24, 24, 12]


def test_pipelines_and_chat_templates(model):
    vocabulary = {f"w{index}": index for index in range(families.VOCABULARY)}
    vocabulary = {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "[UNK]": 3, **dict(list(vocabulary.items())[4:])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", eos_token="[EOS]")
    tokenizer.chat_template = "{% for m in messages %}w5 {{ m['content'] }} w6 {% endfor %}"
    pipeline = TextGenerationPipeline(model=model, tokenizer=tokenizer)

    def answer():
        question = [{"role": "user", "content": " ".join(f"w{index}" for index in range(10, 60))}]
        return pipeline(question, max_new_tokens=6, do_sample=False)

    plain = answer()
    with lazyllm.enable(model, KEEP_ALL):
        assert answer() == plain
    with lazyllm.enable(model, STAGES) as lazy:
        answer()
    assert lazy.stats.prompt_length == 52
    assert lazy.stats.rows[0].tolist() == [52, 52, 32, 32, 16]


def test_generations_follow_each_other_in_one_session(model, ids):
    with lazyllm.enable(model, STAGES) as lazy:
        first = families.generate(model, ids, 6)
        rows = lazy.stats.rows
        families.generate(model, families.prompt(20, seed=3), 4)
        assert lazy.stats.rows.shape == (4, 5)
        again = families.generate(model, ids, 6)
    assert torch.equal(first.sequences, again.sequences)
    assert torch.equal(rows, lazy.stats.rows)


def test_a_loop_of_ones_own_gives_the_same_tokens(model, ids):
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, ids, 6).sequences[0, ids.shape[1] :].tolist()
        tokens, cache, step = [], None, ids
        for _ in range(6):
            output = model(step, past_key_values=cache, logits_to_keep=1)
            assert output.logits.shape == (1, 1, families.VOCABULARY)
            step, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
            tokens.append(int(step))
    assert tokens == expected


def test_input_embeddings_in_place_of_ids(model, ids):
    with lazyllm.enable(model, STAGES):
        by_ids = families.generate(model, ids, 6).sequences[0, ids.shape[1] :]
        embeddings = model.get_input_embeddings()(ids)
        by_embeddings = model.generate(inputs_embeds=embeddings, max_new_tokens=6, do_sample=False, eos_token_id=None)[
            0
        ]
    assert torch.equal(by_ids, by_embeddings)


def test_recorded_positions_start_with_the_whole_prompt(model, ids):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        families.generate(model, ids, 3)
    assert lazy.stats.positions[0][0].tolist() == list(range(40))
    assert [len(lazy.stats.positions[0][layer]) for layer in range(5)] == lazy.stats.active[0].tolist()


def test_a_prompt_of_one_token_runs():
    model = families.build("llama", dtype=torch.float64)
    expected = reference.run(model, [5], [tuple(stage) for stage in STAGES.stages], 12)
    with lazyllm.enable(model, STAGES) as lazy:
        output = families.generate(model, torch.tensor([[5]]), 12).sequences
    assert output[0, 1:].tolist() == expected.tokens
    assert lazy.stats.rows.tolist() == [[len(rows) for rows in step] for step in expected.rows]
    assert lazy.stats.rows[0].tolist() == [1] * 5


@pytest.mark.parametrize(
    "asked",
    [
        {"selection": lazyllm.StaticSelection()},
        *({"selection": lazyllm.Importance(**{part: value})}
          for part, value in (("queries", 4), ("pooling", 5), ("heads", "max"), ("layers", 2), ("value_norm", True),
                              ("first", 3), ("last", 3))),
    ],
)  # fmt: skip
def test_a_prompt_of_one_token_runs_with_any_ranking(model, asked):
    """The newest token always goes on, so its answer is the unmodified model's first token."""
    prompt = torch.tensor([[5]])
    before = families.generate(model, prompt, 1).sequences
    with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.5)]), **asked):
        assert torch.equal(families.generate(model, prompt, 6).sequences[:, :2], before)


def test_continuous_batching_says_why(model, ids):
    with lazyllm.enable(model, STAGES), pytest.raises(lazyllm.LazyLLMError, match="call generate with a batch"):
        model.generate_batch(ids.tolist())


def test_training_says_what_to_call(ids):
    model = families.build("llama", attention_dropout=0.1)
    model.train()
    with lazyllm.enable(model, STAGES), pytest.raises(lazyllm.LazyLLMError, match=r"model\.eval"):
        model.generate(ids, max_new_tokens=2)
    model = families.build("llama")
    model.gradient_checkpointing_enable()
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 2)
        model.train()
        with pytest.raises(lazyllm.LazyLLMError, match="gradient checkpointing is on"):
            model.generate(ids, max_new_tokens=2)


@pytest.mark.parametrize("compiled", ["compile", "forward"])
def test_compiled_models_are_refused(compiled):
    model = families.build("llama")
    if compiled == "compile":
        model.compile(backend="eager")
    else:
        model.forward = torch.compile(model.forward, backend="eager")
    with pytest.raises(lazyllm.LazyLLMError, match="is compiled"):
        lazyllm.enable(model, STAGES)
