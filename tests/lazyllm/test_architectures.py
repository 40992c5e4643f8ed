"""Every causal-LM type of transformers is right under LazyLLM, or refused in one line.

Right is: what keeps every token equals the unmodified model, and a pruned generation equals one masked pass of the
unmodified eager model over the recorded active sets, whose attention ranks the tokens as the recorded ones say. A
second turn equals the unmodified model's, too, and each sequence of a batch what it is alone, or they are refused.
"""

import resource
import warnings
from contextlib import suppress
from importlib.util import find_spec

import architectures
import families
import pytest
import torch
from checks import STAGES, Replay, generate_recorded
from marks import slow

import lazyllm

ROWS = [40, 40, 24, 24, 12]
STEPS = 4
PARTS = 4
MEMORY = 8 << 30  # bytes of data: a type whose settings are not shrunk fails by itself


class Wrong(Exception):
    """A model is not right under LazyLLM, and not refused."""


def judge(case):
    """What becomes of a case: (`right`, `refused`, `wrong` or `unusable`, why)."""
    try:
        model = architectures.build(case)
    except Exception as error:
        return "unusable", repr(error)
    try:
        lazyllm.enable(model, STAGES)
        compare(model, architectures.prompt())
    except lazyllm.LazyLLMError as error:
        says = str(error)
        return "refused" if "\n" not in says and len(says) <= 300 else "wrong", says
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return "right", ""


def compare(model, ids):
    before = families.generate(model, ids, STEPS)
    kept, stats = generate_recorded(model, [(1, 1.0)], ids, STEPS)
    expect_close(kept.logits, before.logits, 1e-4, "keeping all")
    if not torch.equal(kept.sequences, before.sequences) or stats.prompt_computed != 1.0:
        raise Wrong("keeping all gives other tokens")
    pruned, stats = generate_recorded(model, STAGES, ids, STEPS)
    if stats.num_computed[0].tolist() != ROWS:
        raise Wrong(f"prefilling computes {stats.num_computed[0].tolist()} tokens")
    if max(map(_distance, pruned.logits, before.logits)) < 0.05:
        raise Wrong("pruning changes nothing, so nothing is tested")
    with suppress(lazyllm.LazyLLMError):
        second_turn(model, ids)
    with suppress(lazyllm.LazyLLMError):
        together(model, ids)
    model.set_attn_implementation("eager")
    oracle = Replay(model, pruned.sequences[:, :-1], stats)
    for step, logits in enumerate(pruned.logits):
        newest = architectures.PROMPT - 1 + step
        expect_close([logits], [oracle.logits[None, newest]], 1e-3, f"pruning in step {step}")
        for layer, keep in STAGES:
            active, survivors = stats.positions[step][layer], stats.positions[step][layer + 1]
            expected = oracle.survivors(layer, newest, active, keep)
            if len(set(survivors.tolist()) ^ set(expected.tolist())) > 2:
                raise Wrong(f"step {step} ranks the tokens otherwise than the attention of layer {layer}")


def second_turn(model, ids):
    """Compare a second turn of one text, and of two, with everything kept."""

    def turns(ids):
        first = families.generate(model, ids, 2)
        longer = torch.cat([first.sequences, ids[:, :5]], dim=1)
        return families.generate(model, longer, 2, past_key_values=first.past_key_values).logits

    for texts in (ids, torch.cat([ids, ids.flip(1)])):
        expected = turns(texts)
        with lazyllm.enable(model, ""):
            expect_close(turns(texts), expected, 1e-4, f"a second turn of {len(texts)}")


def together(model, ids):
    """A batch of two lengths, pruned."""
    mask = torch.ones(2, architectures.PROMPT, dtype=torch.int64)
    mask[1, :13] = 0
    with lazyllm.enable(model, STAGES):
        actual = families.generate(model, ids.expand(2, -1), STEPS, mask)
        for row, given in enumerate((ids, ids[:, 13:])):
            alone = families.generate(model, given, STEPS)
            expect_close([step[row, None] for step in actual.logits], alone.logits, 1e-3, f"sequence {row} of a batch")


def expect_close(logits, expected, tolerance, what):
    for one, other in zip(logits, expected, strict=True):
        if not _distance(one, other) < tolerance:  # not-a-number is wrong, too
            raise Wrong(f"{what} is {_distance(one, other):.2g} off")


def _distance(one, other):
    return (one.float() - other.float()).abs().max().item()


@pytest.fixture
def limited():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_architecture_is_right_or_refused_in_one_line(limited, part):
    warnings.simplefilter("ignore")
    actual = {case: judge(case) for case in architectures.cases()[part::PARTS]}
    missing = {kind for kind, package in architectures.UNUSABLE.items() if package is None or not find_spec(package)}
    wrong = {
        case: outcome
        for case, outcome in actual.items()
        if outcome[0] not in ("right", "refused", *(["unusable"] if case in missing else []))
        or architectures.is_right(case) > (outcome[0] == "right")
    }
    assert not wrong, "\n".join(f"{case}: {kind} {why}" for case, (kind, why) in wrong.items())


@pytest.mark.parametrize("case", ["llama", "llama4_text/full", "mistral/narrow", "gpt_oss", "falcon", "mamba"])
def test_some_architectures(case):
    kind, why = judge(case)
    assert kind == ("right" if architectures.is_right(case) else "refused"), why


@pytest.mark.parametrize("case", ["gemma3_text/narrow", slow("gpt_oss/narrow"), slow("mistral/narrow")])
def test_the_defaults_fit_windows_smaller_than_the_prompt(case):
    model, ids = architectures.build(case), architectures.prompt()
    expected = families.generate(model, ids, 2).sequences
    for schedule, ranking in (
        ("23%:0.6,50%:0.6", lazyllm.AttentionRanking()),
        ("23%:0.6,50%:0.6", lazyllm.plus()),
        ("23%:0.6,50%:0.6", lazyllm.AttentionRanking(revive=False)),
        ("16%:0.5", lazyllm.StaticRanking()),
    ):
        with lazyllm.enable(model, schedule, ranking=ranking) as lazy:
            families.generate(model, ids, 2)
        assert lazy.stats.active[0, -1] < architectures.PROMPT
        with lazyllm.enable(model, "16%:1", ranking=ranking):
            assert torch.equal(families.generate(model, ids, 2).sequences, expected)
