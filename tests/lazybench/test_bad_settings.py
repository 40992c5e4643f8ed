"""A setting that is unknown, of a wrong type, out of range or nowhere to be found costs one line."""

from __future__ import annotations

import pytest
from bad_lines import FLAGS, GROUPS, INTEGERS, SETTINGS, TEXTS, check, check_each, lines, misspelt, names, words
from hypothesis import strategies as st

_JUNK = ("x", "1.5", "nan", "inf", "-inf", "1e400", "[]", "[1]", "{a:1}", "null", "1_0x", "0x10", "''", "", "one")
_SIGNS = ("", "+", "++")


def _unknown_settings():
    inside = st.tuples(st.sampled_from(["model", "timing"]) | names, names).map(".".join)
    return words(("", "", *_SIGNS), misspelt(SETTINGS) | inside, "=", ("1", "a", "[1]", "true"))


def _wrong_types():
    return st.one_of(
        words(INTEGERS, "=", _JUNK),
        words(FLAGS, "=", ("maybe", "1x", "[]", "{a:1}", "null", "nan", "yess", "''")),
        words(TEXTS, "=", ("[a]", "{a:1}", "null", "[]")),
        words("data.limit=", ("x", "1.5", "nan", "inf", "[]", "{a:1}", "''", "0", "-3")),
        words("model.remove=", ("x", "3", "null", "{a:1}", "[[1]]")),
        words("model.shape=", ("x", "3", "[1]", "{model_type:llama}")),
        words("timing=", ("3", "null", "[1]", "x")),
        words(INTEGERS, ".", names, "=", ("1", "a")),
    )


def _out_of_range():
    low = st.integers(-(10**9), 0)
    folders = ("../x", "/x", ".x", "-x", "'a b'", "'ä'", "a/b", "x" * 201, "''")
    return st.one_of(
        words(("model.limit=", "data.limit="), low.map(str)),
        words("data.tokens=", low.map(lambda number: str(number + 511)) | low.map(lambda number: str(131073 - number))),
        words("timing.warmup=", low.map(lambda number: str(number - 1))),
        words(("model.dtype=", "data.source=", "model.attention=", "model.device="), names),
        words("model.chat=", ("hello", "TEMPLATE", "''", "'{prompt} and {prompt}'")),
        words(("model.name=", "data.name="), folders),
        words(("model.limit=1", "model.attention=eager", "model.device=meta", "model.device=cuda:99", "output=''")),
    )


def _wrong_for_the_method():
    fractions = ("0", "-0.5", "1.01", "x", "nan", "inf", "null", "true", "[]", "{a:1}")
    counts = ("0", "-1", "1.5", "x", "null", "true", "nan", "[]")
    layers = ("-1", "1.5", "x", "null", "true", "nan", "[]")
    schedules = ("x", "[10:2]", "[1:0]", "[1:nan]", "[2:0.5,1:0.5]", "[200%:0.5]", "null", "{a:1}", "[-1:0.5]", "[1:]")
    settings = [
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
        ("claa", "layers", counts),
        ("sliminfer_like", "schedule", schedules),
        ("sliminfer_like", "block", counts),
        ("snapkv", "keep", fractions),
        ("snapkv", "window", counts),
        ("snapkv", "pooling", (*counts, "4")),
        ("snapkv", "kernel", ("mean", "3", "null", "[]")),
        ("specprefill", "keep", fractions),
        ("specprefill", "look_ahead", counts),
        ("specprefill", "pooling", (*counts, "4")),
        ("specprefill", "chunk", counts),
        ("specprefill", "draft", ("3", "''", "true", "[]")),
        ("prompt_compression", "ratio", ("1", "-0.1", "x", "nan", "null", "true", "[]")),
        ("prompt_compression", "unit", ("word", "3", "null", "[]", "sentense")),
        ("prompt_compression", "windows", ("short", "0", "null")),
        ("prompt_compression", "window_tokens", ("0", "-3", "x", "1.5")),
        ("prompt_compression", "faithful_whitespace", ("x", "3", "null")),
        ("baseline", "name", ("../x", "null", "3", "''", "x" * 300)),
    ]
    return lines(*[(f"method={of}", f"method.{key}={value}") for of, key, values in settings for value in values])


def _settings_that_no_method_has():
    method = st.sampled_from(GROUPS["method"]).map("method={}".format)
    setting = words(_SIGNS, "method.", names, "=", ("1", "x", "[1]", "null"))
    return st.tuples(method, setting.map(lambda line: line[0]))


def _wrong_targets():
    there = ("os.system", "builtins.dict", "..a", "3", "null", "''", "lazybench.methods.base.Method", "a.B")
    return words("method._target_=", st.sampled_from(there) | names)


def _taken_away():
    keys = (*SETTINGS, *GROUPS, "timing", "method.schedule", "method.name")
    return words("~", st.sampled_from(keys) | names, ("", "=1"))


def _with_a_plus():
    chosen = [f"+{group}={name}" for group, found in GROUPS.items() for name in found]
    return words([*chosen, "+task=code", "+model.limit=9", "+trace=true", "+output=x", "+method.name=a"])


def _interpolations():
    keys = (*INTEGERS, *TEXTS)
    unknown = words(keys, "=${", names, "}") | words(keys, "=${", names, ":1}")
    unset = words(keys, "=${oc.env:", names.map(str.upper), "}")
    itself = lines(*[(f"{key}=${{{key}}}",) for key in keys])
    return unknown | unset | itself | words(keys, "=", ('${oc.decode:"[1,"}', "${}", "${"))


def _of_hydra():
    return st.one_of(
        words(("hydra.", "hydra.run.", "hydra/"), names, "=1"),
        words(("hydra/launcher=", "hydra.mode="), names),
        words("hydra.searchpath=[/", names, "]"),
        words("hydra.run.dir=${", names, "}"),
        words(("hydra.job.chdir=maybe", "hydra.searchpath=3", "hydra.verbose=[1", "hydra=3", "hydra.job.num=x")),
    )


def _several_values():
    """What only a sweep can take."""
    taken = ("method=lazyllm,baseline", "task=code,lcc", "model.limit=1,2", "data.limit=range(1,3)", "task=glob(*)")
    return words([*taken, "method=choice(lazyllm)", "model.limit=interval(1,9)", "method.schedule=1:0.5,2:0.5"])


def _contradictions():
    return lines(
        ("data=sample", "data.root=/records"),
        ("data=sample", "data.limit=null"),
        ("data=sample", "+data.datasets.mine.prompt=x"),
        ("model.attention=flash_attention_2", "model.dtype=float32"),
        ("model.attention=flash_attention_2", "model.device=cpu"),
        ("-m", "hydra.mode=RUN"),
        ("-m", "--run"),
    )


def _places_that_are_not_there():
    weights = words("model.path=", ("/", "./", "package:", ""), names, ("", ".gguf", "/a.gguf"))
    folder = words("data.root=/", names) | words("data.root=/dev/null")
    return weights | folder.map(lambda line: ("data=longbench", *line))


_BROKEN = (
    _unknown_settings,
    _wrong_types,
    _out_of_range,
    _wrong_for_the_method,
    _settings_that_no_method_has,
    _wrong_targets,
    _taken_away,
    _with_a_plus,
    _interpolations,
    _of_hydra,
    _several_values,
    _contradictions,
    _places_that_are_not_there,
)


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("broken", _BROKEN, ids=lambda broken: broken.__name__.strip("_"))
def test_a_bad_setting_costs_one_line(run, tmp_path, cwd, broken, count):
    check_each(broken(), run, cwd, count)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["model.limt=5"], "did you mean 'model.limit'?"),
        (["model.limit=many"], "must be a whole number"),
        (["model={limit:many}"], "model.limit must be a whole number"),
        (["trace=maybe"], "must be true or false"),
        (["task=[code]"], "must be text"),
        (["model.remove=x"], "must be a list such as [a,b]"),
        (["task=code,lcc"], "-m makes a run of each"),
        (["method.schedule=1:0.5,2:0.5"], "method.schedule=[1:0.5,2:0.5]"),
        (["+task=code"], "write it without the plus"),
        (["~task"], "~task takes a setting away, and every one is needed"),
        (["+foo=1"], "there is no setting 'foo'"),
        (["+model.limits=1"], "did you mean 'model.limit'?"),
        (["+method.shedule=1"], "did you mean 'method.schedule'?"),
        (["method=static_pruning", "method.keep=0"], "method.keep=0 must be a number above 0, at most 1"),
        (["method=static_pruning", "method.layer=x"], "method.layer=x must be a whole number"),
        (["method.schedule=[10:2]"], "method.schedule: keep 2.0 after layer 10"),
        (["model.limit=${oc.env:NOTHING_SET}"], "model.limit: Environment variable 'NOTHING_SET' not found"),
        (["model.limit=${nothing}"], "model.limit: Interpolation key 'nothing' not found"),
        (["hydra.nothing=1"], "Hydra has no setting 'hydra.nothing'"),
        (["data=sample", "data.root=/records"], "use data=longbench"),
        (["dataset=lcc"], "did you mean 'task'?"),
        (["limit=5"], "did you mean 'model.limit' or 'data.limit'?"),
        (["+limit=5"], "did you mean 'model.limit' or 'data.limit'?"),
        (["method=lazyllm", "method.keep=0.5"], "lazyllm has no setting 'keep': choose one of: method.schedule, "),
        (["method=lazyllm", "method.keep=0.5"], "keeps stand in the schedule, method.schedule=[10:0.7,20:0.5]"),
        (["method=lazyllm", "++method.keep=0.5"], "keeps stand in the schedule, method.schedule=[10:0.7,20:0.5]"),
        (["method=static_pruning", "method.kep=0.5"], "did you mean 'method.keep'?"),
        (["method=static_pruning", "method.ratio=1"], "has no setting 'ratio': choose one of: method.layer, method.k"),
        (
            ["method=baseline", "method.keep=0.5"],
            "method baseline has no setting 'keep': it has no settings, leave it out",
        ),
        (["model.foo=3"], "choose one of: model.name, model.path"),
        (["model.device=gpu"], "model.device=gpu is no device: use auto, cpu, cuda or cuda:1"),
    ],
)
def test_the_line_says_which_setting_would_be_right(run, cwd, line, says):
    assert says in check(tuple(line), *run(*line), cwd)
