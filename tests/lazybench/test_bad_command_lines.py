"""Generated bad command lines: each costs one line, exit code 2, and nothing else."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lazybench.config import CONF
from lazybench.data.facts import ALL, load_facts, tasks

_ROOT = Path(__file__).resolve().parents[2]
_GROUPS = {group: [path.stem for path in (CONF / group).glob("*.yaml")] for group in ("method", "model", "data")}
_TASKS = [ALL, *tasks(), *load_facts()]
_INTEGERS = ("model.limit", "data.seed", "data.tokens", "timing.warmup")
_FLAGS = ("timing.paired", "trace", "model.trust_remote_code")
_TEXTS = ("task", "output", "model.name", "model.path", "model.dtype", "model.attention", "model.device", "data.source")
_SETTINGS = (*_INTEGERS, *_FLAGS, *_TEXTS, "data.limit", "model.chat", "model.revision", "data.root", "model.remove")
_JUNK = ("x", "1.5", "nan", "inf", "-inf", "1e400", "[]", "[1]", "{a:1}", "null", "1_0x", "0x10", "''", "", "one")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ODD = "äßé日本語💥\u202e\u200b\x01\x07\x1b\x7f\u2028"
_JARGON = re.compile(
    r"Exception|OmegaConf|DictConfig|ListConfig|NoneType|Traceback|\$VALUE|full_key|object_type|hydra\.cc|<class|"
    r"defaults list|EOF|Lexer|viable alternative|positional argument|usage:"
)

Line = tuple[str, ...]


def _misspelt(word: str, known, chance: random.Random) -> str:
    """`word` with a slip of the fingers, and not another word of `known`."""
    while True:
        place = chance.randrange(len(word))
        made = chance.choice(
            [
                word[:place] + word[place + 1 :],
                word[:place] + chance.choice(_LETTERS) + word[place:],
                word[:place] + chance.choice(_LETTERS) + word[place + 1 :],
            ]
        )
        if made not in known and re.fullmatch(r"[a-z][a-z0-9_.-]*[a-z0-9]", made) and ".." not in made:
            return made


def _name(chance: random.Random) -> str:
    return "".join(chance.choices(_LETTERS, k=chance.randint(3, 12))) + "zq"


def _unknown_settings(chance: random.Random) -> Line:
    key = _misspelt(chance.choice(_SETTINGS), _SETTINGS, chance)
    made = chance.choice([key, f"model.{_name(chance)}", f"timing.{_name(chance)}", f"{_name(chance)}.{_name(chance)}"])
    return (f"{chance.choice(['', '', '+', '++'])}{made}={chance.choice(['1', 'a', '[1]', 'true'])}",)


def _unknown_choices(chance: random.Random) -> Line:
    group = chance.choice(list(_GROUPS))
    name = chance.choice(_GROUPS[group])
    made = chance.choice(
        [_misspelt(name, _GROUPS[group], chance), _name(chance), "null", "", f"[{_name(chance)}]", "3"]
    )
    return (f"{group}={made}",)


def _unknown_tasks(chance: random.Random) -> Line:
    made = [_misspelt(chance.choice(_TASKS), _TASKS, chance), _name(chance), "", "3", "'a b'", "true", "nan", "'ä'"]
    return (f"task={chance.choice(made)}",)


def _unknown_experiments(chance: random.Random) -> Line:
    names = [path.stem for path in (CONF / "experiment").glob("*.yaml")]
    made = [f"+experiment={_misspelt(chance.choice(names), names, chance)}", f"experiment={chance.choice(names)}"]
    return (chance.choice([*made, "+experiment=", f"+experiment={_name(chance)}"]),)


def _wrong_types(chance: random.Random) -> Line:
    made = [
        (chance.choice(_INTEGERS), _JUNK),
        (chance.choice(_FLAGS), ("maybe", "1x", "[]", "{a:1}", "null", "nan", "yess", "''")),
        (chance.choice(_TEXTS), ("[a]", "{a:1}", "null", "[]")),
        ("data.limit", ("x", "1.5", "nan", "inf", "[]", "{a:1}", "''", "0", "-3")),
        ("model.remove", ("x", "3", "null", "{a:1}", "[[1]]")),
        ("model.shape", ("x", "3", "[1]", "{model_type:llama}")),
        ("timing", ("3", "null", "[1]", "x")),
        (f"{chance.choice(_INTEGERS)}.{_name(chance)}", ("1", "a")),
    ]
    key, values = chance.choice(made)
    return (f"{key}={chance.choice(values)}",)


def _out_of_range(chance: random.Random) -> Line:
    low = -chance.randint(0, 10**9)
    texts = ("hello", "TEMPLATE", "''")
    names = ("../x", "/x", ".x", "-x", "'a b'", "'ä'", "a/b", "x" * 201, "''")
    made = [
        f"model.limit={low}",
        "model.limit=1",
        f"data.limit={low}",
        f"data.tokens={low + 511}",
        f"data.tokens={131073 - low}",
        f"timing.warmup={low - 1}",
        f"model.dtype={_name(chance)}",
        f"model.attention={chance.choice(['eager', _name(chance)])}",
        f"model.device={chance.choice([_name(chance), 'meta', 'cuda:99'])}",
        f"data.source={_name(chance)}",
        f"model.chat={chance.choice(texts)}",
        "model.chat='{prompt} and {prompt}'",
        f"model.name={chance.choice(names)}",
        f"data.name={chance.choice(names)}",
        "output=''",
    ]
    return (chance.choice(made),)


def _wrong_for_the_method(chance: random.Random) -> Line:
    fractions = ("0", "-0.5", "1.01", "x", "nan", "inf", "null", "true", "[]", "{a:1}")
    counts = ("0", "-1", "1.5", "x", "null", "true", "nan", "[]")
    layers = ("-1", "1.5", "x", "null", "true", "nan", "[]")
    schedules = ("x", "[10:2]", "[1:0]", "[1:nan]", "[2:0.5,1:0.5]", "[200%:0.5]", "null", "{a:1}", "[-1:0.5]", "[1:]")
    made = [
        ("lazyllm", "schedule", schedules),
        ("random_drop", "keep", fractions),
        ("random_drop", "repeats", counts),
        ("static_pruning", "keep", fractions),
        ("static_pruning", "layer", layers),
        ("gemfilter", "keep", fractions),
        ("gemfilter", "layer", layers),
        ("gemfilter", "pooling", (*counts, "4")),
        ("fastkv", "window", counts),
        ("fastkv", "pooling", (*counts, "2")),
        ("prompt_compression", "ratio", ("1", "-0.1", "x", "nan", "null", "true", "[]")),
        ("prompt_compression", "unit", ("word", "3", "null", "[]", "sentense")),
        ("prompt_compression", "windows", ("short", "0", "null")),
        ("prompt_compression", "window_tokens", ("0", "-3", "x", "1.5")),
        ("prompt_compression", "faithful_whitespace", ("x", "3", "null")),
        ("baseline", "name", ("../x", "null", "3", "''", "x" * 300)),
    ]
    method, key, values = chance.choice(made)
    return f"method={method}", f"method.{key}={chance.choice(values)}"


def _arguments_no_method_has(chance: random.Random) -> Line:
    method = chance.choice(_GROUPS["method"])
    sign = chance.choice(["", "+", "++"])
    return f"method={method}", f"{sign}method.{_name(chance)}={chance.choice(['1', 'x', '[1]', 'null'])}"


def _wrong_targets(chance: random.Random) -> Line:
    made = (
        _name(chance),
        "os.system",
        "builtins.dict",
        "..a",
        "3",
        "null",
        "''",
        "lazybench.methods.base.Method",
        "a.B",
    )
    return (f"method._target_={chance.choice(made)}",)


def _not_to_be_read(chance: random.Random) -> Line:
    key = chance.choice(_SETTINGS)
    endings = ("[1,", "{a:", "'x", '"x', "x'", 'x"', "[1]]", "(", ")", "}", ",", "a,", ",a", "a,,b", "=x", "f(1)", "${")
    made = [
        f"{key}={chance.choice(endings)}",
        "=",
        "=x",
        "+",
        "~",
        "++",
        "+=x",
        "~=x",
        "==",
        ",",
        "=,",
        "",
        " ",
        "-",
        "/",
    ]
    made += [f"{key}", f"{key}:1", f"{key} 1", f"{key}.=1", f"{key}..x=1", f".{key}=1", f"{key}[0]=1", f"/{key}=1"]
    made += [f"../{key}=1", f"{key}/x/=1", f"{key} =1", f" {key}=1", chance.choice(_TASKS), *_GROUPS["method"]]
    return (chance.choice(made),)


def _odd_signs(chance: random.Random) -> Line:
    odd = "".join(chance.choices(_ODD + _LETTERS, k=chance.randint(1, 20))) + chance.choice(_ODD)
    key = chance.choice(_SETTINGS)
    return (chance.choice([f"{key}={odd}", f"{odd}={_name(chance)}", f"{key}{odd}=1", odd, f"task='{odd}'"]),)


def _not_text(chance: random.Random) -> Line:
    """Bytes that are not UTF-8, as Python hands them over."""
    junk = os.fsdecode(bytes(chance.choices(range(0x80, 0xC0), k=chance.randint(1, 9))))
    key = chance.choice(_SETTINGS)
    return (
        chance.choice([f"{key}={junk}", f"{key}='{junk}'", f"{junk}=1", junk, f"--{junk}", f"model.path=/tmp/{junk}"]),
    )


def _long_words(chance: random.Random) -> Line:
    long = chance.choice(_LETTERS) * chance.randint(300, 5000)
    made = [f"task={long}", f"method={long}", f"{long}=1", f"model.{long}=1", f"model.limit={long}", long, f"--{long}"]
    made += [f"model.path=/{long}", f"model.dtype={long}", f"method._target_={long}", f"task='{long} {long}'"]
    made += [
        f"task={'[' * 300}",
        f"model.limit={'9' * 5000}",
        f"+experiment={long}",
        f"~{long}",
        f"model.limit={long},1",
    ]
    return (chance.choice(made),)


def _taken_away(chance: random.Random) -> Line:
    key = chance.choice([*_SETTINGS, *_GROUPS, "timing", "method.schedule", "method.name", _name(chance)])
    return (chance.choice([f"~{key}", f"~{key}=1"]),)


def _with_a_plus(chance: random.Random) -> Line:
    made = [f"+{group}={chance.choice(names)}" for group, names in _GROUPS.items()]
    return (chance.choice([*made, "+task=code", "+model.limit=9", "+trace=true", "+output=x", "+method.name=a"]),)


def _interpolations(chance: random.Random) -> Line:
    key = chance.choice([*_INTEGERS, *_TEXTS])
    name = _name(chance)
    made = (
        f"${{{name}}}",
        f"${{oc.env:{name.upper()}}}",
        f"${{{name}:1}}",
        f"${{{key}}}",
        '${oc.decode:"[1,"}',
        "${}",
        "${",
    )
    return (f"{key}={chance.choice(made)}",)


def _unknown_flags(chance: random.Random) -> Line:
    name = _name(chance)
    made = [(f"--{name}",), (f"--{name}=3",), (f"--{name}", "3"), ("-z",), ("-q9",), ("--task=code",), ("-task=code",)]
    made += [("--task", "code"), ("--cfg", name), ("--cfg",), ("--info", name), ("--resolve",), ("--cfg", "job", "-m")]
    made += [
        ("--config-dir", f"/{name}"),
        ("--config-name", name),
        ("-cn", name),
        ("--config-path", f"/{name}"),
        ("-c",),
    ]
    made += [
        ("--experimental-rerun", name),
        ("--package", name),
        ("--co", "x"),
        ("--multirun=3",),
        ("-hx",),
        ("--run=1",),
    ]
    made += [("--config-name", "speed"), ("--run", "--multirun"), ("-sc",), ("--cfg", "job", "--info")]
    return chance.choice(made)


def _of_hydra(chance: random.Random) -> Line:
    name = _name(chance)
    made = [f"hydra.{name}=1", f"hydra.run.{name}=1", f"hydra/launcher={name}", f"hydra/{name}=1", f"hydra.mode={name}"]
    made += [
        "hydra.job.chdir=maybe",
        f"hydra.searchpath=[/{name}]",
        "hydra.searchpath=3",
        "hydra.verbose=[1",
        "hydra=3",
    ]
    made += [f"hydra.run.dir=${{{name}}}", "hydra.job.num=x"]
    return (chance.choice(made),)


def _several_values(chance: random.Random) -> Line:
    """What only a sweep can take."""
    made = ("method=lazyllm,baseline", "task=code,lcc", "model.limit=1,2", "data.limit=range(1,3)", "task=glob(*)")
    return (
        chance.choice([*made, "method=choice(lazyllm)", "model.limit=interval(1,9)", "method.schedule=1:0.5,2:0.5"]),
    )


def _contradictions(chance: random.Random) -> Line:
    made = [
        ("data=sample", f"data.root=/{_name(chance)}"),
        ("data=sample", "data.limit=null"),
        ("data=sample", "+data.datasets.mine.prompt=x"),
        ("model.attention=flash_attention_2", "model.dtype=float32"),
        ("model.attention=flash_attention_2", "model.device=cpu"),
        ("-m", "hydra.mode=RUN"),
        ("-m", "--run"),
    ]
    return chance.choice(made)


def _places_that_are_not_there(chance: random.Random) -> Line:
    name = _name(chance)
    made = [(f"model.path=/{name}",), (f"model.path=./{name}.gguf",), (f"model.path=package:{name}/a.gguf",)]
    made += [
        ("data=longbench", f"data.root=/{name}"),
        ("data=longbench", "data.root=/dev/null"),
        (f"model.path={name}",),
    ]
    return chance.choice(made)


def _beyond_the_first(chance: random.Random) -> Line:
    """A sweep whose first line already says that it cannot be."""
    made = [_unknown_flags, _not_to_be_read, _not_text, _taken_away, _with_a_plus]
    made += [lambda _: (chance.choice(["method=", "model=", "method=,", "=,", ",", "task=,code", "task=choice()"]),)]
    made += [lambda _: (f"model.limit={chance.choice(['x', 'nan', 'null'])}",), lambda _: ("task=interval(1,2)",)]
    made += [lambda _: (f"hydra.job.name={_name(chance)},b",), lambda _: (f"{_name(chance)}=1",)]
    words = chance.choice(made)(chance)
    return words if set(words) & {"-m", "--cfg", "--info", "--run", "--multirun", "-sc"} else ("-m", *words)


_BROKEN: tuple[Callable[[random.Random], Line], ...] = (
    _unknown_settings,
    _unknown_choices,
    _unknown_tasks,
    _unknown_experiments,
    _wrong_types,
    _out_of_range,
    _wrong_for_the_method,
    _arguments_no_method_has,
    _wrong_targets,
    _not_to_be_read,
    _odd_signs,
    _not_text,
    _long_words,
    _taken_away,
    _with_a_plus,
    _interpolations,
    _unknown_flags,
    _of_hydra,
    _several_values,
    _contradictions,
    _places_that_are_not_there,
    _beyond_the_first,
)


def _of_other_commands(chance: random.Random) -> Line:
    name, long = _name(chance), "x" * 300
    odd = chance.choice([name, long, f"{name}=1", "", "ä", os.fsdecode(b"\xff"), "a\nb", "\x1b[31m", f"--{name}", "-z"])
    made = [
        (odd,),
        (
            _misspelt(chance.choice(["run", "plan", "status", "list", "report", "score", "speed"]), ("run",), chance),
            "task=code",
        ),
        ("list", odd),
        ("plan", odd),
        ("plan", f"task={name}"),
        ("plan", "task=code", f"method=baseline,{name}"),
        ("plan", f"--{name}"),
        ("status", odd),
        ("status", f"runs=/{name}"),
        ("status", f"{name}=1"),
        ("score",),
        ("score", f"/{name}"),
        ("score", long),
        ("score", "/dev/null"),
        ("score", "/"),
        ("score", "/dev/null", odd or "b"),
        ("score", f"--{name}"),
        ("score", "/dev/null", "--out"),
        ("score", "/dev/null", "--dataset", name),
        ("report", odd),
        ("report", f"runs=/{name}"),
        ("report", f"runs={long}"),
        ("report", "runs="),
        ("report", "out="),
        ("report", f"{name}=1"),
        ("report", "runs=/dev/null"),
        ("speed", odd),
        ("speed", f"lengths={chance.choice(['[]', '[1]', '[-3]', '[x]', '3', '', '[1.5]', '1,2', 'null'])}"),
        ("speed", f"new_tokens={chance.choice(['1', '0', 'x', 'null', '1e400'])}"),
        ("speed", f"repeats={chance.choice(['0', '-1', 'x', 'nan'])}"),
        ("speed", "task=code"),
        ("speed", "+experiment=table1"),
        ("speed", f"text=/{name}"),
        ("speed", "output=a.csv", "profile=a.csv"),
        ("speed", "text=a.txt", "output=a.txt"),
        ("speed", f"method={name}"),
        ("speed", f"--{name}"),
        ("speed", "--config-name", "config"),
        ("speed", "output=/dev/null/x/y.csv"),
    ]
    return chance.choice(made)


def _check(words: Line, code: object, out: str, err: str, cwd: Path) -> None:
    shown = f"{words!r}\n{err}"
    assert code == 2, shown
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, shown
    assert lines[0].startswith("lazybench: "), shown
    assert 20 < len(lines[0]) < 700, shown
    assert lines[0].isprintable(), shown
    given = " ".join(words)
    assert not [said for said in _JARGON.findall(lines[0]) if said not in given], shown
    assert out == "", shown
    assert not any(cwd.iterdir()), shown


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def _lines(broken: Callable[[random.Random], Line], count: int, seed: str) -> list[Line]:
    return list(dict.fromkeys(broken(random.Random(f"{seed} {number}")) for number in range(count)))


@pytest.mark.parametrize("broken", _BROKEN, ids=lambda broken: broken.__name__.strip("_"))
def test_a_bad_run_costs_one_line(run, tmp_path, cwd, broken):
    for words in _lines(broken, 4, "few"):
        _check(words, *run(*words), cwd)
        assert not (tmp_path / "runs").exists(), words


def test_bad_words_of_other_commands_cost_one_line(lazybench, cwd):
    for words in _lines(_of_other_commands, 40, "few"):
        _check(words, *lazybench(*words), cwd)


@pytest.mark.slow
@pytest.mark.parametrize("broken", _BROKEN, ids=lambda broken: broken.__name__.strip("_"))
def test_many_bad_runs_cost_one_line_each(run, tmp_path, cwd, broken):
    for words in _lines(broken, 100, "many"):
        _check(words, *run(*words), cwd)
        assert not (tmp_path / "runs").exists(), words


@pytest.mark.slow
def test_many_bad_words_of_other_commands_cost_one_line_each(lazybench, cwd):
    for words in _lines(_of_other_commands, 400, "many"):
        _check(words, *lazybench(*words), cwd)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--foo"], "there is no flag '--foo'"),
        (["--task=code"], "settings stand without dashes, task=code"),
        (["--task", "code"], "settings stand without dashes, task=VALUE"),
        (["lazyllm"], "did you mean method=lazyllm?"),
        (["lcc"], "did you mean task=lcc?"),
        (["model.limt=5"], "did you mean 'model.limit'?"),
        (["model.limit=many"], "must be a whole number"),
        (["model={limit:many}"], "model.limit must be a whole number"),
        (["trace=maybe"], "must be true or false"),
        (["task=[code]"], "must be text"),
        (["model.remove=x"], "must be a list such as [a,b]"),
        (["task=code,lcc"], "-m makes a run of each"),
        (["method.schedule=1:0.5,2:0.5"], "method.schedule=[1:0.5,2:0.5]"),
        (["output=/home/jürgen"], "\"output='/home/jürgen'\""),
        (["task='code"], "a quote is opened"),
        (["a=[1,"], "a bracket is opened"),
        (["task=,code"], "a value is missing next to a comma"),
        (["experiment=table1"], "+experiment=table1"),
        (["+task=code"], "write it without the plus"),
        (["~task"], "task=VALUE"),
        (["+foo=1"], "there is no setting 'foo'"),
        (["+model.limits=1"], "did you mean 'model.limit'?"),
        (["+method.shedule=1"], "did you mean 'method.schedule'?"),
        (["method=static_pruning", "method.keep=0"], "method.keep=0 must be a number above 0, at most 1"),
        (["method=static_pruning", "method.layer=x"], "method.layer=x must be a whole number"),
        (["method.schedule=[10:2]"], "method.schedule: keep 2.0 after layer 10"),
        (["model.limit=${oc.env:NOTHING_SET}"], "model.limit: Environment variable 'NOTHING_SET' not found"),
        (["model.limit=${nothing}"], "model.limit: there is no setting 'nothing'"),
        (["hydra.nothing=1"], "Hydra has no setting 'hydra.nothing'"),
        (["hydra/launcher=nothing"], "there is no hydra/launcher 'nothing': choose one of: basic"),
        (["--config-dir", "/nowhere"], "--config-dir: '/nowhere' not found"),
        (["--cfg", "job", "-m"], "contradict"),
        (["data=sample", "data.root=/records"], "use data=longbench"),
        (["task=nothing_like_it_zq"], "lazybench list shows"),
        (["model=some/tiny-model"], "no model config 'some/tiny-model': for a hub id, folder or .gguf file give"),
        (["model=some/tiny-model"], "model.path=some/tiny-model and model.limit="),
        (["model=/some/folder"], "model.path=/some/folder"),
        (["model=file.gguf"], "model.path=file.gguf"),
        (["data=/some/records"], "data=longbench data.root=/some/records"),
        (["data=lcc"], "did you mean task=lcc?"),
        (["dataset=lcc"], "did you mean 'task'?"),
        (["limit=5"], "did you mean 'model.limit' or 'data.limit'?"),
        (["+limit=5"], "did you mean 'model.limit' or 'data.limit'?"),
        (["method=LazyLLM"], "did you mean 'lazyllm'?"),
        (["method=[lazyllm]"], "method=[lazyllm] is a list: choose one"),
        (
            ["method=lazyllm", "method.keep=0.5"],
            "lazyllm has no setting 'keep': choose one of: method.schedule, ",
        ),
        (["method=lazyllm", "method.keep=0.5"], "keeps stand in the schedule, method.schedule=[10:0.7,20:0.5]"),
        (["method=lazyllm", "++method.keep=0.5"], "keeps stand in the schedule, method.schedule=[10:0.7,20:0.5]"),
        (["method=static_pruning", "method.kep=0.5"], "did you mean 'method.keep'?"),
        (
            ["method=static_pruning", "method.ratio=1"],
            "has no setting 'ratio': choose one of: method.layer, method.k",
        ),
        (["method=baseline", "method.keep=0.5"], "method baseline has no setting 'keep': it has none"),
        (["model.foo=3"], "choose one of: model.name, model.path"),
        (["model.device=gpu"], "model.device=gpu is no device: use auto, cpu, cuda or cuda:1"),
    ],
)
def test_the_line_says_what_would_be_right(run, cwd, words, says):
    code, out, err = run(*words)
    _check(tuple(words), code, out, err, cwd)
    assert says in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=static_pruning", "method.layer=1", "method.keep=0.5,2"], "method.keep=2 must be a number above 0"),
        (["task=code,nothing_like_it_zq"], "unknown task or dataset 'nothing_like_it_zq'"),
        (["method=baseline,lazylm"], "did you mean 'lazyllm'?"),
        (["data.limit=1,x"], "data.limit=x: must be a whole number or null"),
        (["data.limit=1,0"], "data.limit=0 is out of range"),
        (["methd=baseline,lazyllm"], "did you mean 'method'?"),
        (["method.schedule=[1:0.5],[9:2]"], "method.schedule: keep 2.0 after layer 9"),
        (["task="], "unknown task or dataset ''"),
        (["task=code", "model.path=/nowhere,/nothing"], "model.path=/nowhere: no such folder"),
    ],
)
def test_a_sweep_with_one_bad_job_costs_one_line(run, tmp_path, cwd, words, says):
    code, out, err = run("-m", *words)
    _check(tuple(words), code, out, err, cwd)
    assert says in err
    assert not (tmp_path / "runs").exists()


_SMALL = ("model=smollm2_135m", "data=sample")


@pytest.mark.parametrize("stages", ["1:0.6,2:0.5", "10%:0.6,20%:0.5,60%:0.5", "1:0.6,50%:0.5"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_stages_that_may_be_one_schedule_or_several_are_asked_about(run, tmp_path, cwd, stages, command):
    words = (f"method.schedule={stages}", *(["-m"] if command == "run" else []))
    code, out, err = run(*words, command=command)
    _check(words, code, out, err, cwd)
    several = ",".join(f"[{stage}]" for stage in stages.split(","))
    assert f"one schedule of {stages.count(',') + 1} stages, 'method.schedule=[{stages}]'" in err
    assert f"-m 'method.schedule={several}'" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "schedules"),
    [
        (["method.schedule=[1:0.6,2:0.5]"], ["1:0.6,2:0.5"]),
        (["method.schedule=[1:0.6],[2:0.5]"], ["1:0.6", "2:0.5"]),
        (["method.schedule=[0:0.9,1:0.6],[2:0.5]"], ["0:0.9,1:0.6", "2:0.5"]),
        (["method.schedule='1:0.6,2:0.5'"], ["1:0.6,2:0.5"]),
        (["method.schedule='1:0.6','2:0.5'"], ["1:0.6", "2:0.5"]),
        (["method.schedule=choice(1:0.6,2:0.5)"], ["1:0.6", "2:0.5"]),
        (["method.schedule=2:0.6,1:0.5"], ["2:0.6", "1:0.5"]),  # layers of a schedule increase
        (["method.schedule=1:0.6,2:0.6,1:0.5,2:0.5"], ["1:0.6", "2:0.6", "1:0.5", "2:0.5"]),
        (["+experiment=figure6", *_SMALL, "method.schedule=20%:0.7,40%:0.7"], ["20%:0.7", "40%:0.7"]),
    ],
)
def test_schedules_that_can_mean_one_thing_alone_are_taken(run, words, schedules):
    code, out, err = run(*words, *([] if "+experiment=figure6" in words else ["method=lazyllm"]), command="plan")
    assert code == 0, err
    assert [line.split("schedule=")[1].split()[0] for line in out.splitlines() if "schedule=" in line] == schedules


def _process(*words: str | bytes, shell: str = "") -> subprocess.CompletedProcess:
    command = f'exec "$0" -m lazybench "$@" {shell}'
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1"}
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words], capture_output=True, env=environment, timeout=120
    )


@pytest.mark.parametrize(
    "words",
    [
        (b"\xff",),
        (b"run", b"task=\xff\xfe"),
        (b"run", b"task=code", b"output='\x80'"),
        (b"score", b"/tmp/\xe9.jsonl"),
        (b"report", b"runs=\xc3\x28"),
        (b"list", b"--\xf0\x28"),
        (b"speed", b"\xed\xa0\x80=1"),
        (b"run", b"-m", b"\xc0=1,2"),
    ],
)
def test_words_that_are_not_text(cwd, words):
    done = _process(*words)
    _check(tuple(word.decode(errors="replace") for word in words), done.returncode, "", done.stderr.decode(), cwd)
    assert b"is not valid UTF-8" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
@pytest.mark.parametrize("words", [("run", "nothing=1"), ("score",), ("lits",)])
def test_closed_streams(cwd, closed, words):
    done = _process(*words, shell=closed)
    _check(words, done.returncode, done.stdout.decode(), done.stderr.decode(), cwd)


def test_closed_stderr_says_it_nowhere(cwd):
    done = _process("run", "nothing=1", shell="2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_output_that_nobody_takes(cwd):
    done = _process("list", shell="> /dev/full")
    _check(("list",), done.returncode, done.stdout.decode(), done.stderr.decode(), cwd)
    assert b"No space left on device" in done.stderr
    assert _process("list", shell=">&-").returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "lazybench", "list"],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
