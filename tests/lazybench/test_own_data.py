"""Datasets in a format of one's own, read by a function of one's own and scored by one's own metric."""

import importlib
import re
import sys

import pytest
import yaml
from support import folders, one_line, rows

from lazybench import metrics
from lazybench.config import DataConfig
from lazybench.data import choose, load_facts, load_records
from lazybench.errors import LazyBenchError

READER = '''
import csv
from pathlib import Path

from lazybench.data import Record


def read(dataset, root):
    """The rows of `<root>/<dataset>.csv`: question, text, answer."""
    with (Path(root) / f"{dataset}.csv").open(newline="") as file:
        for number, (question, text, answer) in enumerate(csv.reader(file)):
            yield Record(f"{dataset}-{number}", dataset, question, text, (answer,), None, len(text.split()))
'''
METRIC = "def exact(prediction, reference, all_classes):\n    return float(prediction == reference)\n"
DATA = """# My tables.
name: my_tables
source: {module}.read
root: tables
datasets:
  birds: {{prompt: "{{context}}\\nQuestion: {{input}}\\nAnswer:", max_new_tokens: 4, metric: {metric}}}
  fish: {{prompt: "{{context}}\\nSummary:", max_new_tokens: 4, metric: rouge, task: animals}}
"""
LINE = "Which bird?,{},a wren\n".format("The wren sings at night. " * 30)
QUICK = ("data=tables", "method=baseline", "data.limit=null", "timing.warmup=0", "timing.paired=false")
ROW = {
    "_id": "1",
    "dataset": "birds",
    "input": "Who?",
    "context": "A text.",
    "answers": ["me"],
    "all_classes": None,
    "length": 3,
    "language": "en",
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of configs with a data config, its reader and its metric beside it, to be worked in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    configs = tmp_path / "configs"
    (configs / "data").mkdir(parents=True)
    (configs / "data" / "tables.yaml").write_text(DATA.format(module="table_reader", metric="table_metric.exact"))
    (configs / "table_reader.py").write_text(READER)
    (configs / "table_metric.py").write_text(METRIC)
    (tmp_path / "tables").mkdir()
    for dataset in ("birds", "fish"):
        (tmp_path / "tables" / f"{dataset}.csv").write_text(LINE * 3)
    yield configs
    forget()


def forget():
    """As in a new process: import the modules of these tests anew."""
    for name in ("table_reader", "table_metric"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def own_run(run, own):
    """Call a command on one's own data; fails unless the exit code is 0."""

    def call(*words, command="run"):
        forget()
        code, out, err = run(f"--config-dir={own}", *QUICK, *words, command=command)
        assert code == 0, err
        return out

    return call


def test_all_of_ones_own_data_is_planned_run_and_reported(own_run, lazybench, tmp_path):
    assert "1 of them with records to run" in own_run("task=all", command="plan")
    out = own_run("task=all")
    assert "records: my_tables" in out
    (folder,) = folders(tmp_path / "runs")
    assert [(row["_id"], row["data"]) for row in rows(folder)] == [
        (f"{dataset}-{number}", "my_tables") for dataset in ("birds", "fish") for number in range(3)
    ]
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["data"]["source"] == "table_reader.read"
    assert saved["data"]["has"] == ["birds", "fish"]
    assert list(saved["code"]) == ["table_metric"]
    assert "0 of them with records to run" in own_run("task=all", command="plan")
    forget()  # neither the reader nor the metric is needed for a report
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    table = (tmp_path / "report/table1.md").read_text()
    assert "| birds | baseline | 0.00 (floor) | 0.00 | 1.00 | 3 |" in table
    assert "| animals | baseline | 0.00 (floor) | 0.00 | 1.00 | 3 |" in table


def test_a_literal_backslash_and_n_in_a_prompt_is_told(run, own):
    birds = r"prompt: '{context}\n{input}\t\n', max_new_tokens: 4, metric: rouge, answer_prefix: 'So\t'"
    (own / "data/tables.yaml").write_text(
        f"name: mine\nsource: table_reader.read\nroot: tables\ndatasets: {{birds: {{{birds}}}}}"
    )
    words = (f"--config-dir={own}", *QUICK, "task=birds", "method=baseline,lazyllm")
    code, _, err = run(*words, r"model.chat='[\n{prompt}]'", command="plan")
    found = re.findall(r"warning: (.+) holds a literal (.+), which the model reads as a backslash and a letter: ", err)
    birds = [("dataset 'birds': prompt", r"\n and \t"), ("dataset 'birds': answer_prefix", r"\t")]
    assert (code, found) == (0, [("model.chat", r"\n"), *birds])
    (own / "data/tables.yaml").write_text(DATA.format(module="table_reader", metric="rouge"))
    assert "warning" not in run(*words, command="plan")[2]


def test_a_metric_of_ones_own_scores_and_its_edits_run_again(own_run, own, tmp_path):
    for score in (0.25, 0.75):
        (own / "table_metric.py").write_text(f"def exact(prediction, reference, all_classes):\n    return {score}\n")
        own_run("task=birds")
    assert sorted(rows(folder)[0]["score"] for folder in folders(tmp_path / "runs")) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"table_reader.py": "raise ValueError('broken')"}, "data.source=table_reader.read cannot be imported: broken"),
        ({"table_reader.py": "def read(dataset, root):\n    open('/nowhere/at/all')"}, "at/all' (table_reader.py:2)"),
        ({"table_reader.py": "def read(dataset, root):\n    yield 3"}, "birds[0]: must be a Record, or a mapping"),
        ({"table_metric.py": "import no_such_package"}, "No module named 'no_such_package'"),
    ],
)
def test_what_is_wrong_with_ones_own_code_is_one_line(run, own, changed, says, tmp_path):
    for name, text in changed.items():
        (own / name).write_text(text)
    code, _, err = run(f"--config-dir={own}", *QUICK, "task=birds")
    assert says in one_line(code, err)
    assert not folders(tmp_path / "runs")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"input": None}, "birds[1]: 'input' must be a string, not null"),
        ({"length": 2.5}, "birds[1]: 'length' must be a whole number of words"),
        ({"dataset": "fish"}, "birds[1]: 'dataset' must be 'birds', like the name asked for, not 'fish'"),
        ({"_id": "\ud83d"}, "birds[1]: '_id' '\\ud83d' holds half of a surrogate pair"),
        ({"_id": "1"}, "birds[1]: '_id' '1' stands already at data.source=table_rows.read: birds[0]"),
    ],
)
def test_wrong_records_name_dataset_and_index(monkeypatch, wrong, says):
    row = ROW | {"_id": "2"} | wrong
    config = served(monkeypatch, lambda dataset, root: [ROW, row])
    with pytest.raises(LazyBenchError) as caught:
        load_records("birds", config, None)
    assert str(caught.value).startswith(f"data.source=table_rows.read: {says}")


def served(monkeypatch, read, **settings):
    """The config of data that `read` serves."""
    module = type(sys)("table_rows")
    module.read = read
    monkeypatch.setitem(sys.modules, "table_rows", module)
    return DataConfig("mine", "table_rows.read", **settings)


def test_a_reader_is_read_to_the_limit_and_gets_the_settings_that_it_asks_for_by_name(monkeypatch):
    def read(dataset, root, limit=7, *, tokens, prompt_tokens, seed, mine="own"):
        assert (dataset, root, limit, mine) == ("birds", "anything://at/all", 7, "own")
        for number in range(10**9):
            context = f"{tokens} {seed} {prompt_tokens('a text', 'a question')}"
            yield ROW | {"_id": str(number), "context": context, "further": object()}

    config = served(monkeypatch, read, root="anything://at/all", tokens=600, seed=3, limit=2)
    first, second = load_records("birds", config, None, lambda context, query: len(context + query))
    assert first.context == "600 3 16"
    assert second.id == "1"


def test_all_of_a_source_without_datasets_says_what_to_give(monkeypatch):
    config = served(monkeypatch, lambda dataset, root: [])
    with pytest.raises(LazyBenchError, match=r"^task=all: data\.datasets is empty: give the facts of what table_rows"):
        choose("all", config, load_facts())


def test_a_metric_of_ones_own_is_a_function_anywhere(own, monkeypatch):
    monkeypatch.syspath_prepend(own)
    assert metrics.get("table_metric.exact")("a", "a", None) == 1.0
    (own / "table_metric.py").write_text("def exact(prediction, reference, all_classes):\n    {}[reference]\n")
    forget()
    metric = metrics.get("table_metric.exact")
    with pytest.raises(
        LazyBenchError, match=r"metric 'table_metric\.exact' raised KeyError: 'b' \(table_metric\.py:2\)$"
    ):
        metric("a", "b", None)
    with pytest.raises(LazyBenchError, match=r"^metric 'builtins\.max' gave 'b': a score is from 0 to 1$"):
        metrics.get("builtins.max")("a", "b", "")
