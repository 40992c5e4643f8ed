"""Outputs of tokens that LazyLLM does not compute are refused, unless the newest token's alone are asked for."""

from __future__ import annotations

import families
import pytest
import torch
import transformers
from refusals import refuse

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


def under(model, call, **kwargs):
    def work():
        with lazyllm.enable(model, STAGES, **kwargs), torch.no_grad():
            return call()

    return work


@pytest.mark.parametrize("kind", ["SequenceClassification", "QuestionAnswering", "TokenClassification"])
def test_heads_that_read_other_tokens_are_refused(kind):
    model = getattr(transformers, f"LlamaFor{kind}")(families.config("llama"))
    refuse("other outputs", lambda: lazyllm.enable(model, STAGES))
    refuse("other outputs", lambda: lazyllm.enable(model, STAGES, newest_only=True))


def test_a_decoder_without_a_head_is_taken_if_the_newest_token_is_enough(model, ids):
    decoder = transformers.LlamaModel(families.config("llama")).eval()
    decoder.load_state_dict(model.model.state_dict())
    refuse("no language-modelling head", lambda: lazyllm.enable(decoder, STAGES))
    hidden = under(decoder, lambda: decoder(ids).last_hidden_state, newest_only=True)()
    assert hidden.shape == (1, 1, 48)
    logits = under(model, lambda: model(ids, logits_to_keep=1).logits)()
    assert torch.allclose(model.lm_head(hidden), logits)


def test_a_decoder_called_past_its_head_is_refused(model, ids):
    refuse("the decoder was called by itself", under(model, lambda: model.model(ids)))
    refuse("the decoder was called by itself", under(model, lambda: model.model(ids, past_key_values=None)))
    assert under(model, lambda: model.model(ids).last_hidden_state.shape, newest_only=True)() == (1, 1, 48)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_logits_of_every_token_are_refused(family, ids):
    model = families.build(family)
    for call in (
        lambda: model(ids),
        lambda: model(ids, None, None),
        lambda: model(input_ids=ids, logits_to_keep=0),
        lambda: model(inputs_embeds=model.get_input_embeddings()(ids), use_cache=True),
    ):
        refuse("logits of every token", under(model, call))
    refuse("more than the newest", under(model, lambda: model(ids, logits_to_keep=2)))
    refuse("more than the newest", under(model, lambda: model(ids, logits_to_keep=torch.tensor([0, 39]))))
    for wanted in (-5, None, slice(-1, None), [39], "1"):
        refuse("more than the newest", under(model, lambda wanted=wanted: model(ids, logits_to_keep=wanted)))
    refuse("a loss was asked for", under(model, lambda: model(ids, labels=ids)))
    refuse("a loss was asked for", under(model, lambda: model(ids, labels=ids), newest_only=True))


def test_logits_of_the_newest_token_can_be_asked_for(model, ids):
    asked = under(model, lambda: model(ids, logits_to_keep=1).logits)()
    accepted = under(model, lambda: model(ids).logits, newest_only=True)()
    assert asked.shape == (1, 1, families.VOCABULARY)
    assert torch.equal(asked, accepted)


def test_one_token_is_every_token(model, ids):
    def loop():
        cache = model(ids, logits_to_keep=1).past_key_values
        return model(torch.tensor([[5]]), past_key_values=cache).logits.shape

    assert under(model, loop)() == (1, 1, families.VOCABULARY)


def test_generation_asks_for_nothing_else_whatever_the_models_forward_takes(ids):
    """GPT-2's way of reshaping its output must not pass the newest token's logits off as every token's."""
    model = families.build("gpt2")
    with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 1.0)])):
        pruned = families.generate(model, ids, 4)
    assert torch.equal(pruned.sequences, families.generate(model, ids, 4).sequences)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_processor_that_reads_every_tokens_logits_is_refused(family, ids):
    model = families.build(family)

    def score(input_ids, scores):
        return scores + model(input_ids).logits.log_softmax(-1)[:, -1]

    refuse("logits of every token", under(model, lambda: families.generate(model, ids, 2, logits_processor=[score])))


def test_gpt2_gives_the_newest_tokens_output_alone_too(ids):
    model = families.build("gpt2")
    assert under(model, lambda: model(ids).logits.shape, newest_only=True)() == (1, 1, families.VOCABULARY)
    assert under(model, lambda: model.transformer(ids)[0].shape, newest_only=True)() == (1, 1, 48)


@pytest.mark.parametrize("what", ["output_hidden_states", "output_attentions"])
def test_outputs_of_every_layer_are_refused_wherever_they_are_asked_for(model, ids, what):
    refuse(what, under(model, lambda: model.model(ids, **{what: True}), newest_only=True))
    asking = families.build("llama", attention="eager")
    setattr(asking.config, what, True)
    refuse(what, under(asking, lambda: families.generate(asking, ids, 2)))
    mixtral = families.build("mixtral", output_router_logits=True)
    refuse("output_router_logits", under(mixtral, lambda: families.generate(mixtral, ids, 2)))
