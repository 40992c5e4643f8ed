"""Verdicts on the paper's claims, and divergence at equal time."""

import numpy as np
import pandas as pd
import pytest
from report_runs import row, timed, trial, write_run, write_times

from lazybench.analysis.blocks import group
from lazybench.analysis.equal_time import equal_time
from lazybench.analysis.records import find
from lazybench.data.dataset_configs import datasets_of, load_dataset_configs
from lazybench.report.claims import NONE, claims, verdict

DATASETS, MULTIDOC = (datasets_of(task, load_dataset_configs()) for task in ("all", "multidoc_qa"))
RECORDS = 6


def write_study(root, model="smollm2_135m", lost=None, kls=None, speedups=None, datasets=DATASETS, **changes):
    """Write matched runs of a model at 2x and 3x, and a timing run with `speedups` of the whole answer at both.

    By method, `lost` is the share of the score (0.5 on average) that it loses, and `kls` are the KLs at 2x and at 3x.
    """
    rng = np.random.default_rng(0)
    kls = {"lazyllm": (0.1, 0.2)} | (kls or {})
    keys = [(dataset, number) for dataset in datasets for number in range(RECORDS)]
    unmodified, noise = rng.uniform(0.4, 0.6, len(keys)), rng.lognormal(0, 0.5, len(keys))
    subjects = {}
    for method, both in kls.items():
        for position, (target, kl) in enumerate(zip(("2x", "3x"), both, strict=False)):
            scores = unmodified * (1 - (lost or {}).get(method, 0) * rng.uniform(0.8, 1.2, len(keys)))
            rows = [
                row(dataset, number, score=score, unmodified_score=own, prompt_computed=rng.uniform(0.6, 0.8))
                for (dataset, number), score, own in zip(keys, scores, unmodified, strict=True)
            ]
            own = kl * noise * rng.lognormal(0, 0.2, len(keys))
            traces = [
                {"dataset": line["dataset"], "_id": line["_id"], "kl": one}
                for line, one in zip(rows, own.tolist(), strict=True)
            ]
            fold = {"method": {"name": method, "layer": 3}, "records": ["a"]}
            settings = {"method": {"speedup": target, "folds": [fold]}, "model": {"name": model}, "digest": target}
            write_run(root, method, rows, task="all", traces=traces, **settings | changes)
            subjects[f"{method}/{target}"] = (speedups or {}).get(method, (1.5, 2.0))[position]
    lines = []
    for dataset in datasets:
        seconds = rng.uniform(5, 10)
        times = {name: seconds / speed * rng.uniform(0.98, 1.02) for name, speed in subjects.items()}
        trials = {name: trial(own, own * 1.3) for name, own in times.items()}
        lines.append(timed(dataset, 0, trials, trial(seconds, seconds * rng.uniform(1.25, 1.35))))
    write_times(root, lines, model=model)


@pytest.fixture
def made(tmp_path):
    """The lines of the table of claims by claim's first words and case."""

    def read():
        table = claims(group(*find([tmp_path])))
        return {(line["Claim"].split(" (")[0], line["At"]): line for line in table.to_dict("records")}

    return read


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        ([1, 1, 0], "yes"),
        ([1, 1, 1], "yes"),
        ([1, 1, -1], "cannot tell"),
        ([1, 0, 0], "cannot tell"),
        ([-1, -1, 1], "no"),
        ([-1, -1], "no"),
        ([-1, 0, 0], "cannot tell"),
        ([1, 1, None], "yes"),
        ([1, None, None], "cannot tell (1 model, for)"),
        ([-1], "cannot tell (1 model, against)"),
        ([None, None], NONE),
    ],
)
def test_the_rule_of_a_verdict(signs, expected):
    assert verdict(signs) == expected


def test_verdicts_follow_scores_and_divergences_of_two_models(tmp_path, made):
    kls = {"static_pruning": (0.4, 0.8), "random_drop": (0.1, 0.2), "lazyllm_no_revival": (0.05, 0.1)}
    lost = {"lazyllm": 0.02, "static_pruning": 0.6, "random_drop": 0.02}
    for model in ("smollm2_135m", "qwen2_5_coder_0_5b"):
        write_study(tmp_path, model, lost, kls)
    lines = made()
    static, drop = (
        lines[f"{name} loses more at the same operations", "3x"] for name in ("static pruning", "random drop")
    )
    verdicts = ["Verdict", "By KL, geometric", "By KL, mean"]
    assert [static[key] for key in verdicts] == ["yes"] * 3
    assert [drop[key] for key in verdicts] == ["cannot tell"] * 3
    assert static["SmolLM2-135M-Instruct"].startswith("+29.")
    assert "n=96; KL ×0.2" in static["SmolLM2-135M-Instruct"]
    revival = lines["revival is crucial", "2x"]
    assert [revival[key] for key in verdicts] == ["cannot tell", "no", "no"]
    # 98 records cannot show that nobody loses 1%.
    assert lines["negligible drop in all tasks", "2x"]["Verdict"] == "cannot tell"
    assert lines["never slower than unmodified", "2x"]["Verdict"] == "yes"
    computed = lines["40.54 to 99.59% of the prompt's tokens computed, by task", "2x"]
    assert (computed["Verdict"], computed["By KL, mean"]) == ("yes", NONE)
    generation = "whole answers 1.0 to 1.8 times as fast, by task"
    assert [lines[generation, target]["Verdict"] for target in ("2x", "3x")] == ["yes", "no"]
    assert lines[generation, "3x"]["SmolLM2-135M-Instruct"].startswith("0 of 6 tasks: ")
    steps = lines["first token at least 21 decode steps and 23% of the time", "steps"]
    assert steps["Verdict"] == "no"
    assert steps["SmolLM2-135M-Instruct"].endswith("n=16")


@pytest.mark.parametrize(
    ("speedup", "lost", "expected"),
    [(2.5, -0.8, "yes"), (2.0, 0.8, "no"), (2.0, -0.8, "cannot tell"), (3.0, 0.8, "cannot tell")],
)
def test_a_speedup_at_a_loss_needs_both_and_a_faster_one_refutes_nothing(tmp_path, made, speedup, lost, expected):
    for model in ("smollm2_135m", "qwen2_5_coder_0_5b"):
        settings = {"kls": {"lazyllm": (0.1,)}, "speedups": {"lazyllm": (speedup,)}, "datasets": MULTIDOC}
        write_study(tmp_path, model, {"lazyllm": lost}, **settings)
    assert made()["first token at a loss", "2x 2.34× at 1%"]["Verdict"] == expected


def test_one_model_is_no_verdict_and_no_longbench_is_no_table(tmp_path, made, report):
    write_study(tmp_path / "runs", kls={"static_pruning": (0.4, 0.8)}, datasets=MULTIDOC)
    lines = made()
    static = lines["static pruning loses more at the same operations", "2x"]
    assert static["By KL, geometric"] == "cannot tell (1 model, for)"
    folder = report()
    assert "Does the paper hold?" in (folder / "report.md").read_text("utf-8").split("\n## ")[1]
    assert len(pd.read_csv(folder / "claims.csv")) == len(lines)
    for source, is_longbench in (("sample", False), ("lazybench.data.minilongbench.read", True)):
        write_study(tmp_path / source, data={"source": source}, datasets=MULTIDOC)
        assert (claims(group(*find([tmp_path / source]))) is not None) == is_longbench


def test_later_layers_are_compared_at_each_keep(tmp_path, made):
    rng = np.random.default_rng(1)
    for model in ("smollm2_135m", "qwen2_5_coder_0_5b"):
        for layer, kl in ((5, 0.4), (20, 0.1), (80, 0.02)):
            rows = [row("hotpotqa", number) for number in range(20)]
            traces = [line | {"kl": kl * rng.lognormal(0, 0.5)} for line in rows]
            changes = {"method": {"schedule": f"{layer}%:0.5"}, "digest": f"{layer}", "model": {"name": model}}
            write_run(tmp_path, "lazyllm", rows, task="hotpotqa", traces=traces, **changes)
    line = made()["later layers are less sensitive", "keep 0.5"]
    assert (line["Verdict"], line["By KL, geometric"], line["By KL, mean"]) == (NONE, "yes", "cannot tell")
    assert "5% over 80%" in line["SmolLM2-135M-Instruct"]


def test_divergence_at_equal_time_is_interpolated_where_most_methods_are(tmp_path):
    speedups = {"lazyllm": (1.2, 1.8), "fastkv": (1.5, 2.5), "gemfilter": (2.0, 3.0), "random_drop": (1.1, 9.0)}
    kls = {"lazyllm": (0.1, 0.4), "fastkv": (0.1, 0.2), "gemfilter": (0.1, 0.2), "random_drop": (3.0, 4.0)}
    write_study(tmp_path, kls=kls, speedups=speedups)
    (block,) = group(*find([tmp_path]))
    table = equal_time(block).set_index("method")
    (speedup,) = table["answer_speedup"].unique()
    assert speedup == pytest.approx(2.5, rel=0.02)  # within reach of two methods, as 1.5 and 1.8 are, and the largest
    assert table["geometric_kl"].notna().to_dict() == {
        "random drop": True,
        "LazyLLM": False,
        "FastKV (TSP)": True,
        "GemFilter": True,
    }
    gem = table.loc["GemFilter"]
    share = np.log(speedup / 2) / np.log(3 / 2)
    assert gem["geometric_kl"] == pytest.approx(0.1 * 2**share, rel=0.2)
    assert gem["geometric_kl_low"] < gem["geometric_kl"] < gem["geometric_kl_high"]
