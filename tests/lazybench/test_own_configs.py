"""Data, tasks, models and methods of one's own: in `task=all`, in `list`, in the commands of a report."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import pytest
import yaml
from support import byte_tokenizer, folders, one_line, rows, save_tiny_model

METHOD = """
from dataclasses import dataclass, field

from lazybench.methods import Method, Output


@dataclass
class LastTokens(Method):
    tokens: int = 500
    derived: str | None = field(init=False, default=None)

    def generate(self, prompt, decode, seed):
        ids = prompt.ids[:, -self.tokens :]
        return Output(decode(ids), prompt_computed=ids.shape[1] / prompt.ids.shape[1])
"""
DATA = """# Three datasets of mine.
name: my_data
source: longbench
root: records
datasets:
  my_qa: {task: my_group, prompt: "{context}\\nQuestion: {input}\\nAnswer:", max_new_tokens: 4, metric: qa_f1}
  my_sum: {task: my_group, prompt: "{context}\\nSummary:", max_new_tokens: 4, metric: rouge, chat: false}
  my_alone: {prompt: "{context}{input}", max_new_tokens: 4, metric: qa_f1, records: 1}
  my_lost: {task: code, prompt: "{context}", max_new_tokens: 4, metric: code_sim}
"""
MODEL = "# A model of mine.\nname: tiny_eight\npath: weights\nlimit: 300\ndtype: float32\n"
# What makes runs quick here, and takes times as they are: this machine may be busy.
QUICK = ("timing.warmup=0", "timing.cpu_share=0")


def write_records(root, datasets, count=1):
    root.mkdir(exist_ok=True)
    for dataset in datasets:
        record = {"input": "Who?", "context": "It was Ada. " * 30, "answers": ["Ada"], "length": 90, "language": "en"}
        record |= {"dataset": dataset, "all_classes": None}
        lines = (json.dumps(record | {"_id": f"{dataset}{number}"}) + "\n" for number in range(count))
        (root / f"{dataset}.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A random model that is deep enough for every method's own settings."""
    return save_tiny_model(tmp_path_factory.mktemp("eight"), byte_tokenizer(), layers=8)


@pytest.fixture
def mine(tmp_path, weights, monkeypatch):
    """A folder with configs of everything in `my configs/`, to be worked in: their paths are relative to it."""
    configs = tmp_path / "my configs"
    for name, text in {"method/short": "", "data/my_records": DATA, "model/eight": MODEL}.items():
        (configs / name).parent.mkdir(parents=True)
        (configs / f"{name}.yaml").write_text(text)
    (configs / "method/short.yaml").write_text("_target_: last_tokens.LastTokens\nname: last_tokens\ntokens: 50\n")
    (configs / "last_tokens.py").write_text(METHOD)
    write_records(tmp_path / "records", ("my_qa", "my_sum", "my_alone"))
    (tmp_path / "weights").symlink_to(weights)
    monkeypatch.chdir(tmp_path)
    return configs


@pytest.fixture
def own_run(lazybench, mine):
    """Run on one's own model, data and method; fails unless the exit code is 0."""

    def call(*words):
        given = {word.partition("=")[0] for word in words}
        chosen = {"model": "eight", "data": "my_records", "method": "short"}
        defaults = [f"{key}={name}" for key, name in chosen.items() if key not in given]
        code, out, err = lazybench("run", f"--config-dir={mine}", *QUICK, *defaults, *words)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def missing(lazybench):
    """What a report says is missing: commands by what they are for."""

    def call(*words):
        code, out, err = lazybench("report", *words)
        assert code == 0, err
        lines = out.partition("\nmissing:\n")[2].splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return {what: command.strip() for whats, command in pairs for what in whats.strip().split("; ")}

    return call


def test_all_runs_what_the_data_has_and_says_what_it_has_not(own_run, tmp_path):
    out = own_run("task=all")
    assert "task=all: the 3 datasets that records has; not there: my_lost" in out
    assert "my_group (mean of datasets)" in out
    (folder,) = folders(tmp_path / "results/runs")
    assert [row["dataset"] for row in rows(folder)] == ["my_qa", "my_sum", "my_alone"]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["data"]["has"] == ["my_qa", "my_sum", "my_alone"]


def test_part_of_longbench_is_all_there_is(run, lazybench, tmp_path):
    write_records(tmp_path / "records", ("triviaqa", "lcc", "lsht"))
    there = ("method=baseline", "data=longbench", f"data.root={tmp_path / 'records'}", *QUICK)
    code, out, err = run(*there, "task=fewshot")
    assert "no trec.jsonl there: found lcc, lsht, triviaqa" in one_line(code, err)
    code, out, _ = run(*there, "task=all", command="plan")
    assert code == 0
    assert "task=all: the 2 datasets that" in out
    code, out, err = run(*there, "task=all")
    assert code == 0, err
    assert "not there: narrativeqa, qasper" in out
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert "LazyLLM: no run\n" in out
    table = (tmp_path / "report/table1.md").read_text()
    for task, count in (("Few-shot learning", 3), ("Code completion", 2)):
        assert re.search(rf"^\| {task} \| baseline \|.*\| 1 \(1 of {count} datasets\) \|$", table, re.MULTILINE)
    assert "| Summarization |" not in table
    write_records(tmp_path / "records", ("samsum",))
    code, out, _ = run(*there, "task=all")
    assert code == 0
    assert "finished earlier" not in out


def test_unfinished_runs_count_the_records_that_there_are(run, lazybench, tmp_path):
    write_records(tmp_path / "records", ("lcc", "repobench-p"), count=2)
    there = ("method=baseline", "task=code", "data=longbench", f"data.root={tmp_path / 'records'}", *QUICK)
    code, _, err = run(*there, "shard=1/2")
    assert code == 0, err
    code, _, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert "unfinished: 2 of 4" in (tmp_path / "report/table1.md").read_text()


def test_where_configs_and_records_lie_decides_nothing(own_run, lazybench, mine, tmp_path):
    own_run("task=my_group")
    shutil.copytree(mine, tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "records", tmp_path / "elsewhere" / "records")
    moved = (f"--config-dir={tmp_path / 'elsewhere'}", "data.root=elsewhere/records")
    words = (*moved, *QUICK, "model=eight", "data=my_records", "method=short", "task=my_group")
    code, out, err = lazybench("run", *words)
    assert code == 0, err
    assert "finished earlier" in out
    write_records(tmp_path / "elsewhere" / "records", ("lcc",))  # which `task=all` would run
    code, out, _ = lazybench("run", *words)
    assert "finished earlier" in out


def test_list_shows_what_is_ones_own_and_where_it_comes_from(lazybench, mine):
    code, out, _ = lazybench("list", "--config-dir", str(mine))
    assert code == 0
    assert re.search(rf"^  short +\[{mine}\]$", out, re.MULTILINE)
    assert re.search(rf"^  eight +A model of mine\.  \[{mine}\]$", out, re.MULTILINE)
    assert re.search(rf"^  my_records +Three datasets of mine\.  \[{mine}\]$", out, re.MULTILINE)
    source = rf"\[data=my_records, {mine}\]$"
    assert re.search(rf"^  my_group +my_qa, my_sum  {source}", out, re.MULTILINE)
    assert re.search(rf"^  code +lcc, repobench-p, my_lost  {source}", out, re.MULTILINE)
    assert re.search(rf"^  my_alone +1 records, qa_f1, at most 4 new tokens  {source}", out, re.MULTILINE)
    assert all(name in out for name in ("lazyllm", "smollm2_135m", "trec"))


def test_list_takes_several_folders_and_marks_what_ours_hides(lazybench, mine, tmp_path):
    (tmp_path / "more/method/deep").mkdir(parents=True)
    for name in ("lazyllm", "deep/other"):
        (tmp_path / f"more/method/{name}.yaml").write_text("")
    code, out, _ = lazybench("list", f"--config-dir={mine}", "-cd", "more")
    assert code == 0
    assert re.search(r"^  lazyllm +\[more, hidden by LazyBench's own\]$", out, re.MULTILINE)
    assert re.search(r"^  deep/other +\[more\]$", out, re.MULTILINE)
    assert "eight" in out


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (None, "--config-dir: no such folder: configs"),
        ({"notes.txt": ""}, "--config-dir: configs has no method/, model/ or data/ in it"),
        ({"data/mine.yaml": "{"}, "configs/data/mine.yaml: cannot be read"),
        ({"data/mine.yaml": "datasets: [1]"}, "configs/data/mine.yaml: datasets must be facts by dataset, not list"),
        ({"data/mine.yaml": "datasets: {lcc: {}}"}, "configs/data/mine.yaml: dataset name 'lcc' is LongBench's own"),
    ],
)
def test_a_bad_folder_is_one_line(lazybench, tmp_path, monkeypatch, files, says):
    monkeypatch.chdir(tmp_path)
    for name, text in (files or {}).items():
        (tmp_path / "configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "configs" / name).write_text(text)
    code, _, err = lazybench("list", "--config-dir=configs")
    assert says in one_line(code, err)


def test_an_unknown_task_is_told_with_ones_own(own_run, lazybench, mine):
    words = (f"--config-dir={mine}", "model=eight", "data=my_records", "method=short")
    code, _, err = lazybench("run", *words, "task=my_grup")
    assert "did you mean 'my_group'?" in one_line(code, err)


def test_tables_show_the_tasks_that_are_there(own_run, missing, tmp_path):
    own_run("task=all")
    suggested = missing()
    table = (tmp_path / "results/report/table1.md").read_text()
    for task, count in (("my_group", 2), ("my_alone", 1)):
        assert re.search(rf"^\| {task} \| last tokens tokens=50 \|.*\| {count} \|$", table, re.MULTILINE)
    assert "my_group: my_qa (qa_f1), my_sum (rouge); my_alone (qa_f1)" in table
    assert "Summarization" not in table
    methods = ("baseline", "random drop", "static pruning", "Selective Context", "LazyLLM")
    assert {f"{method}: no run" for method in methods} < suggested.keys()


def test_suggestions_for_files_name_no_folder_of_this_machine(own_run, missing, tmp_path):
    own_run("task=my_qa")
    said = missing()["last tokens: no run of my_alone, my_sum"]
    assert f"--config-dir '{tmp_path}/my configs'" in said
    for path in (tmp_path / "results/report").rglob("*"):
        if path.suffix in (".json", ".html", ".md", ".csv", ".tex"):
            assert str(tmp_path) not in path.read_text(), path.name
    assert "--config-dir &#x27;FOLDER/my configs&#x27;" in (tmp_path / "results/report/report.html").read_text()


def follow(lazybench, suggested, missing, *words):
    """Run what a report suggests, and see each time that the next report does not miss it any more."""
    for what, command in suggested.items():
        assert command.startswith("python -m lazybench run ")
        words_of_run = shlex.split(command)[3:]
        if "-m" in words_of_run and "experiment" in command:  # a sweep of many runs is only planned
            words_of_run = ["plan", *(word for word in words_of_run[1:] if word != "-m")]
        code, _, err = lazybench(*words_of_run)
        assert code == 0, (command, err)
        assert words_of_run[0] == "plan" or what not in missing(*words), command


@pytest.mark.slow
def test_what_a_report_suggests_for_ones_own_method_works(own_run, lazybench, missing, monkeypatch, tmp_path):
    own_run("task=my_qa", "method.tokens=40", "output=out put", "timing.paired=false")
    own_run("task=my_alone", "method.tokens=40", "output=out put")
    (folder,) = [folder for folder in folders(tmp_path / "out put") if rows(folder)[0]["dataset"] == "my_alone"]
    (folder / "scores.json").unlink()
    words = (f"runs={tmp_path / 'out put'}", f"output={tmp_path / 'report'}")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")  # the commands say where everything is
    suggested = {what: said for what, said in missing(*words).items() if what.startswith("last tokens")}
    assert suggested.keys() == {
        "last tokens tokens=40: unfinished, 1 records so far",
        "last tokens: no run of my_sum",
    }
    follow(lazybench, suggested, missing, *words)
    methods = {path.parents[1].name for path in (tmp_path / "out put").rglob("config.yaml")}
    assert methods == {"last_tokens"}
    assert len(folders(tmp_path / "out put")) == 3


@pytest.mark.slow
def test_everything_that_a_report_suggests_works(own_run, lazybench, missing, tmp_path):
    (tmp_path / "weights").unlink()
    save_tiny_model(tmp_path / "weights", byte_tokenizer(), layers=26)  # what Figure 5's strongest schedules need
    own_run("task=all", "data.limit=1")
    follow(lazybench, missing(), missing)


@pytest.mark.slow
def test_what_a_report_suggests_for_a_model_given_by_its_path_works(lazybench, missing, tmp_path, weights, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my weights").symlink_to(weights)
    write_records(tmp_path / "records", ("triviaqa", "lcc", "repobench-p", "vcsum"))
    words = ("model.path=my weights", "model.limit=300", "model.chat='a {prompt}: b'", "data=longbench", *QUICK)
    words += ("data.root=./records", "method=baseline,lazyllm", "task=code,triviaqa,vcsum")
    code, _, err = lazybench("run", "-m", *words)
    assert code == 0, err
    suggested = {what: said for what, said in missing().items() if not what.startswith("figure")}
    shutil.rmtree(tmp_path / "results/runs/my-weights/longbench/lazyllm")
    suggested = missing() | suggested
    assert "LazyLLM: no run" in suggested
    follow(lazybench, {what: said for what, said in suggested.items() if "figure" not in what}, missing)
