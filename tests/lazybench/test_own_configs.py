"""Own data, tasks, models and methods, from a folder outside: in runs, in `task=all` and in `list`."""

import json
import re
import shutil

import pytest
import yaml
from support import LAST_TOKENS, folders, one_line, rows

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
FILES = {
    "method/short": "_target_: last_tokens.LastTokens\nname: last_tokens\ntokens: 50\n",
    "data/my_records": DATA,
    "model/own": "# A model of mine.\nname: own\npath: weights\nlimit: 300\ndtype: float32\n",
}
QUICK = ("timing.per_dataset=0",)


def write_records(root, datasets):
    root.mkdir(exist_ok=True)
    for dataset in datasets:
        record = {"input": "Who?", "context": "It was Ada. " * 30, "answers": ["Ada"], "length": 90, "language": "en"}
        record |= {"dataset": dataset, "all_classes": None, "_id": f"{dataset}0"}
        (root / f"{dataset}.jsonl").write_text(json.dumps(record) + "\n")


@pytest.fixture
def mine(tmp_path, tiny_model, monkeypatch):
    """Change to a folder that own configs are relative to, and return the folder of these configs."""
    configs = tmp_path / "my configs"
    for name, text in FILES.items():
        (configs / name).parent.mkdir(parents=True)
        (configs / f"{name}.yaml").write_text(text)
    (configs / "last_tokens.py").write_text(LAST_TOKENS)
    write_records(tmp_path / "records", ("my_qa", "my_sum", "my_alone"))
    (tmp_path / "weights").symlink_to(tiny_model)
    monkeypatch.chdir(tmp_path)
    return configs


@pytest.fixture
def own_run(lazybench, mine):
    """Run on the own model, data and method."""
    words = (f"--config-dir={mine}", *QUICK, "model=own", "data=my_records", "method=short")
    return lambda *more: lazybench("run", *words, *more)


def test_all_runs_the_datasets_there_are_and_names_those_missing(own_run, tmp_path):
    code, out, err = own_run("task=all")
    assert code == 0, err
    assert "task=all: my_qa, my_sum, my_alone; records lacks my_lost" in out
    assert "my_group, mean" in out
    (folder,) = folders(tmp_path / "results/runs")
    assert [row["dataset"] for row in rows(folder)] == ["my_qa", "my_sum", "my_alone"]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["data"]["available"] == ["my_qa", "my_sum", "my_alone"]
    assert "did you mean 'my_group'?" in one_line(*own_run("task=my_grup")[::2])


def test_moved_configs_and_records_are_the_same_run(own_run, lazybench, mine, tmp_path):
    assert own_run("task=my_group")[0] == 0
    for folder in (mine, tmp_path / "records"):
        shutil.copytree(folder, tmp_path / "elsewhere" / folder.name)
    write_records(tmp_path / "elsewhere/records", ("lcc",))  # which `task=all` would run
    moved = (f"--config-dir={tmp_path / 'elsewhere/my configs'}", "data.root=elsewhere/records", "task=my_group")
    out = lazybench("run", *moved, *QUICK, "model=own", "data=my_records", "method=short")[1]
    assert "finished earlier" in out


def test_several_folders_of_configs(own_run, lazybench, mine, tmp_path):
    shutil.move(mine / "data", tmp_path / "more" / "data")
    assert own_run("-cd", "more", "task=my_qa")[0] == 0
    (path,) = (tmp_path / "results/runs").rglob("environment.json")
    assert "finished earlier" in lazybench(*json.loads(path.read_text())["command"])[1]
    code, _, err = lazybench("time", f"--config-dir={mine}", "-cd", "more", "warmup=0")
    assert code == 0, err
    (timed,) = map(json.loads, next((tmp_path / "results/runs").rglob("times.jsonl")).read_text().splitlines())
    assert timed["trials"].keys() == {"unmodified", f"last_tokens/{path.parent.name}"}


def test_a_model_given_only_by_path_has_its_own_name(lazybench, tiny_model):
    words = ("task=lcc", "method=baseline", f"model.path={tiny_model}", "model.chat=null", "data.limit=1")
    assert f" {tiny_model.name} " in lazybench("plan", *words)[1]
    assert " llama2_7b_random " in lazybench("plan", "model=llama2_7b_random", *words)[1]  # whatever its tokenizer


def test_list_shows_all_choices_and_own_ones_with_their_folders(lazybench, mine, tmp_path):
    (tmp_path / "more/method/deep").mkdir(parents=True)
    (tmp_path / "more/method/deep/other.yaml").write_text("")
    code, out, _ = lazybench("list", "--config-dir", str(mine), "-cd", "more")
    assert code == 0
    assert "new tokens" not in out
    out += lazybench("list", "datasets", "--config-dir", str(mine))[1]
    source = rf"\[data=my_records, {mine}\]"
    for line in (
        rf"short +\[{mine}\]",
        rf"own +A model of mine\.  \[{mine}\]",
        rf"my_records +Three datasets of mine\.  \[{mine}\]",
        rf"my_group +my_qa, my_sum  {source}",
        rf"code +lcc, repobench-p, my_lost  {source}",
        rf"my_alone +1 records, qa_f1, at most 4 new tokens  {source}",
        r"deep/other +\[more\]",
    ):
        assert re.search(rf"^  {line}$", out, re.MULTILINE), line


def test_a_bad_config_is_one_line(lazybench, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.yaml").write_text("datasets: {lcc: {}}")
    message = one_line(*lazybench("list", f"--config-dir={tmp_path}")[::2])
    assert "data/mine.yaml: dataset name 'lcc' is LongBench's own" in message
