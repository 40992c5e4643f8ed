"""LongBench's five Chinese datasets: a task of their own, apart from the English averages."""

import csv
import json
import re

import pytest
from report_runs import rows_of, write_run
from support import folders, one_line, rows

from lazybench.cli.report import main as report
from lazybench.cli.score import main as score
from lazybench.data.facts import datasets_of, english, load_facts

FACTS = load_facts()
CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
ANSWERS = dict.fromkeys(CHINESE, "阿达") | {"lsht": "体育", "passage_retrieval_zh": "段落3"}


@pytest.fixture
def records(tmp_path):
    """A folder with two made-up records of each of the five, and of an English dataset."""
    folder = tmp_path / "records"
    folder.mkdir()
    for name in (*CHINESE, "lcc"):
        made = {"dataset": name, "language": FACTS[name].language, "length": 99, "input": "谁？"}
        made |= {"context": "这是阿达。" * 30, "answers": [ANSWERS.get(name, "Ada")]}
        made |= {"all_classes": ["体育", "财经"] if name == "lsht" else None}
        lines = [json.dumps(made | {"_id": f"{name}-{number}"}) + "\n" for number in range(2)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def test_facts_are_the_official_codes():
    # THUDM/LongBench: eval.py, `dataset2metric`; config/dataset2maxlen.json; task.md. Prompts: test_facts.py.
    found = {name: (FACTS[name].metric, FACTS[name].max_new_tokens, FACTS[name].records) for name in CHINESE}
    assert found == {
        "multifieldqa_zh": ("qa_f1_zh", 64, 200),
        "dureader": ("rouge_zh", 128, 200),
        "vcsum": ("rouge_zh", 512, 200),
        "lsht": ("classification", 64, 200),
        "passage_retrieval_zh": ("retrieval_zh", 32, 200),
    }
    # pred.py builds no chat prompt for lsht; eval.py scores its first line.
    assert [name for name in CHINESE if not FACTS[name].chat] == ["lsht"]
    assert [name for name in CHINESE if FACTS[name].first_line] == ["lsht"]
    assert datasets_of("chinese", FACTS) == list(CHINESE)


def test_all_stays_the_english_datasets():
    assert not set(english()) & set(CHINESE)
    assert datasets_of("all", FACTS) == english()


@pytest.mark.slow
def test_the_task_runs_all_five(run, records, tmp_path):
    code, out, err = run("task=chinese", "data=longbench", f"data.root={records}", "method=baseline", "timing.warmup=0")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    made = rows(folder)
    assert [line["dataset"] for line in made] == [name for name in CHINESE for _ in range(2)]
    assert re.search(r"^chinese \(mean of datasets\) +10 ", out, re.MULTILINE)
    assert "mean of 6 tasks" not in out
    scores = json.loads((folder / "scores.json").read_text())
    each = [of["score"] for of in scores["datasets"].values()]
    assert scores["tasks"]["chinese"]["score"] == pytest.approx(sum(each) / 5)


@pytest.mark.parametrize("dataset", CHINESE)
def test_each_runs_by_itself(run, records, tmp_path, dataset):
    words = (f"task={dataset}", "data=longbench", f"data.root={records}", "data.limit=1")
    code, _, err = run(*words, "method=baseline", "timing.warmup=0")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    (made,) = rows(folder)
    assert made["dataset"] == dataset
    assert "error" not in made
    assert 0 <= made["score"] <= 1


def test_what_has_no_chinese_says_so(run, records):
    code, _, err = run("task=chinese")
    assert "multifieldqa_zh" in one_line(code, err)
    (records / "lsht.jsonl").unlink()
    code, _, err = run("task=chinese", "data=longbench", f"data.root={records}")
    assert "no lsht.jsonl there: found dureader, lcc" in one_line(code, err)
    code, _, err = run("chinese")
    assert "did you mean task=chinese?" in one_line(code, err)


def test_the_english_averages_do_not_know_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    write_run(tmp_path / "runs", "lazyllm", rows_of(english(), 3), task="all")
    write_run(tmp_path / "both", "lazyllm", rows_of(english(), 3), task="all")
    write_run(tmp_path / "both", "lazyllm", rows_of(CHINESE, 3, score=0.9), task="chinese", digest="000000000002")
    found = {}
    for name in ("runs", "both"):
        assert report([f"runs={tmp_path / name}", f"output={tmp_path / 'out' / name}"]) == 0
        for table in ("table1", "table2", "fidelity"):
            lines = csv.DictReader((tmp_path / "out" / name / f"{table}.csv").open(encoding="utf-8"))
            found[name, table] = {line["task"]: line for line in lines}
    for table in ("table1", "table2", "fidelity"):
        chinese = found["both", table].pop("chinese")
        assert found["both", table] == found["runs", table]
        assert chinese["datasets"] == "5"
    assert found["runs", "table1"]["multidoc_qa"]["score_paper"] == "22.31"
    assert "Mean of the 6 tasks" in (tmp_path / "out/both/table1.md").read_text("utf-8")


def test_predictions_are_scored_as_a_task(tmp_path, capsys):
    said = {"multifieldqa_zh": "阿达", "lsht": "\n体育\n财经", "passage_retrieval_zh": "段落3和段落4"}
    lines = [
        {"dataset": name, "prediction": text, "answers": [ANSWERS[name]], "all_classes": ["体育", "财经"]}
        for name, text in said.items()
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score([str(file)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lsht", "1", "100.00"] in shown
    assert ["passage_retrieval_zh", "1", "50.00"] in shown
    assert ["chinese", "3/5", "83.33"] in shown


def test_they_are_listed(lazybench):
    code, out, _ = lazybench("list")
    assert code == 0
    assert f"  chinese                   {', '.join(CHINESE)}\n" in out
    assert "dureader                  200 records, rouge_zh, at most 128 new tokens, task chinese" in out
