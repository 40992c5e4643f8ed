"""`lazybench match`: strengths for speedups."""

from __future__ import annotations

import math
import re
import shlex
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lazybench.cli.match import Trial, match
from lazybench.errors import LazyBenchError
from lazybench.methods import build_method
from lazyllm import PruningSchedule

METHODS = "lazybench.methods"


class Curve:
    """A method whose speedup is a function of the share that it prunes."""

    def __init__(self, speedup):
        self.speedup, self.trials, self.method = speedup, {}, SimpleNamespace(name="made up")

    def at(self, share):
        share = round(share, 4)
        self.trials[share] = Trial(share, self.speedup(share), 6)
        return self.trials[share]


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
    found = match(curve, wanted, 0.02)
    assert found.speedup == pytest.approx(wanted, rel=0.02)
    assert len(curve.trials) <= 12


def test_a_speedup_out_of_reach_is_named():
    with pytest.raises(LazyBenchError, match=r"98% of the prompt pruned .* 1\.96, so 3 is out of reach"):
        match(Curve(lambda share: 1 / (1 - share / 2)), 3, 0.02)


def test_a_speedup_that_goes_in_steps_gives_the_nearest():
    found = match(Curve(lambda share: 1.5 if share < 0.6 else 2.6), 2, 0.02)
    assert found.speedup == 1.5


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


@given(share=st.floats(0.3, 0.95))
def test_all_stages_and_folds_prune_more_by_one_power(share):
    keeps = {"3:0.6,7:0.7": [0.6, 0.7], "5:0.4": [0.4]}
    folds = [{"schedule": of, "importance": "eq1", "records": [str(place)]} for place, of in enumerate(keeps)]
    given = {"budget": "speedup >= 2", "folds": folds}
    method = build_method({"_target_": f"{METHODS}.calibrated.Calibrated", "name": "lazyllm", **given})
    changed = method.pruning(share)
    after = [PruningSchedule.parse(fold["schedule"], 30) for fold in changed.folds]
    assert [[stage.layer for stage in of.stages] for of in after] == [[3, 7], [5]]
    powers = [
        math.log(stage.keep) / math.log(keep)
        for of, before in zip(after, keeps.values(), strict=True)
        for stage, keep in zip(of.stages, before, strict=True)
    ]
    assert powers == pytest.approx([powers[0]] * 3, rel=0.02)
    assert math.prod(of.fractions[-1] for of in after) == pytest.approx((1 - share) ** 2, rel=0.02)
    assert [fold["records"] for fold in changed.folds] == [["0"], ["1"]]
    assert changed.budget.startswith("speedup >= 2, keeps^")


@pytest.fixture
def call(lazybench, tiny_model, tmp_path):
    """Call `lazybench match` on the tiny model; returns (exit code, what it printed, stderr)."""

    def call(*words: str):
        model = (f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=300")
        settings = ("data.limit=1", "data.tokens=512", "records=2", "cpu_share=0", f"output={tmp_path / 'matches'}")
        return lazybench("match", *model, *settings, *words)

    return call


def test_a_matched_method_runs_and_the_same_command_goes_on(call, lazybench, monkeypatch, tmp_path):
    asked = ("method.layer=0", "speedups=[1.1]", "tolerance=0.5", "task=lcc")
    code, out, err = call(*asked)
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
    assert f"{row['speedup']:.2f}x with keep={written['keep']}" in out
    # The command that it ends with is whole: model, data and limits are those that were given.
    words = shlex.split(out.strip().splitlines()[-1])[3:]
    assert set(words) >= {"model.limit=300", "data.limit=1", "data.tokens=512", "model.name=tiny"}
    code, out, err = lazybench(*words, "timing.warmup=0", "timing.paired=false", f"output={tmp_path / 'runs'}")
    assert code == 0, err
    assert "method static_pruning" in out
    monkeypatch.setattr("lazybench.cli.match.timed", None)  # nothing is timed again
    code, _, err = call(*asked)
    assert code == 0, err
    assert matched.read_text() == text


@pytest.fixture
def half_as_fast(monkeypatch):
    """Any method's speedup is computed: it halves the time at most."""

    def at(self, share):
        return self.trials.setdefault(round(share, 4), Trial(round(share, 4), 1 / (1 - share / 2), 2))

    monkeypatch.setattr("lazybench.cli.match.Speedups.at", at)


def test_a_method_stands_beside_static_pruning_at_its_speed(call, half_as_fast):
    code, out, err = call("method=random_drop", "speedups=[1.5]")
    assert code == 0, err
    assert re.search(
        r"(loses to|beats) static pruning at 1.5\dx \(keep=0\.\d+\): KL [\d.]+ against [\d.]+ on these", out
    )


def test_what_is_matched_is_called_as_its_config_is(call, tmp_path):
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "early.yaml").write_text("defaults: [static_pruning]\nlayer: 0\n")
    words = ("--config-dir", str(tmp_path / "own"), "method=early", "speedups=[1.1]", "tolerance=0.5")
    code, out, err = call(*words)
    assert code == 0, err
    assert "method=early_1.1x" in out
    written = tmp_path / "matches" / "method" / "early_1.1x.yaml"
    assert yaml.safe_load(written.read_text())["name"] == "static_pruning"


def test_a_speedup_out_of_reach_leaves_the_others(call, half_as_fast, tmp_path):
    code, _, err = call("method.layer=0", "speedups=[3,1.5]")
    assert code == 0, err
    assert "warning: method static_pruning: with 98% of the prompt pruned" in err
    assert [path.name for path in (tmp_path / "matches" / "method").iterdir()] == ["static_pruning_1.5x.yaml"]
    code, _, err = call("method.layer=0", "speedups=[3]", f"output={tmp_path / 'others'}")
    assert code == 2
    assert "so 3 is out of reach" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("speedups=[1]",), "speedups="),
        (("speedups=[]",), "give some, each above 1"),
        (("tolerance=0",), "tolerance=0"),
        (("records=0",), "records=0"),
        (("method=baseline",), "method baseline cannot be matched: it has no `keep`"),
        (("method=snapkv",), "method snapkv cannot be matched: whatever it keeps, TTFT is the unmodified model's"),
        (("method=lazyllm", "method.schedule=[1:1.0]"), "prunes nothing"),
        (("method.layer=9",), "method.layer"),
    ],
)
def test_what_cannot_be_matched_is_said_in_one_line(call, words, said, tmp_path):
    code, _, err = call(*words)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("matches/method/*"))
