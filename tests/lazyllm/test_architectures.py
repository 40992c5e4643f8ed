"""Every causal-LM type of transformers is right under LazyLLM, or refused in one line.

Right is: what keeps every token equals the unmodified model, and a pruned generation equals one masked pass of the
unmodified eager model over the recorded active sets, whose attention ranks the tokens as the recorded ones say. A
second turn equals the unmodified model's, too, and each sequence of a batch what it is alone, or they are refused.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib.util import find_spec

import architectures
import pytest
import replay
import torch
import transformers
from torch import nn

import lazyllm

STAGES = [(1, 0.6), (3, 0.5)]
ROWS = [40, 40, 24, 24, 12]
STEPS = 6
BATCHES = 6
# Of the processes that judge: bytes of data, and seconds for a batch.
MEMORY, SECONDS = 4 << 30, 300


class Wrong(Exception):
    """A model is not right under LazyLLM, and not refused."""


def judge(case):
    """What becomes of a case: (`right`, `refused`, `wrong` or `unusable`, why)."""
    ids = architectures.prompt()
    try:
        model = architectures.build(case)
        before = architectures.generate(case, model, ids, STEPS)
    except Exception as error:
        return "unusable", _said(error)
    try:
        compare(case, model, ids, before)
        outcome = "right", ""
    except lazyllm.LazyLLMError as error:
        outcome = "refused", str(error)
        if "\n" in str(error) or len(str(error)) > 300:
            outcome = "wrong", f"not refused in one line of 300 characters: {error!r}"
    except Exception as error:
        outcome = "wrong", _said(error)
    return outcome


def compare(case, model, ids, before):
    architectures.forget(case, model)
    tables = rotary_tables(model, lambda: architectures.generate(case, model, ids, STEPS))
    for stages in ([(1, 1.0)], []):
        architectures.forget(case, model)
        with lazyllm.enable(model, lazyllm.PruningSchedule(stages)) as lazy:
            kept = architectures.generate(case, model, ids, STEPS)
        expect_close(kept.logits, before.logits, 1e-4, f"keeping all with {stages}")
        if not torch.equal(kept.sequences, before.sequences) or lazy.stats.prompt_computed != 1.0:
            raise Wrong(f"keeping all with {stages} gives other tokens")
    architectures.forget(case, model)
    with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES), record_positions=True) as lazy:
        pruned = architectures.generate(case, model, ids, STEPS)
    stats = lazy.stats
    if stats.rows[0].tolist() != ROWS:
        raise Wrong(f"prefilling computes {stats.rows[0].tolist()} tokens")
    if max(_distance(one, other) for one, other in zip(pruned.logits, before.logits, strict=True)) < 0.05:
        raise Wrong("pruning changes nothing, so nothing is tested")
    architectures.forget(case, model)
    after = architectures.generate(case, model, ids, STEPS)
    if not all(torch.equal(one, other) for one, other in zip(after.logits, before.logits, strict=True)):
        raise Wrong("the model is not given back as it was")
    for more in (go_on, together):
        with suppress(lazyllm.LazyLLMError):
            more(case, model, ids)
    model.set_attn_implementation("eager")
    oracle = MaskedPass(model, tables, pruned.sequences[:, :-1], stats.positions, stats.computed)
    newest = [architectures.PROMPT - 1 + step for step in range(STEPS)]
    expect_close(pruned.logits, [oracle.logits[None, token] for token in newest], 1e-3, "pruning")
    for step, token in enumerate(newest):
        for layer, keep in STAGES:
            active, survivors = stats.positions[step][layer], stats.positions[step][layer + 1]
            expected = oracle.expected_survivors(layer, token, active, keep)
            if len(set(survivors.tolist()) ^ set(expected.tolist())) > 2:
                raise Wrong(f"step {step} ranks the tokens otherwise than the attention of layer {layer}")


def go_on(case, model, ids):
    """A second turn of one, and of two, with everything kept."""

    def turns(ids):
        architectures.forget(case, model)
        first = architectures.generate(case, model, ids, 3)
        whole = torch.cat([first.sequences, ids[:, :5]], dim=1)
        return architectures.generate(case, model, whole, 3, past_key_values=first.past_key_values).logits

    for asked in (ids, torch.cat([ids, ids.flip(1)])):
        expected = turns(asked)
        with lazyllm.enable(model, ""):
            found = turns(asked)
        expect_close(found, expected, 1e-4, f"a second turn of {len(asked)}")


def together(case, model, ids):
    """A batch of two lengths, pruned."""
    short = architectures.PROMPT - 13
    mask = torch.ones(2, architectures.PROMPT, dtype=torch.int64)
    mask[1, :13] = 0
    with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)):
        architectures.forget(case, model)
        found = architectures.generate(case, model, ids.expand(2, -1), STEPS, mask=mask)
        for row, length in enumerate((architectures.PROMPT, short)):
            architectures.forget(case, model)
            alone = architectures.generate(case, model, ids[:, -length:], STEPS)
            expect_close([step[row, None] for step in found.logits], alone.logits, 1e-3, f"sequence {row} of a batch")


def expect_close(logits, expected, tolerance, what):
    for step, (one, other) in enumerate(zip(logits, expected, strict=True)):
        if not _distance(one, other) < tolerance:  # not-a-number is wrong, too
            raise Wrong(f"{what} is {_distance(one, other):.2g} off in step {step}")


def _distance(one, other):
    return (one.float() - other.float()).abs().max().item()


def _said(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def rotary_tables(model, generate):
    """What the rotary modules of the unmodified model give for all tokens of a generation, by module and arguments.

    One pass over all of them at once gives others where the tables depend on how many tokens there are so far.
    """
    tables = {}

    def after(module, args, kwargs, output):
        key = (module, *(value for value in (*args, *kwargs.values()) if isinstance(value, str)))
        tables.setdefault(key, []).append(output if isinstance(output, tuple) else (output,))

    hooks = [part.register_forward_hook(after, with_kwargs=True) for part in _rotary(model)]
    generate()
    for hook in hooks:
        hook.remove()
    return {key: tuple(torch.cat(parts, 1) for parts in zip(*steps, strict=True)) for key, steps in tables.items()}


def _rotary(model):
    return [part for part in model.modules() if type(part).__name__.endswith("RotaryEmbedding")]


class MaskedPass(replay.Replay):
    """The replay with given rotary tables, on whichever module of a layer takes the mask."""

    def __init__(self, model, tables, *args):
        def after(module, args, kwargs, output):
            key = (module, *(value for value in (*args, *kwargs.values()) if isinstance(value, str)))
            return tables[key] if isinstance(output, tuple) else tables[key][0]

        hooks = [part.register_forward_hook(after, with_kwargs=True) for part in _rotary(model)]
        super().__init__(model, *args)
        for hook in hooks:
            hook.remove()

    def _mask(self, layer, index, visible):
        inner = [part for part in layer.modules() if part is not layer and getattr(part, "layer_idx", None) == index]
        attention = [part for part in inner if "attention_mask" in part.forward.__code__.co_varnames]
        return super()._mask(nn.ModuleList(attention[-1:]), index, visible)


def sweep(cases):
    """The outcome of each case: judged in processes of their own, under a memory limit."""
    found, left = {}, list(cases)
    while left:
        # What one process does not get to, another does; the case that ended it is not right.
        output, why = run(left)
        found |= {case: outcome for case, *outcome in map(json.loads, output.splitlines())}
        left = [case for case in left if case not in found]
        if left:
            found[left.pop(0)] = ["wrong", why]
    return found


def run(cases):
    """What `work` says in a process of its own, and how that ended."""
    command = [sys.executable, __file__, *cases]
    try:
        worker = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", f"no end after {SECONDS} seconds"
    return worker.stdout, f"the process ended with {worker.returncode}"


def work(cases):
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    # What a model prints must not come between the outcomes.
    out, sys.stdout = sys.stdout, sys.stderr
    for case in cases:
        print(json.dumps([case, *judge(case)]), file=out, flush=True)


def only(outcome, found):
    return {case for case, (kind, _) in found.items() if kind == outcome}


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_architecture_is_right_or_refused_in_one_line(batch):
    cases = architectures.cases()[batch::BATCHES]
    found = sweep(cases)
    table = "\n".join(f"{case}: {kind} {why}" for case, (kind, why) in found.items())
    assert not only("wrong", found), table
    installed = {kind for kind, (package, _) in architectures.UNUSABLE.items() if package and find_spec(package)}
    assert only("unusable", found) - installed == (architectures.UNUSABLE.keys() & set(cases)) - installed, table
    assert only("right", found) >= set(architectures.RIGHT) & set(cases), table


@pytest.mark.slow
def test_the_table_of_right_architectures_names_cases_of_the_sweep():
    assert sorted(architectures.RIGHT) == architectures.RIGHT
    assert set(architectures.RIGHT) <= set(architectures.cases())


@pytest.mark.slow
def test_a_model_too_large_fails_by_itself():
    found = sweep(["llama/huge", "gpt2"])
    assert found["llama/huge"][0] == "unusable"
    assert "memory" in found["llama/huge"][1]
    assert found["gpt2"] == ["right", ""]


@pytest.mark.parametrize("case", ["llama", "llama4_text", "mistral/narrow", "gpt_oss", "falcon", "mamba"])
def test_some_architectures(case):
    kind, why = judge(case)
    assert kind == ("right" if case in architectures.RIGHT else "refused"), why


if __name__ == "__main__":
    work(sys.argv[1:])
