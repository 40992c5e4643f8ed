"""What the READMEs tell people to write works as it stands there."""

from __future__ import annotations

import doctest
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
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
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READMES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (
        ROOT / "README.md",
        *(
            found
            for top in ("lazyllm", "lazybench", "conf", "results", "scripts", "tests")
            for found in sorted((ROOT / top).rglob("README.md"))
        ),
    )
}
README = READMES["README.md"]
BLOCKS = [(match[1], match[2]) for text in READMES.values() for match in FENCE.finditer(text)]
# The files that the READMEs say to write: a block that begins with the file's name.
FILES = {
    found[1]: text
    for language, text in BLOCKS
    if language in ("python", "yaml", "json")
    and (found := re.match(r"(?:# @.*\n)?# (\w+(?:/\w+)?\.(?:py|yaml))\n", text))
}
LINES = [
    line
    for language, text in BLOCKS
    if language == "bash"
    for whole in text.splitlines()
    if (line := whole.partition(" #")[0].strip())
]
PROSE = "".join(FENCE.sub("", text) for text in READMES.values())
# Variables that command lines share.
VARIABLES = dict(found.groups() for line in LINES if (found := re.fullmatch(r'(\w+)="(.*)"', line)))
SCHEMAS = {
    "run": schema.RunConfig,
    "speed": schema.SpeedConfig,
    "match": schema.MatchConfig,
    "map": schema.MapConfig,
    "calibrate": schema.CalibrateConfig,
}
_FOUND = [*LINES, *re.findall(r"`(python -m lazybench \w[^`]*)`", PROSE)]
COMMANDS = list(dict.fromkeys(line.split(maxsplit=3)[3] for line in _FOUND if line.startswith("python -m lazybench ")))
CONFIGURED = [line for line in COMMANDS if line.split()[0] in (*SCHEMAS, "plan") and "--help" not in line]
OWN = [line for line in CONFIGURED if "--config-dir . " in line and "-m" not in line.split()]
SCRIPTS = sorted(set(re.findall(r"\b(?:scripts|tests)/[\w/]+(?:\.py)?\b", "\n".join(READMES.values()))))
# The records of the dataset of one's own.
RECORD = (
    '{"_id": "1", "input": "Who?", "context": "It was Ada.", "answers": ["Ada"], "length": 3, '
    '"dataset": "my_qa", "language": "en", "all_classes": null}\n'
)
STAMPS = {"scripts/quickstart": ROOT / ".venv" / "stamp", "scripts/test": ROOT / ".venv" / "stamp-test"}


def three_lines() -> str:
    """The library in three lines, as the main README has it."""
    (program,) = (match[2] for match in FENCE.finditer(README) if "lazyllm.enable" in match[2])
    return program


def printed() -> list[doctest.Example]:
    """What the whole program prints, as the library's README has it."""
    (session,) = (match[2] for match in FENCE.finditer(READMES["lazyllm/README.md"]) if match[2].startswith(">>> "))
    return doctest.DocTestParser().get_examples(session)


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
    """The files that the READMEs say to write, in `folder`; the model is that in `model_folder`."""
    records = folder / "records"
    for name, text in {
        **FILES,
        "records/my_qa.jsonl": RECORD,
        "records/my_table.tsv": "It was Ada.\tWho?\tAda\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/models/my_model", str(model_folder)).replace("/data/mine", str(records)))


@pytest.fixture
def own(tmp_path, monkeypatch, chat_model):
    """The working directory with all files of one's own in it."""
    own_files(tmp_path, chat_model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in FILES:
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)


def command_with(setting: str) -> list[str]:
    """The words of the one `run` command that has `setting`, without `run`."""
    (line,) = (line for line in OWN if setting in line.split())
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


def test_a_dataset_of_another_format_with_a_metric_of_ones_own(run, tmp_path, own):
    code, _, err = run(*command_with("data=tables"), "timing.warmup=0")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    (row,) = rows(folder)
    assert (row["dataset"], row["_id"], row["score"]) == ("my_table", "0", row["prediction"].strip().startswith("Ada"))


def test_a_launcher_of_ones_own(lazybench, own):
    (line,) = (line for line in CONFIGURED if "+cluster=mine" in line.split())
    words = [word for word in words_of(line, {})[1:] if word != "-m" and not word.startswith("method=")]
    code, out, err = lazybench("run", *words, "--cfg", "hydra")
    assert code == 0, err
    launcher = yaml.safe_load(out)["hydra"]["launcher"]
    assert (launcher["_target_"].rpartition(".")[2], launcher["n_jobs"]) == ("JoblibLauncher", 4)


@pytest.mark.parametrize("tokens", [1, 3, 50])
def test_the_library_in_three_lines(tokens, capsys):
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 30}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, **shape)).eval()
    ids = torch.randint(5, 200, (1, tokens))
    with torch.no_grad():
        before = model(ids).logits
    values = {"model": model, "tokenizer": tokenizer, "inputs": {"input_ids": ids}}
    exec(three_lines(), values)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)  # bit for bit what it was
    for example in printed():
        exec(compile(example.source, "README.md", "single"), values)
        said = capsys.readouterr().out
        assert said.strip()
        if "schedule" in example.source:
            assert said == example.want
    kept = ceil(0.6 * tokens - 1e-9)
    lazy = values["lazy"]
    assert lazy.stats.rows[0, [0, 10, 20]].tolist() == [tokens, kept, ceil(0.6 * kept - 1e-9)]
    assert 0 < lazy.stats.prompt_computed <= 1
    assert values["output"].shape[1] == tokens + 24


@pytest.mark.slow
def test_the_whole_program_prints_what_the_readme_says(capsys):
    runpy.run_path(str(ROOT / "scripts" / "example.py"))
    said = capsys.readouterr().out
    program = (ROOT / "scripts" / "example.py").read_text("utf-8")
    assert said == "".join(example.want for example in printed())
    assert all(example.source.partition("  #")[0].strip() in program for example in printed())
    (enabled,) = re.findall(r"with lazyllm\.enable\(.*\) as lazy:", three_lines())
    assert enabled in program


@pytest.mark.parametrize("command", sorted({line.split()[0] for line in COMMANDS}))
def test_every_command_named_there_exists(lazybench, command):
    code, out, _ = lazybench("--help")
    assert code == 0
    assert re.search(rf"^  lazybench {command} ", out, re.MULTILINE)


@pytest.mark.parametrize("readme", READMES)
def test_every_link_leads_somewhere(readme):
    for place, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", READMES[readme]):
        path = (ROOT / readme).parent / place
        assert path.exists(), place
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_the_map_of_the_folders_is_what_is_there():
    rows_of_map = re.search(r"^\| in `lazybench/` .*\n((?:\|.*\n)+)", README, re.MULTILINE)[1].splitlines()[1:]
    named = {name.strip("/") for row in rows_of_map for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    there = {path.name for path in (ROOT / "lazybench").iterdir() if path.suffix != ".md"}
    assert named == there - {"__init__.py", "__pycache__"}
    for row in rows_of_map:
        (folder, *_), inside = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:3])
        assert all((ROOT / "lazybench" / folder / name).exists() for name in inside)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_named_there_exists(script):
    assert (ROOT / script).exists()


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("python -m lazybench ")])
def test_every_other_line_is_checked(line):
    """Fails for a command of a new kind, which nothing here would try."""
    program, *words = shlex.split(line.removeprefix("python "))
    if program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words == ["install", "./CHECKOUT"] or words[1].removeprefix(".[").removesuffix("]") in extras
    elif program.startswith("scripts/"):
        text = (ROOT / program).read_text()
        assert all(f'"{word}"' in text for word in words if word.startswith("--"))
    elif line.startswith("python -m lazyllm.extras.lm_eval "):
        assert line in READMES["lazyllm/README.md"]  # test_lm_eval.py runs those
    else:
        assert line in ("source .venv/bin/activate", 'eval "$(lazybench -sc install=bash)"') or re.match(
            r"(export )?\w+=", line
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["scripts/quickstart", "task=2wikimqa", "data.tokens=512"],
        ["scripts/test", "--collect-only", "tests/test_packaging.py"],
    ],
    ids=lambda words: words[0],
)
def test_the_two_commands(tmp_path, words):
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "scripts/environment.sh")]
    stamp = STAMPS[words[0]]
    if not stamp.exists() or stamp.read_text().split()[0] != sha256(b"".join(parts)).hexdigest():
        pytest.skip("they would make the environment anew under the tests")
    output = [f"output={tmp_path}/runs"] if words[0] == "scripts/quickstart" else []
    done = subprocess.run([*words, *output], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(folders(tmp_path / "runs")) == len(output)
    assert not output or "python -m lazybench run method=lazyllm task=multidoc_qa data=longbench" in done.stdout


def jobs(words: list[str]) -> list[list[str]]:
    """The words of single jobs which together take every value that a sweep's words name.

    What an experiment sweeps over by itself takes its first value: all of them compose, see test_experiments.
    """
    given = {word.partition("=")[0] for word in words}
    choices = [values_of(word) for word in words if word not in ("-m", "--multirun", "--cfg", "job")]
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
    """Folders for those that command lines only stand for."""
    folder = tmp_path_factory.mktemp("readme")
    own_files(folder, chat_model)
    shutil.copy(CONF / "method" / "lazyllm.yaml", folder / "method" / "lazyllm_speedup_2.yaml")
    for speedup in (2, 3):
        matched = folder / "method" / f"static_pruning_{speedup}x.yaml"
        shutil.copy(CONF / "method" / "static_pruning.yaml", matched)
    return {"FOLDER_IT_PRINTS": folder, "MATCHES": folder, "FOLDER": folder, "/shared/runs": folder / "runs"}


@pytest.mark.parametrize("line", CONFIGURED)
def test_every_run_named_there_has_settings_that_fit(lazybench, monkeypatch, places, line):
    command, *words = words_of(line, places)
    command = "run" if command == "plan" else command
    # Folders of configs lie in the checkout, or are one's own.
    monkeypatch.chdir(places["FOLDER"] if "--config-dir ." in line else ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path, str(places["FOLDER"])])
    for name in FILES:
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    for job in jobs(words):
        code, out, err = lazybench(command, *job, "--cfg", "job")
        assert code == 0, err
        settings = OmegaConf.to_object(OmegaConf.merge(SCHEMAS[command], yaml.safe_load(out)))
        if command == "calibrate":
            from lazybench.calibration import budgets

            assert budgets.parse(settings.budget)
        else:
            assert build_method(settings.method)
        if command != "speed" and settings.task is not None:  # else a prompt is in a file of the user's
            assert datasets_of(settings.task, load_facts(settings.data.datasets))


def test_every_other_command_named_there_runs(run, lazybench, monkeypatch, tmp_path, places):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "results/equal_speed/records", "results/equal_speed/records")
    code, _, err = run("method=baseline", "data.limit=1", "timing.warmup=0", output="results/runs")
    assert code == 0, err
    (folder,) = folders(tmp_path / "results" / "runs")
    shutil.copy(folder / "predictions.jsonl", tmp_path)
    for line in COMMANDS:
        if line not in CONFIGURED:
            code, out, err = lazybench(*words_of(line, {**places, "/shared/runs": tmp_path / "results" / "runs"}))
            assert code == 0, f"{line}: {err}"
            assert out
