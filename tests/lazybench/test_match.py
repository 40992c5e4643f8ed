"""`lazybench match`: the settings with which a method reaches a speedup."""

import json
import math
import re
import shlex

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from marks import slow
from omegaconf import OmegaConf
from peers import build
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig

from lazybench.analysis.labels import provenance
from lazybench.config import CONF
from lazybench.errors import LazyBenchError
from lazybench.matching import match
from lazybench.matching.speedups import computed_speedup, find
from lazybench.methods import build_method
from lazybench.methods.lazyllm import LazyLLM
from lazybench.methods.matched import Matched, settings_of
from lazybench.model.cost import operations
from lazybench.store.locks import Lock
from lazyllm import PruningSchedule


@given(wanted=st.floats(1.2, 6), fixed=st.floats(0, 0.15), power=st.floats(0.3, 3))
def test_any_speedup_within_reach_is_found(wanted, fixed, power):
    # Time falls from 1 to `fixed` as more is pruned, in a straight line or not.
    def measure(share):
        return 1 / (fixed + (1 - fixed) * (1 - share) ** power)

    assume(measure(0.98) >= 1.05 * wanted)
    assert find(measure, wanted, 0.02).speedup == pytest.approx(wanted, rel=0.02)


def test_a_speedup_that_changes_in_steps_gives_the_nearest():
    assert find(lambda share: 1.5 if share < 0.6 else 2.6, 2, 0.02).speedup == 1.5


@pytest.mark.parametrize("share", [0.3, 0.75, 0.95])
def test_all_stages_scale_by_one_power(share):
    settings = {"_target_": "lazybench.methods.lazyllm.LazyLLM", "name": "lazyllm", "schedule": "3:0.6,7:0.7"}
    schedule = PruningSchedule.parse(build_method(settings).pruning(share).schedule, 30)
    first, second = schedule.stages
    assert (first.layer, second.layer) == (3, 7)
    assert math.log(first.keep) / math.log(0.6) == pytest.approx(math.log(second.keep) / math.log(0.7), rel=0.02)
    assert schedule.fractions[-1] == pytest.approx(1 - share, rel=0.02)


@pytest.fixture
def matches(tmp_path):
    """The output folder."""
    return tmp_path / "matches"


@pytest.fixture
def call(lazybench, tiny_model, matches):
    """Call `lazybench match` on the tiny model; returns (exit code, stdout, stderr)."""

    def call(*words: str):
        model = (f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=300")
        settings = ("data.limit=1", "data.tokens=512", "records=2", f"output={matches}")
        return lazybench("match", *model, *settings, *words)

    return call


def test_a_matched_method_runs(call, lazybench, matches, tmp_path):
    code, out, err = call("method.layer=0", "speedups=[1.5]", "tolerance=0.005", "task=code")
    assert code == 0, err
    text = (matches / "method" / "static_pruning_1.5x.yaml").read_text()
    speedup = float(re.match(r"# speedup by operations (\d+\.\d+): 2 prompts of ", text)[1])
    assert speedup == pytest.approx(1.5, rel=0.005)
    assert str(tmp_path) not in text
    written = yaml.safe_load(text)
    assert (written["name"], written["speedup"]) == ("static_pruning", "1.5x")
    ((method, records),) = (fold.values() for fold in written["folds"])
    assert method["_target_"] == "lazybench.methods.static_pruning.StaticPruning"
    assert (method["layer"], records) == (0, [])
    assert f"1.5x: {speedup:.2f}x with layer=0 keep={method['keep']}" in out
    # The printed command has the model, data and limits that were given.
    run_words = shlex.split(out.strip().splitlines()[-1])[3:]
    assert set(run_words) >= {"model.limit=300", "data.limit=1", "data.tokens=512", "model.name=tiny"}
    code, out, err = lazybench(*run_words, "timing.per_dataset=0", f"output={tmp_path / 'runs'}")
    assert code == 0, err
    assert "method static_pruning" in out


def test_a_matched_method_is_matched_again_to_another_model(call, matches, tmp_path):
    (tmp_path / "own" / "method").mkdir(parents=True)
    schedules, hashes = ("1:0.9", "0:0.9,1:0.9"), (["a"], ["b"])
    folds = [
        {"method": LazyLLM("lazyllm", schedule=schedule), "records": records}
        for schedule, records in zip(schedules, hashes, strict=True)
    ]
    old = Matched("lazyllm", speedup="1.5x", folds=folds, found={"layers": 99, "tried": 12})
    (tmp_path / "own" / "method" / "old.yaml").write_text(OmegaConf.to_yaml(settings_of(old)))
    code, _, err = call("--config-dir", str(tmp_path / "own"), "method=old", "tolerance=0.005")
    assert code == 0, err
    text = (matches / "method" / "old.yaml").read_text()
    assert all(abs(float(value) / 1.5 - 1) <= 0.005 for value in re.findall(r"1\.\d{3}", text.splitlines()[0]))
    written = yaml.safe_load(text)
    assert written["found"]["layers"] == 4
    assert written["found"]["chosen"] == {"layers": 99, "tried": 12}
    settings, origin = provenance(written)
    assert re.fullmatch(r"1:0\.\d+ and 0:0\.\d+,1:0\.\d+ \(the best of 12\)", settings)
    assert re.match(r"found on 1 and 1 records, keeps matched again on \d+ records of .*, with tiny", origin)
    for fold, schedule, records in zip(written["folds"], schedules, hashes, strict=True):
        assert fold["records"] == records
        stages = [stage.split(":") for stage in fold["method"]["schedule"].split(",")]
        assert [layer for layer, _ in stages] == re.findall(r"(\d):", schedule)
        assert all(float(keep) < 0.9 for _, keep in stages)


def test_a_speedup_out_of_reach_leaves_the_others(call, matches, tmp_path):
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "late.yaml").write_text("defaults: [static_pruning]\nlayer: 1\n")
    words = ("--config-dir", str(tmp_path / "own"), "method=late")
    code, out, err = call(*words, "speedups=[3,1.5]")
    assert code == 0, err
    assert "warning: method late: with 98% of the prompt pruned" in err
    assert "method=late_1.5x" in out  # a matched method is called as its config is
    (written,) = (matches / "method").iterdir()
    assert yaml.safe_load(written.read_text())["name"] == "static_pruning"
    code, _, err = call(*words, "speedups=[3]")
    assert code == 2
    assert "so 3 is out of reach" in err


TUNED = ("tune=true", "method=fastkv", "speedups=[1.5]", "task=code", "data.limit=4", "tolerance=0.005")


@pytest.mark.slow
def test_each_half_of_the_records_is_tuned_for_the_other(call, lazybench, monkeypatch, matches, tmp_path):
    code, out, err = call(*TUNED)
    assert code == 0, err
    assert re.search(r"1\.5x: layer=\d+% keep=0\.\d+.* on the other half's records", out)
    text = (matches / "method" / "fastkv_1.5x.yaml").read_text()
    written, tried = yaml.safe_load(text), pd.read_csv(matches / "fastkv_1.5x.csv")
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
    monkeypatch.setattr(match, "kl", None)  # nothing is measured again
    run_words = shlex.split(out.strip().splitlines()[-1])[3:]
    code, out, err = call(*TUNED)
    assert code == 0, err
    assert (matches / "method" / "fastkv_1.5x.yaml").read_text() == text
    code, out, err = lazybench(*run_words, "timing.per_dataset=0", f"output={tmp_path / 'runs'}")
    assert code == 0, err
    assert re.search(r"layer=.* \(the best of \d+\), found on", out)


def test_only_edited_and_cut_rows_are_measured_again(call, monkeypatch, matches):
    assert call(*TUNED, "answer_tokens=2")[0] == 0
    edited, cut, *_ = (matches / "measured").glob("*.jsonl")
    before, *others = edited.read_text().splitlines()
    edited.write_text("\n".join([json.dumps(json.loads(before) | {"record": "as it was"}), *others]) + "\n")
    cut.write_text(cut.read_text()[:-9])
    measured = []
    kl = match.kl
    monkeypatch.setattr(match, "kl", lambda *args: measured.append(args) or kl(*args))
    assert call(*TUNED, "answer_tokens=2")[0] == 0
    assert len(measured) == 2
    assert all(json.loads(line) for line in cut.read_text().splitlines())


def test_one_process_matches_a_method(call, matches):
    (matches / "measured").mkdir(parents=True)
    lock = Lock(matches / "measured" / ".static_pruning.lock")
    assert lock.acquire()
    code, _, err = call("speedups=[1.5]")
    lock.close()
    assert code == 2
    assert "another process matches static_pruning" in err
    assert call("speedups=[1.5]")[0] == 0


def test_operations_leave_out_layers_that_see_images():
    text = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 64}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    vision = {"num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.device("meta"):
        alone = Gemma3ForCausalLM(Gemma3TextConfig(**text))
        both = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision))
    assert operations(both, [100, 50]) == operations(alone, [100, 50]) > 0


@pytest.mark.parametrize("wanted", [slow(1.5), slow(2.0), 3.0])
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
            share = find(lambda share: computed_speedup(trial.pruning(share), model, [1000]), wanted, 0.005).share  # noqa: B023
        except LazyBenchError:
            continue
        pruned = operations(trial.pruning(share).layer_tokens(model, 1000))
        assert operations([1000] * 24) / pruned == pytest.approx(wanted, rel=0.005)
        reached += 1
    assert reached >= 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method=baseline",), "method baseline cannot be matched: it has no `keep`"),
        (("method=lazyllm", "method.schedule=[1:1.0]"), "prunes nothing"),
        (("method=prompt_compression",), "method prompt_compression cannot be matched: it has no `keep`"),
        (("method=fastkv", "tune=true", "speedups=[90]"), "so 90 is out of reach"),
        (("method=fastkv", "tune=true", "task=lcc"), "a half of the records is empty"),
    ],
)
def test_methods_that_cannot_be_matched_end_in_one_line(call, words, message, matches):
    code, _, err = call(*words)
    assert code == 2
    assert message in err.splitlines()[-1]  # below the bar
    assert not list(matches.glob("method/*"))
