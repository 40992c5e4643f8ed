"""LongBench-E from its files to the report: thirteen datasets, and scores by the records' length."""

import csv
import json
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import failed, row, write_run
from support import folders, one_line, rows

from lazybench import metrics
from lazybench.cli.report import main as report
from lazybench.cli.score import main as score
from lazybench.config import CONF, DataConfig
from lazybench.data import choose, load_facts, load_records
from lazybench.data.facts import english
from lazybench.errors import LazyBenchError
from lazybench.run.summary import summarise

CONFIG = yaml.safe_load((CONF / "data/longbench_e.yaml").read_text("utf-8"))
DATASETS = CONFIG["datasets"]
FACTS = load_facts(DATASETS)
DATA = {"name": "longbench_e", "label": "LongBench-E", "source": CONFIG["source"], "datasets": DATASETS}
DATA |= {"root": None, "has": list(DATASETS)}
# task.md, LongBench-E statistics: numbers of records of 0-4k, 4-8k and 8k+.
STATISTICS = {
    "qasper": (100, 100, 24),
    "multifieldqa_en": (67, 70, 13),
    "hotpotqa": (100, 100, 100),
    "2wikimqa": (100, 100, 100),
    "gov_report": (100, 100, 100),
    "multi_news": (100, 100, 94),
    "trec": (100, 100, 100),
    "triviaqa": (100, 100, 100),
    "samsum": (100, 100, 100),
    "passage_count": (100, 100, 100),
    "passage_retrieval_en": (100, 100, 100),
    "lcc": (100, 100, 100),
    "repobench-p": (100, 100, 100),
}
ANSWERS = {"trec": "City", "passage_count": "3", "passage_retrieval_en": "Paragraph 3"}


def record(dataset, number=0, /, **changes):
    """A made-up record in LongBench's format; its dataset is named as in LongBench."""
    like = dataset.removesuffix("_e")
    made = {"_id": f"{dataset}-{number}", "dataset": like, "language": "en", "length": 5000}
    made |= {"input": "Who?", "context": "It was Ada. " * 9, "answers": [ANSWERS.get(like, "Ada")]}
    return made | {"all_classes": ["City", "Date"] if like == "trec" else None} | changes


def write(folder, made):
    """Write the files of some datasets; their folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for dataset, records in made.items():
        (folder / f"data/{dataset}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


def scorer_e(dataset, predictions, answers, lengths, all_classes):
    """LongBench's eval.py, `scorer_e`, read anew; `np.mean` of nothing, a NaN there, is None here."""
    measure = {"trec": "classification", "samsum": "rouge", "hotpotqa": "qa_f1", "lcc": "code_sim"}[dataset]
    met = {"0-4k": [], "4-8k": [], "8k+": []}
    for prediction, truths, length in zip(predictions, answers, lengths, strict=True):
        if dataset in ("trec", "samsum"):
            prediction = prediction.lstrip("\n").split("\n")[0]
        best = max([0.0, *(metrics.get(measure)(prediction, truth, all_classes) for truth in truths)])
        met["0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"].append(best)
    return {name: round(100 * np.mean(scores), 2) if scores else None for name, scores in met.items()}


def test_the_facts_are_those_of_longbenchs_datasets():
    assert list(DATASETS) == [f"{name}_e" for name in english() if name in STATISTICS]
    assert len(DATASETS) == len(STATISTICS) == 13
    for name, counts in STATISTICS.items():
        wanted = replace(FACTS[name], name=f"{name}_e", records=sum(counts), by_length=True)
        assert FACTS[f"{name}_e"] == wanted


def test_tasks_are_the_six_and_all_is_the_thirteen():
    config = DataConfig(**CONFIG)
    assert choose("all", config, FACTS).datasets == list(DATASETS)
    six = [choose(task, config, FACTS).datasets for task in ("single_doc_qa", "multidoc_qa", "summarization")]
    six += [choose(task, config, FACTS).datasets for task in ("fewshot", "synthetic", "code")]
    assert [name for names in six for name in names] == list(DATASETS)
    assert six[0] == ["qasper_e", "multifieldqa_en_e"]


def test_they_are_listed(lazybench):
    code, out, _ = lazybench("list")
    assert code == 0
    assert "  single_doc_qa             qasper_e, multifieldqa_en_e  [data=longbench_e]\n" in out
    assert "  qasper_e                  224 records, qa_f1, at most 128 new tokens  [data=longbench_e]\n" in out


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("named", ["hotpotqa", "hotpotqa_e"])
def test_records_may_name_their_dataset_either_way(tmp_path, zipped, named):
    root = write(tmp_path, {"hotpotqa_e": [record("hotpotqa_e", number, dataset=named) for number in range(3)]})
    write(tmp_path, {"hotpotqa": [record("hotpotqa")]})
    if zipped:
        with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
            archive.write(tmp_path / "data/hotpotqa_e.jsonl", "data/hotpotqa_e.jsonl")
        root = tmp_path / "data.zip"
    config = DataConfig(**CONFIG | {"root": str(root), "limit": 2})
    found = load_records("hotpotqa_e", config, None)
    assert [(one.dataset, one.id, one.length) for one in found] == [
        ("hotpotqa_e", "hotpotqa_e-0", 5000), ("hotpotqa_e", "hotpotqa_e-1", 5000)
    ]  # fmt: skip


LACKING = {key: value for key, value in record("lcc_e").items() if key != "length"}


@pytest.mark.parametrize(
    ("files", "task", "says"),
    [
        ({"lcc_e": [LACKING]}, "lcc_e", "data/lcc_e.jsonl:1: the field 'length' is missing"),
        ({"lcc_e": [record("lcc_e", length=-1)]}, "lcc_e", "data/lcc_e.jsonl:1: 'length' must be a whole number"),
        ({"lcc_e": [record("trec_e")]}, "lcc_e", "lcc_e.jsonl:1: 'dataset' must be 'lcc_e', like the file's name"),
        ({"lcc": [record("lcc")]}, "code", "no lcc_e.jsonl there: found lcc"),
        ({"lcc_e": [record("lcc_e")]}, "all", "no qasper_e.jsonl there: found lcc_e"),
        ({"lcc": [record("lcc")]}, "lcc", "LongBench-E has no dataset 'lcc': did you mean 'lcc_e'?"),
        ({"lcc": [record("lcc")]}, "chinese", "LongBench-E has no dataset 'multifieldqa_zh'"),
    ],
)
def test_what_is_wrong_is_one_line(run, tmp_path, files, task, says):
    root = write(tmp_path / "records", files)
    code, _, err = run("data=longbench_e", f"data.root={root}", f"task={task}")
    assert says in one_line(code, err)
    assert not folders(tmp_path / "runs")


@pytest.mark.slow
def test_a_folder_with_longbench_too_runs_and_reports_apart(run, lazybench, tmp_path):
    root = write(tmp_path / "records", {"lcc_e": [record("lcc_e", n, length=n * 4000) for n in range(3)]})
    write(root, {"repobench-p_e": [record("repobench-p_e", n, length=n * 4000) for n in range(2)]})
    write(root, {name: [record(name)] for name in ("lcc", "repobench-p")})
    words = ("method=baseline", f"data.root={root}", "data.limit=null", "task=code", "timing.warmup=0")
    code, out, err = run("data=longbench_e", *words)
    assert code == 0, err
    assert "records: LongBench-E\n" in out
    heads, *lines = [
        re.split(r"  +", line.strip()) for line in out.splitlines() if re.match("(lcc|repo|code| +rec)", line)
    ]
    assert heads[:5] == ["records", "score", "0-4k", "4-8k", "8k+"]
    assert [line[0] for line in lines] == ["lcc_e", "repobench-p_e", "code (mean of datasets)"]
    (folder,) = folders(tmp_path / "runs")
    met = rows(folder)
    assert [(line["dataset"], line["length"]) for line in met] == [
        ("lcc_e", 0), ("lcc_e", 4000), ("lcc_e", 8000), ("repobench-p_e", 0), ("repobench-p_e", 4000)
    ]  # fmt: skip
    said = json.loads((folder / "scores.json").read_text())
    scores = [100 * line["score"] for line in met]
    assert said["data"] == "LongBench-E"
    assert any(scores)
    of_lcc, of_code = said["datasets"]["lcc_e"]["score_by_length"], said["tasks"]["code"]["score_by_length"]
    assert list(of_lcc.values()) == pytest.approx(scores[:3])
    assert [of_code["0-4k"], of_code["4-8k"]] == pytest.approx(
        [(scores[0] + scores[3]) / 2, (scores[1] + scores[4]) / 2]
    )
    assert of_code["8k+"] is None
    code, out, err = run("data=longbench_e", *words, "++data.datasets.lcc_e.by_length=false")
    assert "finished earlier" in out, err  # which scores are shown decides no run
    code, _, err = run("data=longbench", *words, "data.limit=1")
    assert code == 0, err
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    assert re.findall("^## (.*?) [(]", text, re.MULTILINE) == ["tiny", "tiny"]
    assert "on LongBench-E" in text
    by_length = (tmp_path / "report/score_by_length.md").read_text("utf-8")
    assert re.findall("^## .* on (.*)$", by_length, re.MULTILINE) == ["LongBench-E"]
    assert "not of this length" in by_length


scored = st.lists(st.tuples(st.sampled_from([0, 3999, 4000, 7999, 8000, 20000]), st.floats(0, 1)), min_size=1)


@settings(max_examples=15, deadline=None)
@given(scored, scored)
def test_the_summary_is_the_official_mean_of_each_length(first, second):
    made = {"lcc_e": first, "repobench-p_e": second}
    lines = [
        row(name, number, length=length, score=value)
        for name, of in made.items()
        for number, (length, value) in enumerate(of)
    ]
    found = summarise(lines, FACTS)
    bounds = {"0-4k": range(4000), "4-8k": range(4000, 8000), "8k+": range(8000, 10**6)}
    for length, among in bounds.items():
        means = []
        for name, of in made.items():
            values = [100 * value for words, value in of if words in among]
            means.append(np.mean(values) if values else None)
            assert found["datasets"][name]["score_by_length"][length] == pytest.approx(means[-1])
        wanted = None if None in means else np.mean(means)
        assert found["tasks"]["code"]["score_by_length"][length] == pytest.approx(wanted)


def test_other_data_has_no_scores_by_length(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    assert summarise([row("lcc", 1)], load_facts())["datasets"]["lcc"]["score_by_length"] is None
    write_run(tmp_path / "runs", "lazyllm", [row("lcc", 1)], task="lcc")
    assert report([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}"]) == 0
    assert not list((tmp_path / "report").glob("score_by_length*"))


@pytest.mark.slow
def test_the_report_has_a_table_of_scores_by_length(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    lengths = (100, 3999, 4000, 7999, 8000)
    values = {name: [(place + number) % 5 / 4 for number in range(5)] for place, name in enumerate(DATASETS)}
    lines = [
        row(name, number, length=lengths[number], score=value)
        for name, of in values.items()
        for number, value in enumerate(of)
    ]
    lines += [failed("lcc_e", 5) | {"length": 9000}]
    write_run(tmp_path / "runs", "lazyllm", lines, task="all", data=DATA)
    assert report([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}"]) == 0
    table = list(csv.DictReader((tmp_path / "report/score_by_length.csv").open(encoding="utf-8")))
    means = {"score_0-4k": (0, 2), "score_4-8k": (2, 4), "score_8k+": (4, 5)}
    tasks: dict[str, list[list[float]]] = {}
    for name, of in values.items():
        tasks.setdefault(FACTS[name].task, []).append([100 * np.mean(of[low:high]) for low, high in means.values()])
    wanted = {task: np.mean(of, axis=0) for task, of in tasks.items()}
    wanted |= {"mean_of_tasks": np.mean(list(wanted.values()), axis=0)}
    assert [one["task"] for one in table] == list(wanted)
    for one in table:
        assert [float(one[key]) for key in means] == pytest.approx(list(wanted[one["task"]]), rel=1e-5)
    assert [one["score_8k+_records"] for one in table] == ["2", "2", "2", "3", "2", "2", "13"]
    again = tmp_path / "again"
    assert report([f"runs={tmp_path / 'report/records'}", f"output={again}"]) == 0
    for name in ("score_by_length.csv", "score_by_length.tex", "score_by_length.md", "report.html"):
        assert (again / name).read_bytes() == (tmp_path / "report" / name).read_bytes()
    text = (again / "table1.md").read_text("utf-8")
    assert "on LongBench-E" in text
    assert "22.31" not in text  # the paper's score of LazyLLM on multi-document QA
    assert "Not run: baseline, random drop" in text
    assert "Score by length" in (again / "report.html").read_text("utf-8")


PREDICTIONS = {
    "trec": [("\nCity\nDate", 4000), ("Date, City", 8000), ("Date", 3999), ("City", 0), ("City", 7999)],
    "hotpotqa": [("it was Ada", 1), ("Ada", 2), ("Bob", 5000)],
}


def shown(printed):
    """The cells of printed tables, line by line."""
    return [re.split(r"  +", line.strip()) for line in printed.splitlines()]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_official_files_of_predictions_are_scored_by_length(tmp_path, capsys, name):
    texts, lengths = zip(*PREDICTIONS[name], strict=True)
    answers, classes = [ANSWERS.get(name, "Ada")], ["City", "Date"] if name == "trec" else None
    lines = [
        {"pred": text, "answers": answers, "all_classes": classes, "length": length}
        for text, length in PREDICTIONS[name]
    ]
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score([str(file), "--dataset", f"{name}_e"]) == 0
    official = scorer_e(name, texts, [answers] * len(texts), lengths, classes)
    wanted = ["-" if value is None else f"{value:.2f}" for value in official.values()]
    met = shown(capsys.readouterr().out)
    (of_dataset,) = (line for line in met if line[0] == f"{name}_e")
    assert of_dataset[3:] == wanted
    task = FACTS[name].task
    count = sum(FACTS[other].task == task for other in DATASETS)
    assert [f"{task} [data=longbench_e]", f"1/{count}", of_dataset[2], *wanted] in met


def test_lines_of_both_editions_have_tasks_of_their_own(tmp_path, capsys):
    lines = [{"dataset": name, "prediction": "abcd", "answers": ["abcd"]} for name in ("lcc", "lcc_e")]
    lines[1] |= {"prediction": "", "length": 1}
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score([str(file)]) == 0
    met = shown(capsys.readouterr().out)
    assert ["code", "1/2", "100.00", "-", "-", "-"] in met
    assert ["code [data=longbench_e]", "1/2", "0.00", "0.00", "-", "-"] in met
    file.write_text(json.dumps({key: value for key, value in lines[1].items() if key != "length"}))
    with pytest.raises(LazyBenchError, match=r"p\.jsonl:1: 'length' must be a whole number of words: lcc_e has scores"):
        score([str(file)])
