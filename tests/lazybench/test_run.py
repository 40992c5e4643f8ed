"""`lazybench run` as a user meets it, on a tiny model."""

import json
import shutil
from collections import Counter
from statistics import fmean, stdev

import pytest
import yaml
from support import FINISHED, LAZY, one_line, rows

from lazybench.data import dataset_configs
from lazybench.methods.lazyllm import LazyLLM
from lazybench.model import environment, loading
from lazybench.store.journal import read_rows

QUICK = ("timing.per_dataset=0",)
NOTED = ("device", "commit", "date")


def test_a_run_saves_all_that_is_needed(finished):
    folder = finished
    assert folder.parts[-4:-1] == ("tiny", "sample", "lazyllm")
    records = rows(folder)
    assert Counter(row["dataset"] for row in records) == {"hotpotqa": 2, "2wikimqa": 2, "musique": 2}
    for row in records:
        assert "not LongBench" in row["data"]
        assert 0.5 < row["prompt_computed"] <= 1
        assert row["new_tokens"] <= 32
        assert (row["device"], row["commit"], row["date"]) == tuple(records[0][key] for key in NOTED)
    times = read_rows(folder, "times.jsonl")
    for trial in (trial for row in times.values() for own in row["trials"].values() for trial in own):
        assert 0 < trial["ttft_s"] <= trial["generation_s"]

    scores = json.loads((folder / "scores.json").read_text())
    assert "not LongBench" in scores["data"]
    assert list(scores["datasets"]) == ["hotpotqa", "2wikimqa", "musique"]
    of = [row for row in records if row["dataset"] == "musique"]
    musique = scores["datasets"]["musique"]
    assert musique["records"] == 2
    assert musique["score"] == pytest.approx(100 * fmean(row["score"] for row in of))
    assert musique["unmodified_score"] == pytest.approx(100 * fmean(row["unmodified_score"] for row in of))
    same = sum(row["identical_tokens"] == 1 for row in of)
    assert musique["same_answers"] == same
    unmodified, own = (
        [trial["ttft_s"] for (name, _), row in times.items() if name == "musique" for trial in row["trials"][subject]]
        for subject in ("unmodified", f"lazyllm/{folder.name}")
    )
    assert musique["ttft_speedup"] == pytest.approx(fmean(unmodified) / fmean(own), rel=1e-4)
    task = scores["tasks"]["multidoc_qa"]
    for key in ("score", "ttft_speedup", "answer_speedup", "prompt_computed"):
        assert task[key] == pytest.approx(fmean(numbers[key] for numbers in scores["datasets"].values()))
    assert task["records"] == 6

    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["method"]["schedule"] == "1:0.6"
    assert settings["task"] == "multidoc_qa"
    assert settings["model"]["dtype"] == "auto"  # for a model given only by path, not the default model's
    where = json.loads((folder / "environment.json").read_text())
    assert where.keys() >= {"versions", "dtype", "attention", "weights_format", "results_version", "command"}
    assert where["dtype"] == "float32"


def test_seeds_are_averaged_and_the_scores_spread_reported(run, ran):
    words = ("method=random_drop", "method.repeats=3", "task=multidoc_qa", "data.limit=1", *QUICK)
    folder, (_, out, _) = ran(*words), run(*words)
    task = json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]
    by_seed = [
        100 * fmean(row["repeats"][seed]["score"] for row in rows(folder))  # as many records in each dataset
        for seed in range(3)
    ]
    assert task["score_by_seed"] == pytest.approx(by_seed)
    assert task["score"] == pytest.approx(fmean(by_seed))
    assert f"{task['score']:.2f} ± {stdev(by_seed):.2f}" in out


@pytest.fixture
def no_weights(monkeypatch):
    """Nothing may load the model's weights."""
    monkeypatch.setattr(loading, "load_model", lambda config: pytest.fail("the weights were loaded"))


def test_a_finished_run_prints_its_numbers_and_needs_no_more(run, finished, no_weights, monkeypatch):
    monkeypatch.setattr(environment, "_device_name", lambda device: "another")
    monkeypatch.setattr(LazyLLM, "label", "Another name")
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    code, out, _ = run(*FINISHED)
    assert code == 0
    assert "finished earlier: nothing to do" in out
    for text in ("not LongBench", "scores are out of 100", str(finished)):
        assert text in out
    (cells,) = [line.split() for line in out.splitlines() if line.startswith("hotpotqa")]
    same = [row["identical_tokens"] == 1 for row in rows(finished) if row["dataset"] == "hotpotqa"]
    assert [str(sum(same)), "of", "2"] == cells[cells.index("of") - 1 : cells.index("of") + 2]
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*LAZY, "model.limit=4094"], "are more than the 4096 positions of tiny: set model.limit=4090 or less"),
        ([*LAZY, "output=taken/runs"], "cannot be written: Not a directory"),
        ([*LAZY, "model.chat=template"], "no chat template"),
    ],
)
def test_impossible_settings_are_refused_before_weights_are_loaded(run, tmp_path, monkeypatch, no_weights, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert says in one_line(*run(*words)[::2])


def divergences(folder):
    """The divergence of each record, by key."""
    return {key: trace["kl"] for key, trace in read_rows(folder, "traces.jsonl").items()}


def test_a_stopped_run_continues_where_it_stopped(run, finished):
    whole, predictions, traces = rows(finished), finished / "predictions.jsonl", finished / "traces.jsonl"
    lines, kls = predictions.read_bytes().splitlines(keepends=True), divergences(finished)
    predictions.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    traces.write_bytes(traces.read_bytes()[:-40])
    (finished / "scores.json").unlink()
    code, out, _ = run(*FINISHED)
    assert code == 0
    assert "3 of 6 are answered" in out
    again = rows(finished)
    assert again[:3] == whole[:3]
    assert [row["_id"] for row in again] == [row["_id"] for row in whole]
    assert [row["prediction"] for row in again] == [row["prediction"] for row in whole]
    assert divergences(finished) == pytest.approx(kls, abs=1e-6)
    assert json.loads((finished / "scores.json").read_text())["tasks"]["multidoc_qa"]["records"] == 6


def test_damage_in_the_middle_is_not_papered_over(run, finished):
    predictions = finished / "predictions.jsonl"
    predictions.write_bytes(b"{broken\n" + predictions.read_bytes())
    (finished / "scores.json").unlink()
    code, _, err = run(*FINISHED)
    assert code == 2
    assert "predictions.jsonl:1" in err


def in_place(run, *words):
    """Whether a finished run is the one that a command asks for."""
    return "0 of them with records to run" in run(*FINISHED, *words, command="plan")[1]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("method.schedule=[1:0.5]", False),
        ("data.seed=1", False),
        ("data.limit=1", False),
        ("model.limit=800", False),
        ("timing.warmup=2", True),
        ("method.schedule='1:0.60'", True),
        ("trace=false", True),
    ],
)
def test_changed_settings_give_another_folder(run, finished, change, same):
    assert in_place(run, change) == same


def test_other_weights_and_other_prompts_give_another_folder(run, finished, tmp_path, tiny_model, monkeypatch):
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    assert "finished earlier" in run(*FINISHED, f"model.path={copy}")[1]
    with open(copy / "model.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(b"abcd")
    assert not in_place(run, f"model.path={copy}")
    changed = json.loads(json.dumps(dataset_configs._longbench()))
    changed["datasets"]["2wikimqa"]["prompt"] = "{context} {input}"
    monkeypatch.setattr(dataset_configs, "_longbench", lambda: changed)
    assert not in_place(run)


def test_records_are_traced(ran, finished):
    traces = read_rows(finished, "traces.jsonl")
    assert len(traces) == 6
    for row in rows(finished):
        trace = traces[row["dataset"], row["_id"]]
        assert trace["first_token_kl"] > 0
        assert trace["stages"] == [1]
        used = [step[0] for step in trace["computed"]]
        assert len(used) == row["new_tokens"]
        assert used == sorted(used)
        assert used[0] == pytest.approx(0.6, abs=0.01)
        assert (1 + used[-1]) / 2 == pytest.approx(row["prompt_computed"], abs=1e-4)
    baseline = ran("method=baseline", "trace=true", *QUICK)
    trace = json.loads((baseline / "traces.jsonl").read_text().splitlines()[0])
    assert trace["first_token_kl"] == 0
    assert len(trace["attention"]["map"]) == 4
    for layer in trace["attention"]["map"]:
        assert sum(layer) == pytest.approx(1, abs=0.01)
    assert trace["attention"]["sorted_mass"][0] == 0
    assert trace["attention"]["sorted_mass"][-1] == pytest.approx(1, abs=1e-4)
