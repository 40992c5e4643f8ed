"""Bad input ends in one line that says what would be right, with exit code 2, and writes nothing."""

import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lazybench.config import CONF
from lazybench.data.facts import ALL, load_facts, tasks

CHOICES = {group: [path.stem for path in (CONF / group).glob("*.yaml")] for group in ("method", "model", "data")}
CHOICES["task"] = [ALL, *tasks(), *load_facts()]
SETTINGS = (
    "model.limit",
    "data.tokens",
    "timing.warmup",
    "timing.paired",
    "trace",
    "model.dtype",
    "data.limit",
    "output",
)
JUNK = (
    "x",
    "1.5",
    "nan",
    "[]",
    "{a:1}",
    "''",
    "[1,",
    "'x",
    "a,,b",
    "${",
    "${nothing}",
    "ä",
    "x\u202e",
    "\udc80",
    "9" * 3000,
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
JARGON = re.compile(r"OmegaConf|DictConfig|NoneType|Traceback|\$VALUE|full_key|hydra\.cc|<class|usage:")


@st.composite
def misspelt(draw, words):
    """Drop, insert or replace a letter in one of `words`, without making another of them."""
    word, letter = draw(st.sampled_from(words)), draw(st.sampled_from(LETTERS))
    index = draw(st.integers(0, len(word) - 1))
    rest = draw(st.sampled_from([word[index + 1 :], letter + word[index:], letter + word[index + 1 :]]))
    assume((typo := word[:index] + rest) not in words and re.fullmatch(r"[a-z][a-z0-9_.-]*[a-z0-9]", typo))
    return typo


def bad_words():
    choice = st.one_of(*[misspelt(names).map(f"{group}={{}}".format) for group, names in CHOICES.items()])
    setting = st.builds(
        "{}{}={}".format, st.sampled_from(["", "+"]), misspelt(SETTINGS), st.sampled_from(["1", "a", "[1]"])
    )
    numbers = st.builds("{}={}".format, st.sampled_from(SETTINGS[:3]), st.sampled_from(JUNK))
    flags = st.builds("{}={}".format, st.sampled_from(SETTINGS[3:5]), st.sampled_from(JUNK))
    nonsense = st.sampled_from(
        ["", "=", "+", "-z", "--task=code", "--task", "lazyllm", "task", "a" * 3000, "\udc80", "~task"]
    )
    return choice | setting | numbers | flags | nonsense


def check(code, out, err, cwd):
    """Assert that a command ended in one line and wrote nothing; returns the line."""
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert code == 2, line
    assert line.startswith("lazybench: ")
    assert 20 < len(line) < 700
    assert line.isprintable()
    assert not JARGON.search(line)
    # A first line of output is printed before slow imports, and so before settings are checked.
    assert re.fullmatch(r"((model|checking|reading) [^\n]*\n)?", out)
    assert not any(cwd.iterdir())
    return line


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_a_bad_word_costs_one_line(run, cwd, count):
    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bad_words(), st.sampled_from([(), ("-m",)]))
    def costs_one_line(word, sweep):
        check(*run(*sweep, word), cwd)

    costs_one_line()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # misspelt
        (["task=multidoc"], "did you mean 'multidoc_qa'"),
        (["task=nothing_like_it_zq"], "lazybench list shows"),
        (["model.limt=5"], "did you mean 'model.limit'?"),
        (["+method.shedule=1"], "method.schedule"),
        (["method=baseline", "method.keep=0.5"], "there is no setting 'method.keep'"),
        (["model=some/tiny-model"], "for a hub id, folder or .gguf file give model.path= and model.limit="),
        # of another type
        (["model.limit=many"], "model.limit: Value 'many' of type 'str' could not be converted to Integer"),
        (["trace=maybe"], "trace: Value 'maybe' is not a valid bool"),
        (["method=static_pruning", "method.layer=x"], "method.layer=x must be a layer, from 0, or a part of the depth"),
        (["method._target_=builtins.dict"], "not a lazybench.methods.Method"),
        (["method._target_=no.such.Class"], "method._target_"),
        # missing
        (["task=???"], "nothing is set for task: give it as task=VALUE"),
        (["lazyllm"], "write a setting and its value, key=value"),
        (["output="], "output= must be a file or folder to write to"),
        # several
        (["method=baseline,lazyllm"], "method=baseline,lazyllm is several values: add -m to run each of them"),
        (["method=baseline,lazyllm", "task=code,lcc"], "and task=code,lcc are several values: add -m to run each"),
        (["method=[baseline,lazyllm]"], "method=[baseline,lazyllm] is a list: give method=baseline,lazyllm, with -m"),
        (["method.schedule=1:0.5,2:0.5"], "or write a list in brackets, 'method.schedule=[1:0.5,2:0.5]'"),
        (["+experiment=table1"], "the experiment sweeps over model: add -m, or set a value of each"),
        (["+cluster=local"], "add -m"),
        # out of range
        (["model.limit=1"], "model.limit=1 must be at least 2"),
        (["data.tokens=12"], "data.tokens=12 must be from 512"),
        (["timing.cpu_share=1.5"], "timing.cpu_share=1.5 must be from 0 to 1"),
        (["model.dtype=int8"], "must be one of auto, float32"),
        (["model.name=../other"], "must be a folder's name"),
        (["method.name=a/b"], "must be a folder's name"),
        (["method=lazyllm", "method.schedule=[1:0.5,1:0.4]"], "must increase"),
        (["method=baseline", "+method.repeats=0"], "at least 1"),
        (["data.limit=null"], "give a number"),
        (["shard=3/2"], "write i/n"),
        (["model.chat=hello"], "{prompt}"),
        # not there
        (["model.path=/no/such/folder"], "no such folder"),
        (["model.device=cuda:7"], "; use model.device=cpu or auto"),
        (["data=longbench", "data.root=/no/such/folder"], "/no/such/folder"),
        (["--config-dir", "/nowhere"], "--config-dir: /nowhere"),
        # what Hydra cannot read
        (["output=/home/jürgen"], "\"output='/home/jürgen'\""),
        (["model.limit=${nothing}"], "model.limit: Interpolation key 'nothing' not found"),
    ],
)
def test_the_line_says_what_would_be_right(run, cwd, words, says):
    assert says in check(*run(*words), cwd)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=lazyllm", "method.schedule=[1:0.6],[9:0.5]"], "the model has 4 layers"),
        (["model.limit=900,4090"], "4096 positions"),
        (["timing.warmup=0,-1"], "at least 0"),
        (["+experiment=figure5,smoke", "+cluster=joblib"], "give one at a time"),
        (["task=lcc", "data.limit=1", "data.half=first,second"], "none of the records is in that half"),
        (["model.device=cpu,xpu"], "model.device=xpu is not available here"),
        (["method=lazyllm,lazzy"], "lazyllm"),
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
        (["run"], "nothing is set for task"),
        (["plan", "task=hotpot"], "hotpotqa"),
        (["status", "rns=x"], "unrecognized arguments: --rns=x: lazybench status --help shows what there is"),
        (["status", "runs="], "empty, give a folder"),
        (["status", "runs=/nowhere"], "/nowhere"),
        (["report", "calibrated=maybe"], "calibrated"),
        (["list", "more"], "more"),
        (["score"], "FILE"),
        (["speed", "lengths=[1]"], "lengths=1 must be at least 2"),
        (["speed", "lengths=[]"], "lengths=[1024,2048]"),
        (["speed", "output=speed.png"], "give a .csv, and a plot comes beside it"),
        (["speed", "-m", "method=lazyllm,fastkv", "output=a.csv"], "output='a_${model.name}_${method.name}.csv'"),
        (["speed", "text=/nowhere"], "text=/nowhere cannot be read: there is no such file"),
        (["match", "speedups=[1,2]"], "speedups=1.0 must be above 1"),
        (["map"], "nothing is set for task"),
        (["map", "task=code,lcc"], "only methods may differ"),
    ],
)
def test_bad_words_of_other_commands_cost_one_line(lazybench, cwd, words, says):
    assert says in check(*lazybench(*words), cwd)


OUT_OF_RANGE = [
    (["method=static_pruning", "method.keep=50"], "method.keep=50 must be a number above 0, at most 1"),
    (["method=lazyllm", "method.schedule=[40:0.5]"], "method.schedule: the schedule prunes after layer 40"),
    (["method=lazyllm", "method.ranking={queries:0}"], "method.ranking: "),
    (["method=fastkv", "method.pooling=2"], "method.pooling=2 must be an odd number"),
]


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [(command, *case) for command in ("run", "speed", "match", "map") for case in OUT_OF_RANGE]
    + [
        ("run", ["method=prompt_compression", "method.ratio=1"], "method.ratio=1 must be"),
        ("run", ["method=baseline", "model.limit=5000"], "4096 positions"),
    ],
)
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_what_is_out_of_range_reads_no_tokenizer(lazybench, tiny_model, monkeypatch, cwd, sweep, command, words, says):
    monkeypatch.setattr("lazybench.model.loading.AutoTokenizer", None)
    if sweep and command == "map":
        pytest.skip("map has no sweep")
    words = [f"model.path={tiny_model}", "model.limit=900", *words]
    words += [] if command == "speed" else ["task=2wikimqa"]
    code, out, err = lazybench(command, *sweep, *words)
    assert says in check(code, out, err, cwd)


def test_a_sweep_of_speed_checks_each_job_before_its_first(lazybench, tiny_model, cwd):
    words = (f"model.path={tiny_model}", "model.limit=900", "method=static_pruning", "method.keep=0.5,50")
    code, out, err = lazybench("speed", "-m", *words, "lengths=[300]")
    assert "method.keep=50" in check(code, out, err, cwd)
    assert out == "checking 2 jobs before any starts\n"


def test_an_output_folder_that_cannot_be_written(run, tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    code, _, err = run()
    assert code == 2
    assert "cannot be written" in err
