"""`lazybench match`: the settings with which a method reaches a speedup."""

import json
import math
import re
import shlex

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from peers import build
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig

from lazybench.config import CONF
from lazybench.errors import LazyBenchError
from lazybench.matching import tuning
from lazybench.matching.speedups import ComputedSpeedups, MeasuredSpeedups, Speedups, Trial
from lazybench.methods import build_method
from lazybench.model.cost import operations
from lazyllm import PruningSchedule

METHODS = "lazybench.methods"


class Curve(Speedups):
    """A method whose speedup is a function of the share that it prunes."""

    def __init__(self, speedup):
        super().__init__(build_method({"_target_": f"{METHODS}.random_drop.RandomDrop", "name": "made_up"}), None)
        self.speedup = speedup

    def measure(self, share):
        return Trial(share, self.speedup(share), 6)


@given(
    wanted=st.floats(1.2, 6),
    fixed=st.floats(0, 0.15),
    power=st.floats(0.3, 3),
)
def test_any_speedup_within_reach_is_found(wanted, fixed, power):
    # Time falls from 1 to `fixed` as more is pruned, in a straight line or not.
    curve = Curve(lambda share: 1 / (fixed + (1 - fixed) * (1 - share) ** power))
    if curve.speedup(0.98) < 1.05 * wanted:
        return
    assert curve.find(wanted, 0.02).speedup == pytest.approx(wanted, rel=0.02)
    assert len(curve.trials) <= 12


def test_a_speedup_out_of_reach_is_named():
    with pytest.raises(LazyBenchError, match=r"98% of the prompt pruned .* 1\.96, so 3 is out of reach"):
        Curve(lambda share: 1 / (1 - share / 2)).find(3, 0.02)


def test_a_speedup_that_goes_in_steps_gives_the_nearest():
    assert Curve(lambda share: 1.5 if share < 0.6 else 2.6).find(2, 0.02).speedup == 1.5


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("random_drop.RandomDrop", {"keep": 0.25}),
        ("static_pruning.StaticPruning", {"keep": 0.25, "layer": "16%"}),
        ("prompt_compression.PromptCompression", {"ratio": 0.75}),
    ],
)
def test_a_method_prunes_as_much_as_asked(target, expected):
    changed = build_method({"_target_": f"{METHODS}.{target}", "name": "mine"}).pruning(0.75)
    assert {key: getattr(changed, key) for key in expected} == expected
    assert changed.name == "mine"


@pytest.mark.parametrize("share", [0.3, 0.75, 0.95])
def test_all_stages_of_a_fold_scale_by_one_power(share):
    target = f"{METHODS}.lazyllm.LazyLLM"
    folds = [
        {"method": {"_target_": target, "name": "lazyllm", "schedule": schedule}, "records": [str(fold)]}
        for fold, schedule in enumerate(["3:0.6,7:0.7", "5:0.4"])
    ]
    settings = {"budget": "2x", "folds": folds}
    method = build_method({"_target_": f"{METHODS}.calibrated.Calibrated", "name": "lazyllm", **settings})
    scaled = method.pruning(share)
    schedules = [PruningSchedule.parse(fold["method"]["schedule"], 30) for fold in scaled.folds]
    assert [[stage.layer for stage in schedule.stages] for schedule in schedules] == [[3, 7], [5]]
    first, second = schedules[0].stages
    assert math.log(first.keep) / math.log(0.6) == pytest.approx(math.log(second.keep) / math.log(0.7), rel=0.02)
    assert [schedule.fractions[-1] for schedule in schedules] == pytest.approx([1 - share] * 2, rel=0.02)
    assert [fold["records"] for fold in scaled.folds] == [["0"], ["1"]]
    with torch.device("meta"):
        model = build(0, num_hidden_layers=30)
    assert method.layer_tokens(model, 100) == [100] * 4 + [60] * 4 + [42] * 22
    assert scaled.budget.startswith("2x, pruning 0.")


@pytest.fixture
def call(lazybench, tiny_model, tmp_path):
    """Call `lazybench match` on the tiny model; returns (exit code, what it printed, stderr)."""

    def call(*words: str):
        model = (f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=300")
        settings = ("data.limit=1", "data.tokens=512", "records=2", "cpu_share=0", f"output={tmp_path / 'matches'}")
        return lazybench("match", *model, *settings, *words)

    return call


def test_a_matched_method_runs_and_the_same_command_resumes(call, lazybench, monkeypatch, tmp_path):
    words = ("method.layer=0", "speedups=[1.1]", "tolerance=0.5", "task=lcc")
    code, out, err = call(*words)
    assert code == 0, err
    matched = tmp_path / "matches" / "method" / "static_pruning_1.1x.yaml"
    text = matched.read_text()
    assert text.startswith("# TTFT speedup ")
    assert str(tmp_path) not in text
    written = yaml.safe_load(text)
    assert written["_target_"] == "lazybench.methods.static_pruning.StaticPruning"
    assert written["layer"] == 0
    (kept,) = (tmp_path / "matches" / "measured").iterdir()
    table = pd.read_csv(kept)
    (row,) = table[(1 - table["share"] - written["keep"]).abs() < 1e-6].to_dict("records")
    assert f"{row['speedup']:.2f}x with layer=0 keep={written['keep']}" in out
    # The printed command has the model, data and limits that were given.
    run_words = shlex.split(out.strip().splitlines()[-1])[3:]
    assert set(run_words) >= {"model.limit=300", "data.limit=1", "data.tokens=512", "model.name=tiny"}
    code, out, err = lazybench(*run_words, "timing.warmup=0", "timing.paired=false", f"output={tmp_path / 'runs'}")
    assert code == 0, err
    assert "method static_pruning" in out
    monkeypatch.setattr("lazybench.matching.speedups.undisturbed", None)  # nothing is timed again
    code, _, err = call(*words)
    assert code == 0, err
    assert matched.read_text() == text


@pytest.fixture
def halved(monkeypatch):
    """Any method halves the time at most."""

    monkeypatch.setattr(MeasuredSpeedups, "measure", lambda self, share: Trial(share, 1 / (1 - share / 2), 2))


def test_a_matched_method_is_called_as_its_config_is(call, tmp_path):
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "early.yaml").write_text("defaults: [static_pruning]\nlayer: 0\n")
    words = ("--config-dir", str(tmp_path / "own"), "method=early", "speedups=[1.1]", "tolerance=0.5")
    code, out, err = call(*words)
    assert code == 0, err
    assert "method=early_1.1x" in out
    written = tmp_path / "matches" / "method" / "early_1.1x.yaml"
    assert yaml.safe_load(written.read_text())["name"] == "static_pruning"


def test_timed_prompts_are_of_as_many_datasets_as_possible(call, halved, monkeypatch):
    prompts, measure = [], MeasuredSpeedups.measure
    monkeypatch.setattr(
        MeasuredSpeedups, "measure", lambda self, share: prompts.extend(self.prompts) or measure(self, share)
    )
    assert call("task=all", "data.limit=4", "records=6", "speedups=[1.5]")[0] == 0
    assert len({prompt.record.dataset for prompt in prompts[:6]}) == 6


def test_a_speedup_out_of_reach_leaves_the_others(call, halved, tmp_path):
    code, _, err = call("method.layer=0", "speedups=[3,1.5]")
    assert code == 0, err
    assert "warning: method static_pruning: with 98% of the prompt pruned" in err
    assert [path.name for path in (tmp_path / "matches" / "method").iterdir()] == ["static_pruning_1.5x.yaml"]
    code, _, err = call("method.layer=0", "speedups=[3]", f"output={tmp_path / 'others'}")
    assert code == 2
    assert "so 3 is out of reach" in err


def test_each_half_of_the_records_is_tuned_for_the_other(call, lazybench, monkeypatch, tmp_path):
    words = ("tune=true", "method=fastkv", "speedups=[1.5]", "task=code", "data.limit=4", "tolerance=0.005")
    code, out, err = call(*words)
    assert code == 0, err
    assert re.search(r"1\.5x: layer=\d+% keep=0\.\d+.* on the other half's records", out)
    text = (tmp_path / "matches" / "method" / "fastkv_1.5x.yaml").read_text()
    written, tried = yaml.safe_load(text), pd.read_csv(tmp_path / "matches" / "fastkv_1.5x.csv")
    first, second = written["folds"]
    assert written["found"]["records"] == [2, 2]
    assert not set(first["records"]) & set(second["records"])
    for half, fold in (("first", first), ("second", second)):
        rows = tried[tried["half"] == half]
        assert len(rows) == written["found"]["tried"] == 12
        assert set(rows["records"]) == {1, 2}
        best = rows[rows["best"]]
        assert best["kl"].item() == rows.loc[rows["records"] == 2, "kl"].min()
        assert f"layer={fold['method']['layer']} keep={fold['method']['keep']}" in best["settings"].item()
    monkeypatch.setattr("lazybench.matching.tuning.divergence", None)  # nothing is measured again
    run_words = shlex.split(out.strip().splitlines()[-1])[3:]
    code, out, err = call(*words)
    assert code == 0, err
    assert (tmp_path / "matches" / "method" / "fastkv_1.5x.yaml").read_text() == text
    code, out, err = lazybench(*run_words, "timing.warmup=0", "timing.paired=false", f"output={tmp_path / 'runs'}")
    assert code == 0, err
    assert "calibrated for 1.5x: found layer=" in out


def test_a_record_that_was_edited_is_measured_again(call, monkeypatch, tmp_path):
    words = ("tune=true", "method=fastkv", "speedups=[1.5]", "task=code", "data.limit=4", "tolerance=0.005")
    assert call(*words)[0] == 0
    (kept, *_) = (tmp_path / "matches" / "measured").glob("*.jsonl")
    before, *others = kept.read_text().splitlines()
    kept.write_text("\n".join([json.dumps(json.loads(before) | {"record": "as it was"}), *others]) + "\n")
    measured = []
    divergence = tuning.divergence
    monkeypatch.setattr(tuning, "divergence", lambda *args: measured.append(args) or divergence(*args))
    assert call(*words)[0] == 0
    assert len(measured) == 1


def test_operations_leave_out_layers_that_see_images():
    text = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 64}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    vision = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.device("meta"):
        alone = Gemma3ForCausalLM(Gemma3TextConfig(**text))
        both = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision))
    assert operations(both, [100, 50]) == operations(alone, [100, 50]) > 0


@pytest.mark.parametrize("wanted", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("method", ["fastkv", "lazyllm"])
def test_trials_are_as_fast_by_their_operations(wanted, method):
    with torch.device("meta"):
        model = build(0, num_hidden_layers=24)
    layer = sum(weight.numel() for weight in model.model.layers[0].parameters())
    width = model.config.num_attention_heads * model.config.head_dim

    def operations(by_layer):
        return sum(2 * layer * tokens + 2 * width * tokens**2 for tokens in by_layer)

    trials = build_method(yaml.safe_load((CONF / f"method/{method}.yaml").read_text())).trials()
    assert len(trials) == 12
    reached = 0
    for trial in trials:
        try:
            share = ComputedSpeedups(trial, model, [1000]).find(wanted, 0.005).share
        except LazyBenchError:
            continue
        pruned = operations(trial.pruning(share).layer_tokens(model, 1000))
        assert operations([1000] * 24) / pruned == pytest.approx(wanted, rel=0.005)
        reached += 1
    assert reached >= 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("speedups=[1]",), "speedups="),
        (("speedups=[]",), "give some, each above 1"),
        (("tolerance=0",), "tolerance=0"),
        (("records=0",), "records=0"),
        (("method=baseline",), "method baseline cannot be matched: it has no `keep`"),
        (("method=lazyllm", "method.schedule=[1:1.0]"), "prunes nothing"),
        (("method.layer=9",), "method.layer"),
        (("method=prompt_compression", "tune=true"), "method prompt_compression does not say what it computes"),
        (("method=fastkv", "tune=true", "speedups=[90]"), "so 90 is out of reach"),
        (("method=fastkv", "tune=true", "task=lcc"), "a half of the records is empty"),
        (("method=fastkv", "tune=true", "tolerance=1e-9"), "no trial of fastkv comes as near to 2x"),
    ],
)
def test_what_cannot_be_matched_costs_one_line(call, words, message, tmp_path):
    code, _, err = call(*words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("matches/method/*"))
