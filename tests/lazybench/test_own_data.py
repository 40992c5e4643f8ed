"""Datasets in a format of the user's own, read by a function of the user's own and scored by the user's own metric."""

import csv
import importlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from marks import slow_but
from support import folders, one_line, rows

from lazybench.config import DataConfig
from lazybench.data import Record, load_records
from lazybench.data.hub import OutOfReach
from lazybench.errors import LazyBenchError

READER = '''
from lazybench.data import Record


def read(dataset, root):
    """Yield three records."""
    for number in range(3):
        yield Record(f"{dataset}-{number}", dataset, "Which bird?", f"In {root} it sings. " * 30, ("me",), None, 120)
'''
METRIC = "def exact(prediction, reference, all_classes):\n    return float(prediction == reference)\n"
DATA = """# My tables.
name: my_tables
source: table_reader.read
root: tables
datasets:
  birds: {prompt: "{context}\\nQuestion: {input}\\nAnswer:", max_new_tokens: 4, metric: table_metric.exact}
  fish: {prompt: "{context}\\nSummary:", max_new_tokens: 4, metric: rouge, task: animals}
"""
QUICK = ("data=tables", "method=baseline", "data.limit=null", "timing.per_dataset=0")
ROW = {"input": "Who?", "context": "A text.", "answers": ["me"]}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of configs with a data config, its reader and its metric beside it, to be worked in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    configs = tmp_path / "configs"
    (configs / "data").mkdir(parents=True)
    (configs / "data" / "tables.yaml").write_text(DATA)
    (configs / "table_reader.py").write_text(READER)
    (configs / "table_metric.py").write_text(METRIC)
    yield configs
    forget()


def forget():
    """Import the modules of these tests again, as in a new process."""
    for name in ("table_reader", "table_metric"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def own_run(run, own):
    """Call a command on the user's own data; fails unless the exit code is 0."""

    def call(*words, command="run"):
        forget()
        code, out, err = run(f"--config-dir={own}", *QUICK, *words, command=command)
        assert code == 0, err
        return out

    return call


def test_all_of_the_users_data_is_planned_run_and_reported(own_run, lazybench, tmp_path):
    assert "1 of them with records to run" in own_run("task=all", command="plan")
    out = own_run("task=all")
    assert "records: my_tables" in out
    (folder,) = folders(tmp_path / "runs")
    assert [(row["_id"], row["data"]) for row in rows(folder)] == [
        (f"{dataset}-{number}", "my_tables") for dataset in ("birds", "fish") for number in range(3)
    ]
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["data"]["source"] == "table_reader.read"
    assert saved["data"]["available"] == ["birds", "fish"]
    assert list(saved["code"]) == ["table_metric"]
    assert "0 of them with records to run" in own_run("task=all", command="plan")
    forget()  # neither the reader nor the metric is needed for a report
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    table = (tmp_path / "report/report.md").read_text()
    for name in ("birds", "animals"):
        assert f"| {name} | unmodified | 0.00 |" in table


def test_a_run_that_is_resumed_under_another_label_does_not_mix_labels(own_run, tmp_path):
    own_run("task=birds", "data.label=First")
    (folder,) = folders(tmp_path / "runs")
    (folder / "scores.json").unlink()
    predictions = folder / "predictions.jsonl"
    predictions.write_text(predictions.read_text().splitlines(keepends=True)[0])
    own_run("task=birds", "data.label=Second")
    assert len({row["data"] for row in rows(folder)}) == 1
    assert json.loads((folder / "scores.json").read_text())["data"] == "Second"
    assert yaml.safe_load((folder / "config.yaml").read_text())["data"]["label"] == "Second"


def test_a_metric_of_the_users_scores_and_its_edits_run_again(own_run, own, tmp_path):
    for score in (0.25, 0.75):
        (own / "table_metric.py").write_text(f"def exact(prediction, reference, all_classes):\n    return {score}\n")
        own_run("task=birds")
    assert sorted(rows(folder)[0]["score"] for folder in folders(tmp_path / "runs")) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table_reader.py": "def read(dataset, root):\n    open('/nowhere/at/all')"}, "at/all' (table_reader.py:2)"),
        ({"table_reader.py": "def read(dataset, root):\n    yield 3"}, "birds[0]: must be a Record, or a mapping"),
        ({"table_metric.py": "import no_such_package"}, "No module named 'no_such_package'"),
    ],
)
def test_errors_of_the_users_code_end_in_one_line(run, own, changed, message, tmp_path):
    for name, text in changed.items():
        (own / name).write_text(text)
    code, _, err = run(f"--config-dir={own}", *QUICK, "task=birds")
    assert message in one_line(code, err)
    assert not folders(tmp_path / "runs")


def test_a_reader_is_read_to_the_limit_and_gets_settings_by_name(monkeypatch):
    def read(dataset, root, limit=7, *, tokens, seed, mine="own"):
        assert (dataset, root, limit, mine) == ("birds", "anything://at/all", 7, "own")
        for number in range(10**9):
            yield ROW | {"_id": str(number), "context": f"{tokens} {seed}", "further": object()}

    monkeypatch.setitem(sys.modules, "table_rows", SimpleNamespace(read=read))
    config = DataConfig("mine", "table_rows.read", root="anything://at/all", tokens=600, seed=3, limit=2)
    first, second = load_records("birds", config, None)
    assert first.context == "600 3"
    assert second.id == "1"


def load_anything(load, columns=None, rows=None, **settings):
    """Load a dataset by `datasets`."""
    columns = columns or {"context": "passage", "input": "question"}
    datasets = {"birds": {"load": load, "columns": columns, "rows": rows or {}}}
    config = DataConfig("mine", "lazybench.data.hf_datasets.read", datasets=datasets, **settings)
    return load_records("birds", config, None)


@pytest.mark.parametrize("kind", slow_but(("csv",), ("csv", "json", "parquet")))
def test_files_that_datasets_loads_are_read_as_they_are_now(tmp_path, kind):
    for answer in (7, 8):
        texts = {"passage": ["The wren sings.", "A text."], "question": ["Who?", "What?"]}
        table = pd.DataFrame(texts | {"answers": answer})
        path = tmp_path / f"birds.{kind}"
        arguments = {"orient": "records"} if kind == "json" else {"index": False}
        getattr(table, f"to_{kind}")(path, **arguments)
        records = load_anything({"path": kind, "data_files": path.name}, root=str(tmp_path))
        assert records[0] == Record("0", "birds", "Who?", "The wren sings.", (str(answer),), None, 3)
        assert [record.id for record in records] == ["0", "1"]
        assert load_anything({"path": kind, "data_files": str(path)}, limit=1) == records[:1]
        assert load_anything({"path": kind}, root=str(tmp_path)) == records
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("file", "columns", "message"),
    [
        (None, {}, "dataset 'birds': give load, such as {path: csv"),
        ("no.json", {}, "no.json cannot be loaded: Unable to find"),
        ("birds.json", {"context": "txt"}, "there is no column txt among text, answers"),
        ("birds.json", {"context": "{text} {txt}"}, "there is no column txt among text, answers"),
        ("birds.json", {"input": "text"}, "birds[0]: 'context' must be a string, and is missing"),
        ("broken.csv", {}, "broken.csv: the rows have more cells than the first line has names"),
        ("broken.json", {}, "broken.json:1: not JSON: Expecting value"),
    ],
)
def test_data_that_cannot_be_loaded_ends_in_one_line(tmp_path, monkeypatch, capfd, file, columns, message):
    monkeypatch.chdir(tmp_path)
    Path("birds.json").write_text('{"text": "A wren.", "answers": ["a wren"]}')
    Path("broken.json").write_text('{"text": ')
    Path("broken.csv").write_text("text,answers\nA wren.,a wren,\n")
    with pytest.raises(LazyBenchError) as caught:
        load_anything(file and {"path": file.partition(".")[2], "data_files": file}, columns)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) + capfd.readouterr().err


CELLS = ["02139", "+15", "NA", "", "3", "0.50", "1e5", "true", "True", "None", "null", "1999-05-01", " x ", 'a "b"\n']


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, rows[0]).writerows([{name: name for name in rows[0]}, *rows])


def write_json(path, rows):
    path.write_text(json.dumps(rows))


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("write", [write_csv, write_json, write_json_lines])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(st.sampled_from(CELLS) | st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1)
)
@example(cells=["1999-05-01"])
def test_texts_are_read_as_they_stand_in_the_file(tmp_path, write, cells):
    path = tmp_path / "birds"
    write(path, [{"cell": cell, "name": "wren"} for cell in cells])
    load = {"path": "csv" if write is write_csv else "json", "data_files": str(path)}
    columns = {"context": "cell", "input": "{cell}|{name}", "answers": "cell", "groups": "cell"}
    records = load_anything(load, columns)
    for cell, record in zip(cells, records, strict=True):
        assert (record.context, record.answers, record.groups) == (cell, (cell,), cell)
        assert record.input == f"{cell.strip()}|wren"


def test_numbers_of_json_are_read_as_they_stand_in_the_file_and_null_is_no_text(tmp_path):
    path = tmp_path / "birds"
    path.write_text('{"passage": 0.50, "question": null, "answers": [1e5, true, 7.0]}')
    (record,) = load_anything({"path": "json", "data_files": str(path)}, {"context": "passage", "input": "{question}"})
    assert (record.context, record.input, record.answers) == ("0.50", "", ("1e5", "true", "7.0"))


def test_rows_are_chosen_by_their_text(tmp_path):
    path = tmp_path / "birds.csv"
    path.write_text("context,answers,number\nA wren.,yes,1\nA tit.,no,2\n")
    load = {"path": "csv", "data_files": str(path)}
    for number in (2, "2"):
        (record,) = load_anything(load, {"context": "context"}, rows={"number": number})
        assert (record.id, record.context) == ("1", "A tit.")
    with pytest.raises(LazyBenchError, match=r"no row has \{'number': '3'\}; the first one has \{'number': '1'\}"):
        load_anything(load, {"context": "context"}, rows={"number": 3})


def test_a_dataset_of_the_hub_is_read_offline_from_the_hubs_cache(offline, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub/datasets--some--birds"
    for file, text in {
        "refs/main": commit,
        f"snapshots/{commit}/test.csv": "passage,question,answers\nA,B,02\n",
    }.items():
        (repository / file).parent.mkdir(parents=True, exist_ok=True)
        (repository / file).write_text(text)
    assert load_anything({"path": "some/birds", "split": "test"}) == [Record("0", "birds", "B", "A", ("02",), None, 1)]
    with pytest.raises(LazyBenchError, match=r"load\.split is one of test"):
        load_anything({"path": "some/birds", "split": "train"})


def test_a_dataset_of_a_silent_hub_is_given_up_in_seconds(monkeypatch, silent_hub):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    start = time.monotonic()
    with pytest.raises(OutOfReach, match=r"cannot be reached.*and the local cache lacks it"):
        load_anything({"path": "some/birds", "split": "test"})
    assert time.monotonic() - start < 5
