"""What the README tells people to write works as it stands there."""

from __future__ import annotations

import doctest
import re
import runpy
import shlex
import shutil
import sys
from math import ceil
from pathlib import Path

import pytest
import torch
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from support import byte_tokenizer, folders, rows, save_tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

from lazybench import config as schema
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts
from lazybench.methods import build_method

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = "".join(match[2] for match in FENCE.finditer(README) if match[1] == "bash")
PROSE = FENCE.sub("", README)
# Variables that the README's command lines share.
VARIABLES = dict(re.findall(r'^(\w+)="(.*)"$', SHELL, re.MULTILINE))
SCHEMAS = {"run": schema.RunConfig, "speed": schema.SpeedConfig, "calibrate": schema.CalibrateConfig}
_FOUND = [
    *re.findall(r"^python -m lazybench (.*)$", SHELL, re.MULTILINE),
    *re.findall(r"`python -m lazybench (\w[^`]*)`", PROSE),
]
COMMANDS = list(dict.fromkeys(line.partition(" #")[0].strip() for line in _FOUND))
CONFIGURED = [line for line in COMMANDS if line.split()[0] in (*SCHEMAS, "plan")]


def blocks_of(heading: str) -> list[str]:
    """The fenced blocks below a heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$", README, re.MULTILINE)
    assert found, f"the README no longer has a section {heading!r}"
    blocks = list(FENCE.finditer(README, found.end()))
    # A line of code may begin with a number sign as well.
    inside = {place for block in blocks for place in range(*block.span())}
    ends = (match.start() for match in re.finditer(r"^#", README[found.end() :], re.MULTILINE))
    end = next((found.end() + place for place in ends if found.end() + place not in inside), len(README))
    return [block[2] for block in blocks if block.start() < end]


def words_of(line: str, places: dict[str, Path]) -> list[str]:
    """A command line's words, with its variables and with folders in place of those it only stands for."""
    for name, value in VARIABLES.items():
        line = line.replace(f"${name}", value)
    words = shlex.split(line, comments=True)
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    return words


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """A tiny model whose tokenizer has a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}U: {{ m['content'] }}{% endfor %} A:"
    return save_tiny_model(tmp_path_factory.mktemp("chat"), tokenizer)


def own_files(folder: Path, model_folder: Path) -> None:
    """What "Adding to it" says to write, in `folder`; the model is that in `model_folder`."""
    method, settings, model, data = blocks_of("Adding to it")
    records = folder / "records"
    for path, text in (
        (folder / "keep_ends.py", method),
        (folder / "method" / "keep_ends.yaml", settings),
        (folder / "model" / "my_model.yaml", model.replace("/models/my_model", str(model_folder))),
        (folder / "data" / "mine.yaml", data.replace("/data/mine", str(records))),
        (
            records / "my_qa.jsonl",
            '{"_id": "1", "input": "Who?", "context": "It was Ada.", "answers": ["Ada"], "length": 3, '
            '"dataset": "my_qa", "language": "en", "all_classes": null}\n',
        ),
    ):
        assert path.name in README
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def own(tmp_path, monkeypatch, chat_model):
    """The working directory with the README's own method, model and dataset in it."""
    own_files(tmp_path, chat_model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "keep_ends", raising=False)


def command_with(setting: str) -> list[str]:
    """The words of the README's `run` command that has `setting`, without `run`."""
    (line,) = (line for line in COMMANDS if setting in line.split())
    return words_of(line, {})[1:]


@pytest.mark.parametrize(("limit", "tokens"), [(900, 512), (2000, 2048)])
def test_the_method_of_ones_own(run, tmp_path, own, limit, tokens):
    sizes = f"model.limit={limit}", f"data.tokens={tokens}", "data.limit=1", "timing.warmup=0"
    code, _, err = run(*command_with("method=keep_ends"), *sizes)
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == "keep_ends"
    lengths = [row["prompt_tokens"] for row in rows(folder)]
    assert all(length < 1000 for length in lengths) if limit < 1000 else all(length > 1000 for length in lengths)
    assert [row["prompt_computed"] for row in rows(folder)] == [min(1, 1000 / length) for length in lengths]


def test_the_model_of_ones_own(lazybench, tmp_path, own):
    sizes = "data.limit=1", "data.tokens=512", "timing.warmup=0", "timing.cpu_share=0", "method=baseline"
    code, _, err = lazybench("run", *command_with("model=my_model"), *sizes, f"output={tmp_path}/runs")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-4] == "my_model"
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["dtype"] == "bfloat16"


def test_the_dataset_of_ones_own(run, tmp_path, own):
    code, _, err = run(*command_with("data=mine"), "data.tokens=512")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert [row["dataset"] for row in rows(folder)] == ["my_qa"]


@pytest.mark.parametrize("tokens", [1, 3, 50])
def test_the_library_in_three_lines(tokens, capsys):
    program, session = blocks_of("The library")[:2]
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 30}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, **shape)).eval()
    ids = torch.randint(5, 200, (1, tokens))
    with torch.no_grad():
        before = model(ids).logits
    values = {"model": model, "tokenizer": tokenizer, "inputs": {"input_ids": ids}}
    exec(program, values)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)  # bit for bit what it was
    for example in doctest.DocTestParser().get_examples(session):
        exec(compile(example.source, "README.md", "single"), values)
        said = capsys.readouterr().out
        assert said.strip()
        if example.source == "print(schedule)\n":
            assert said == example.want
    kept = ceil(0.7 * tokens - 1e-9)
    lazy = values["lazy"]
    assert lazy.stats.rows[0, [0, 15, 25]].tolist() == [tokens, kept, ceil(0.5 * kept - 1e-9)]
    assert 0 < lazy.stats.prompt_computed <= 1
    assert values["output"].shape[1] == tokens + 24


@pytest.mark.slow
def test_the_whole_program_prints_what_the_readme_says(capsys):
    program, session = blocks_of("The library")[:2]
    runpy.run_path(str(ROOT / "scripts" / "example.py"))
    said = capsys.readouterr().out
    assert said == "".join(example.want for example in doctest.DocTestParser().get_examples(session))
    (schedule,) = re.findall(r"^schedule = [^#\n]*\)", program, re.MULTILINE)
    assert schedule in (ROOT / "scripts" / "example.py").read_text("utf-8")


@pytest.mark.parametrize("command", sorted({line.split()[0] for line in COMMANDS}))
def test_every_command_named_there_exists(command):
    from lazybench.__main__ import _COMMANDS

    assert command in _COMMANDS


@pytest.mark.parametrize("script", sorted(set(re.findall(r"\bscripts/\w+(?:\.py)?", README))))
def test_every_script_named_there_exists(script):
    assert (ROOT / script).is_file()


def jobs(words: list[str]) -> list[list[str]]:
    """The words of single jobs which together take every value that a sweep's words name.

    What an experiment sweeps over by itself takes its first value: all of them compose, see test_experiments.
    """
    given = {word.partition("=")[0] for word in words}
    choices = [values_of(word) for word in words if word not in ("-m", "--multirun")]
    for word in words:
        if word.startswith("+experiment="):
            about = yaml.safe_load((CONF / "experiment" / f"{word.partition('=')[2]}.yaml").read_text("utf-8"))
            swept = about["hydra"]["sweeper"]["params"]
            choices += [[f"{key}={values.partition(',')[0]}"] for key, values in swept.items() if key not in given]
    count = max(map(len, choices), default=1)
    return [[values[min(place, len(values) - 1)] for values in choices] for place in range(count)]


def values_of(word: str) -> list[str]:
    """The word once for each value that it would sweep over."""
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        return [word]  # a flag, a folder, or signs that lazybench quotes by itself
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]


@pytest.fixture(scope="module")
def places(tmp_path_factory, chat_model):
    """Folders for those that command lines of the README only stand for."""
    folder = tmp_path_factory.mktemp("readme")
    own_files(folder, chat_model)
    shutil.copy(CONF / "method" / "lazyllm.yaml", folder / "method" / "lazyllm_speedup_2.yaml")
    return {"FOLDER_IT_PRINTS": folder, "FOLDER": folder, "FILE": ROOT / "README.md", "/shared/runs": folder / "runs"}


@pytest.mark.parametrize("line", CONFIGURED)
def test_every_run_named_there_has_settings_that_fit(lazybench, monkeypatch, places, line):
    command, *words = words_of(line, places)
    command = "run" if command == "plan" else command
    # Folders of configs lie in the checkout, or are the README's own.
    monkeypatch.chdir(places["FOLDER"] if "--config-dir ." in line else ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path, str(places["FOLDER"])])
    monkeypatch.delitem(sys.modules, "keep_ends", raising=False)
    for job in jobs(words):
        code, out, err = lazybench(command, *job, "--cfg", "job")
        assert code == 0, err
        settings = OmegaConf.to_object(OmegaConf.merge(SCHEMAS[command], yaml.safe_load(out)))
        if command == "calibrate":
            from lazybench.calibration import budgets

            assert budgets.parse(settings.budget)
        else:
            assert build_method(settings.method)
        if command != "speed":
            assert datasets_of(settings.task, load_facts(settings.data.datasets))


def test_every_other_command_named_there_runs(run, lazybench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("method=baseline", "data.limit=1", "timing.warmup=0", output="results/runs")
    assert code == 0, err
    (folder,) = folders(tmp_path / "results" / "runs")
    shutil.copy(folder / "predictions.jsonl", tmp_path)
    for line in COMMANDS:
        if line not in CONFIGURED:
            code, out, err = lazybench(*words_of(line, {"/shared/runs": tmp_path / "results" / "runs"}))
            assert code == 0, f"{line}: {err}"
            assert out
