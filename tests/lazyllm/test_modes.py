"""A model before, during and after a `with`: entering and leaving, copies, and what is put on top."""

from __future__ import annotations

import copy
import pickle
import re

import families
import torch
from refusals import refuse

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])
NEVER = "never (entered|started)"


def test_sessions_are_entered_before_they_are_left(model):
    session = lazyllm.enable(model, STAGES)
    refuse("never entered", lambda: session.__exit__(None, None, None))
    with session:
        pass
    with lazyllm.enable(model, STAGES):
        session.__exit__(None, None, None)  # once more, which leaves the other one alone
        assert model.config._attn_implementation == "lazyllm"
    assert model.config._attn_implementation == "sdpa"


def test_what_changed_between_enable_and_with_is_seen(ids):
    model = families.build("llama")
    session = lazyllm.enable(model, STAGES)
    model.set_attn_implementation("flex_attention")
    refuse("flex_attention", session.__enter__)
    model.set_attn_implementation("sdpa")
    model.model = families.build("llama", seed=1).model
    refuse("taken apart", session.__enter__)


def test_copies_of_parts_are_of_the_model_as_it_was(model, ids):
    with lazyllm.enable(model, STAGES):
        config, attention = copy.deepcopy(model.config), copy.deepcopy(model.model.layers[0].self_attn)
        assert pickle.loads(pickle.dumps(model.config))._attn_implementation == "sdpa"
        shallow = copy.copy(model)
    assert config._attn_implementation == attention.config._attn_implementation == "sdpa"
    assert torch.equal(families.generate(shallow, ids, 4).sequences, families.generate(model, ids, 4).sequences)
    copy.deepcopy(shallow)


def test_a_model_is_not_copied_while_it_prunes(model, ids):
    with lazyllm.enable(model, STAGES):
        refuse("copied or pickled", lambda: copy.deepcopy(model))
        refuse("copied or pickled", lambda: pickle.dumps(model))
        cache = families.generate(model, ids, 2).past_key_values
        refuse("not pickled, nor copied", lambda: copy.copy(cache))
        refuse("not pickled", lambda: pickle.dumps(cache))
    twin = copy.deepcopy(model)
    assert torch.equal(families.generate(twin, ids, 4).sequences, families.generate(model, ids, 4).sequences)


def test_what_was_put_on_top_meanwhile_stays(model, ids):
    expected = families.generate(model, ids, 4).sequences
    calls = []
    with lazyllm.enable(model, STAGES):
        layer, inner = model.model.layers[1], model.model.layers[1].forward

        def outer(*args, **kwargs):
            calls.append(1)
            return inner(*args, **kwargs)

        layer.forward = outer
        families.generate(model, ids, 2)
    assert torch.equal(families.generate(model, ids, 4).sequences, expected)
    assert len(calls) == 2 + 4
    del layer.forward


def test_a_session_that_was_never_entered_says_so(model, ids):
    lazy = lazyllm.enable(model, STAGES)
    families.generate(model, ids, 2)  # by the unmodified model
    assert re.search(NEVER, repr(lazy))
    refuse(NEVER, lambda: lazy.stats)
    refuse(NEVER, lambda: lazy.sequences)
    with lazy:
        assert not re.search(NEVER, repr(lazy))
        refuse("nothing has been generated", lambda: lazy.stats)


def test_start_and_stop_are_the_with(model, ids):
    plain = families.generate(model, ids, 6).sequences
    with lazyllm.enable(model, STAGES) as within:
        expected = families.generate(model, ids, 6).sequences
    lazy = lazyllm.enable(model, STAGES)
    refuse(NEVER, lazy.stop)
    lazy.start()
    try:
        refuse("already enabled", lazy.start)
        assert torch.equal(families.generate(model, ids, 6).sequences, expected)
    finally:
        lazy.stop()
    assert torch.equal(lazy.stats.rows, within.stats.rows)
    lazy.stop()  # once more, which changes nothing
    assert torch.equal(families.generate(model, ids, 6).sequences, plain)
    assert model.config._attn_implementation == "sdpa"
