"""LongBench-E from its files to the report: thirteen datasets, and scores by the records' length."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import row
from support import folders, rows

from lazybench.cli.score import main as score
from lazybench.config import CONF, DataConfig
from lazybench.data import choose, load_dataset_configs
from lazybench.data.dataset_configs import english, tasks
from lazybench.data.longbench_e import LENGTHS
from lazybench.run.summary import summarise

CONFIG = yaml.safe_load((CONF / "data/longbench_e.yaml").read_text("utf-8"))
DATASETS = CONFIG["datasets"]
CONFIGS = load_dataset_configs(DATASETS)
# task.md, LongBench-E statistics: numbers of records of all lengths, where they are not 300.
STATISTICS = {"qasper": 224, "multifieldqa_en": 150, "multi_news": 294}
LEFT_OUT = {"narrativeqa", "musique", "qmsum"}


def record(dataset, number=0, /, **changes):
    """A made-up record in LongBench's format; its dataset is named as in LongBench."""
    made = {"_id": f"{dataset}-{number}", "dataset": dataset.removesuffix("_e"), "language": "en", "length": 5000}
    return made | {"input": "Who?", "context": "It was Ada. " * 9, "answers": ["Ada"], "all_classes": None} | changes


def write(folder, made):
    """Write the files of some datasets; their folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for dataset, records in made.items():
        (folder / f"data/{dataset}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


def test_the_configs_are_those_of_longbenchs_datasets_in_the_six_tasks():
    assert list(DATASETS) == [f"{name}_e" for name in english() if name not in LEFT_OUT]
    for name in DATASETS:
        like = name.removesuffix("_e")
        records = STATISTICS.get(like, 300)
        assert CONFIGS[name] == replace(CONFIGS[like], name=name, records=records, groups=list(LENGTHS))
    config = DataConfig(**CONFIG)
    assert choose("all", config, CONFIGS).datasets == list(DATASETS)
    assert [name for task in tasks() for name in choose(task, config, CONFIGS).datasets] == list(DATASETS)


@pytest.mark.slow
def test_a_folder_with_longbench_too_runs_and_reports_apart(run, lazybench, tmp_path):
    named = [record("lcc_e", n, length=n * 4000, dataset=("lcc", "lcc_e")[n % 2]) for n in range(3)]
    root = write(tmp_path / "records", {"lcc_e": named})  # a record may name its dataset either way
    write(root, {"repobench-p_e": [record("repobench-p_e", n, length=n * 4000) for n in range(2)]})
    write(root, {name: [record(name)] for name in ("lcc", "repobench-p")})
    words = ("method=baseline", f"data.root={root}", "data.limit=null", "task=code", "timing.warmup=0")
    code, out, err = run("data=longbench_e", *words)
    assert code == 0, err
    assert "records: LongBench-E\n" in out
    (folder,) = folders(tmp_path / "runs")
    written = rows(folder)
    assert sorted((line["dataset"], line["length"]) for line in written) == [
        ("lcc_e", 0), ("lcc_e", 4000), ("lcc_e", 8000), ("repobench-p_e", 0), ("repobench-p_e", 4000)
    ]  # fmt: skip
    assert "finished earlier" in run("data=longbench_e", *words, "++data.datasets.lcc_e.by_length=false")[1]
    assert run("data=longbench", *words, "data.limit=1")[0] == 0
    assert lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")[0] == 0
    labels = re.findall(r"\\label{(.*)}", (tmp_path / "report" / "score_by_group.tex").read_text("utf-8"))
    assert [label.endswith("-longbench-e") for label in labels] == [True]


scored = st.lists(st.tuples(st.sampled_from([0, 3999, 4000, 7999, 8000, 20000]), st.floats(0, 1)), min_size=1)


@settings(max_examples=6, deadline=None)
@given(scored, scored)
def test_the_summary_is_the_official_mean_of_each_length(first, second):
    made = {"lcc_e": first, "repobench-p_e": second}
    summary = summarise(
        [
            row(name, number, length=length, score=value)
            for name, pairs in made.items()
            for number, (length, value) in enumerate(pairs)
        ],
        CONFIGS,
    )
    for length, among in {"0-4k": range(4000), "4-8k": range(4000, 8000), "8k+": range(8000, 10**6)}.items():
        means = []
        for name, pairs in made.items():
            values = [100 * value for words, value in pairs if words in among]
            means.append(np.mean(values) if values else None)
            assert summary["datasets"][name]["score_by_group"][length] == pytest.approx(means[-1], abs=1e-6)
        mean = None if None in means else np.mean(means)
        assert summary["tasks"]["code"]["score_by_group"][length] == pytest.approx(mean, abs=1e-6)


def test_files_of_predictions_are_scored_by_length(tmp_path, capsys):
    scored_texts = [("\nCity\nDate", 4000), ("Date, City", 8000), ("Date", 3999), ("City", 0), ("City", 7999)]
    reference = {"answers": ["City"], "all_classes": ["City", "Date"]}
    file = tmp_path / "trec_e.jsonl"
    file.write_text(
        "".join(json.dumps(reference | {"pred": text, "length": words}) + "\n" for text, words in scored_texts)
    )
    assert score([str(file)]) == 0
    # eval.py, `scorer_e`: the first line of an answer; 1 of the 2 classes that are named.
    assert re.search(r"^ *trec_e +5 +\S+ +50\.00 +100\.00 +50\.00", capsys.readouterr().out, re.MULTILINE)
