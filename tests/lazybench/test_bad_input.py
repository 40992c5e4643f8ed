"""Bad input ends in one line that names the correct input, with exit code 2, and writes nothing."""

import re

import pytest

JARGON = re.compile(r"OmegaConf|DictConfig|NoneType|Traceback|\$VALUE|full_key|hydra\.cc|<class|usage:")


def check(code, out, err, cwd):
    """Assert that a command ended in one line and wrote nothing; returns the line."""
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert code == 2, line
    assert line.startswith("lazybench: ")
    assert not JARGON.search(line)
    # A first line of output is printed before slow imports, and so before settings are checked.
    assert re.fullmatch(r"((model|checking|reading) [^\n]*\n)?", out)
    assert not any(cwd.iterdir())
    return line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # misspelt
        (["model.limt=5"], "did you mean 'model.limit'?"),
        (["method=lazyllmm"], "there is no method 'lazyllmm': did you mean 'lazyllm'?"),
        (["model=some/tiny-model"], "for a hub id, folder or .gguf file give model.path= and model.limit="),
        # of another type
        (["model.limit=many"], "model.limit: Value 'many' of type 'str' could not be converted to Integer"),
        (["method._target_=no.such.Class"], "method._target_"),
        # missing
        (["lazyllm"], "write KEY=VALUE"),
        (["output="], "output= must be a file or folder to write to"),
        # several
        (["method=baseline,lazyllm"], "method=baseline,lazyllm is several values: add -m to run each of them"),
        (["method=[baseline,lazyllm]"], "method=[baseline,lazyllm] is a list: leave out the brackets"),
        (["method.schedule=1:0.5,2:0.5"], "or write a list in brackets, 'method.schedule=[...]'"),
        (["+experiment=table1"], "model=llama2_7b,xgen_7b is several values: add -m"),
        (["+cluster=local"], "add -m"),
        # out of range
        (["model.limit=1"], "model.limit=1 must be at least 2"),
        (["model.name=../other"], "must be a folder's name"),
        (["data.limit=null"], "give a number"),
        (["shard=3/2"], "write i/n"),
        (["shard=0/2"], "write i/n"),
        (["model.chat=hello"], "{prompt}"),
        (["model.template=no_thinking"], "model.template: "),
        (["model=qwen3_8b", "model.chat=null"], "model.template needs model.chat=template"),
        # not there
        (["model.path=/no/such/folder"], "no such folder"),
        (["model.device=cuda:7"], "; use model.device=cpu or auto"),
        (["data=longbench", "data.root=/no/such/folder"], "/no/such/folder"),
        (["data=longbench_v2", "data.root=/no.json", "task=all"], "data.root=/no.json: no such file or folder"),
        # what Hydra cannot read
        (["output=/home/jürgen"], "write KEY=VALUE, or \"KEY='VALUE'\" for a value with special characters"),
    ],
)
def test_the_message_names_the_correct_input(run, cwd, words, says):
    assert says in check(*run(*words), cwd)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=lazyllm", "method.schedule=[1:0.6],[9:0.5]"], "the model has 4 layers"),
        (["+experiment=figure5,smoke"], "give one at a time"),
        (["task=lcc", "data.limit=1", "data.half=first,second"], "none of the records is in that half"),
        (["model.device=cpu,xpu"], "model.device=xpu is not available here"),
    ],
)
def test_one_bad_job_stops_a_sweep_before_its_first(run, cwd, words, says):
    code, out, err = run("-m", *words)
    assert says in check(code, out, err, cwd)
    assert "model tiny" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rum"], "unknown command 'rum': did you mean 'run'?"),
        (["run"], "nothing is set for task: give it as task=VALUE"),
        (["status", "rns=x"], "unrecognized arguments: --rns=x: lazybench status --help lists the arguments"),
        (["status", "runs=/nowhere"], "/nowhere"),
        (["score"], "FILE"),
        (["speed", "-m", "method=lazyllm,fastkv", "output=a.csv"], "several jobs would write output=a.csv"),
        (["match", "-m", "method=lazyllm", "method.ranking=eq1,plus", "output=a"], "several jobs would write output=a"),
        (["match", "speedups=[1,2]"], "speedups=1.0 must be above 1"),
        (["map", "task=code,lcc"], "only methods may differ"),
    ],
)
def test_bad_words_of_other_commands_end_in_one_line(lazybench, cwd, words, says):
    assert says in check(*lazybench(*words), cwd)


@pytest.mark.parametrize(("command", "sweep"), [("run", ["-m"]), ("speed", []), ("match", ["-m"]), ("map", [])])
def test_settings_out_of_range_read_no_tokenizer(lazybench, tiny_model, monkeypatch, cwd, sweep, command):
    monkeypatch.setattr("lazybench.model.loading.AutoTokenizer", None)
    words = [f"model.path={tiny_model}", "model.limit=900", "method=static_pruning", "method.keep=50"]
    words += [] if command == "speed" else ["task=2wikimqa"]
    line = check(*lazybench(command, *sweep, *words), cwd)
    assert "method.keep=50 must be a number above 0, at most 1" in line
