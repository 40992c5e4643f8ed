"""SpecPrefill: which chunks a draft keeps, by its eager attention, and what the model makes of them there."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import Watched, build, generated, pooled, prompt_of, random_ids
from support import byte_tokenizer, one_line, save_tiny_model
from transformers import AutoModelForCausalLM

from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.base import answer
from lazybench.methods.specprefill import SpecPrefill
from lazybench.model.decoding import Decoder


@torch.no_grad()
def importance(model, ids, look_ahead, pooling, stops=()):
    """The definition, head by head: `model` attends eagerly, and is given all tokens at once at each step."""
    tokens, whole, by_query = ids.shape[1], ids, []
    for _ in range(look_ahead):
        output = model(whole, output_attentions=True)
        heads = []
        for layer in output.attentions:
            for head in layer[0, :, -1, :tokens]:
                heads.append(pooled(head / head.sum(), pooling))  # softmax over the prompt alone
        by_query.append(torch.stack(heads).amax(dim=0))
        following = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        if int(following) in stops:
            break
        whole = torch.cat([whole, following], dim=1)
    return torch.stack(by_query).mean(dim=0)


def best_chunks(scores, chunk, keep):
    """Positions in the best chunks, the last one among them."""
    chunks = [list(range(start, min(start + chunk, len(scores)))) for start in range(0, len(scores), chunk)]
    count = math.ceil(keep * len(chunks) - 1e-9)
    mean = {index: sum(float(scores[place]) for place in of) / len(of) for index, of in enumerate(chunks[:-1])}
    chosen = [*sorted(mean, key=mean.get, reverse=True)[: count - 1], len(chunks) - 1]
    return [place for index in sorted(chosen) for place in chunks[index]]


@torch.no_grad()
def at_positions(model, ids, places, new_tokens):
    """Greedy answer to a shortened prompt whose tokens keep their places; all is computed anew at each step."""
    answer = []
    for _ in range(new_tokens):
        logits = model(ids, position_ids=torch.tensor([places]), attention_mask=torch.ones_like(ids)).logits[:, -1]
        answer.append(logits)
        ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
        places = [*places, places[-1] + 1]
    return ids[0, -new_tokens:].tolist(), torch.cat(answer)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 45), keep=st.sampled_from([0.1, 0.5, 0.8]))
def test_it_keeps_the_best_chunks_where_they_stood(seed, length, keep):
    method = SpecPrefill("specprefill", keep=keep, look_ahead=3, pooling=3, chunk=4)
    output, watched, ids = generated(method, seed, length)
    eager = build(seed, "eager")
    kept = best_chunks(importance(eager, ids, 3, 3), 4, keep)
    if len(kept) == length:
        assert torch.equal(watched.given[0], ids)
        assert output.prompt_computed == 1
    else:
        assert watched.given[0].tolist() == ids[:, kept].tolist()
        assert watched.places[0]["positions"].tolist() == [kept]
        assert output.prompt_computed == pytest.approx(1 + len(kept) / length)  # both passes are the model's own
    tokens, logits = at_positions(eager, ids[:, kept], kept, 3)
    assert output.tokens == tokens
    torch.testing.assert_close(watched.logits, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_draft_that_ends_is_asked_no_further(stop):
    model, ids = build(6), random_ids(6, 40)
    said = Decoder(model, max_new_tokens=3)(ids)
    assert len(set(said)) == 3
    model.generation_config.eos_token_id = [said[stop], 999]
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    method = SpecPrefill("specprefill", keep=0.3, look_ahead=6, pooling=1, chunk=4)
    watched = Watched(Decoder(model, max_new_tokens=1))
    answer(method, prompt_of(ids), watched, 0)
    assert len(passes) == stop + 1 + 1  # and one of the model
    kept = best_chunks(importance(build(6, "eager"), ids, 6, 1, said[stop : stop + 1]), 4, 0.3)
    assert watched.places[0]["positions"].tolist() == [kept]


def test_a_draft_of_its_own_picks_and_counts_in_the_times_alone(tmp_path):
    tokenizer = byte_tokenizer()
    draft = AutoModelForCausalLM.from_pretrained(
        save_tiny_model(tmp_path, tokenizer, layers=2), attn_implementation="eager"
    ).eval()
    model = build(7, vocab_size=len(tokenizer))
    method = SpecPrefill("specprefill", draft=str(tmp_path), keep=0.5, look_ahead=2, pooling=5, chunk=8)
    method.prepare(model)
    watched, ids = Watched(Decoder(model, max_new_tokens=2)), random_ids(7, 60)
    output = answer(method, prompt_of(ids, tokenizer), watched, 0)
    stops = [draft.generation_config.eos_token_id]
    kept = best_chunks(importance(draft, ids, 2, 5, stops), 8, 0.5)
    assert watched.places[0]["positions"].tolist() == [kept]
    assert output.prompt_computed == pytest.approx(len(kept) / 60)


def test_a_draft_with_another_vocabulary_is_refused_in_one_line(tmp_path, run, capsys):
    save_tiny_model(tmp_path / "other", byte_tokenizer(pad_token="<pad>"))
    capsys.readouterr()
    code, _, err = run("method=specprefill", f"method.draft={tmp_path / 'other'}", "method.keep=0.5")
    assert "method.draft" in one_line(code, err)
    assert "another vocabulary" in err
    code, _, err = run("method=specprefill", "method.draft=./nowhere")
    assert "method.draft: model.path=./nowhere: no such folder" in one_line(code, err)


def test_a_prompt_that_the_draft_cannot_hold_fails_the_record():
    model = build(1, max_position_embeddings=40)
    method = SpecPrefill("specprefill", look_ahead=8, chunk=4)
    with pytest.raises(RecordFailure, match="44 tokens of prompt and look-ahead are more than the draft's 40"):
        answer(method, prompt_of(random_ids(1, 36)), Decoder(model, max_new_tokens=1), 0)


@pytest.mark.parametrize("places", [[[0, 1]], [[0.0, 1.0, 2.0]], [[0, 2, 2]], [[-1, 0, 1]]])
def test_positions_of_another_form_are_refused(places):
    with pytest.raises(LazyBenchError, match="positions"):
        Decoder(build(0), max_new_tokens=1)(random_ids(0, 3), positions=torch.tensor(places))


def test_flash_attention_takes_no_gaps():
    model = build(0)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(LazyBenchError, match=r"set model\.attention=sdpa"):
        SpecPrefill("specprefill").check(model)


def test_a_draft_that_was_changed_is_another_run(run, tiny_model, tmp_path):
    draft = shutil.copytree(tiny_model, tmp_path / "draft")
    words = ("method=specprefill", f"method.draft={draft}", "data.limit=1", "timing.warmup=0", "timing.paired=false")
    assert run(*words)[0] == 0
    assert "finished earlier" in run(*words)[1]
    (draft / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes() + b"0")
    assert "finished earlier" not in run(*words)[1]
