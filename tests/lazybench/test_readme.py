"""Commands and files in the READMEs work as they are."""

import json
import re
import runpy
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import peers
import pytest
import torch
import yaml
from marks import slow_but
from support import byte_tokenizer, folders, rows

import lazyllm
from lazybench.config import CONF

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GLOBS = ("*.md", "lazyllm/*.md", "lazybench/**/*.md", "conf/*.md", "results/*.md", "results/paper/*.md")
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for glob in GLOBS for path in ROOT.glob(glob)}
BLOCKS = [match.groups() for text in PAGES.values() for match in FENCE.finditer(text)]
MATCHED = ("static_pruning_2x", "static_pruning_3x")
# Files that readers are to write: blocks that begin with the file's name.
NAME = re.compile(r"(?:# @.*\n)?# (\w+(?:/\w+)?\.(?:py|yaml))\n")
FILES = {match[1]: text for _, text in BLOCKS if (match := NAME.match(text))} | {
    "records/my_qa.jsonl": '{"_id": "1", "input": "Who?", "context": "It was Ada.", "answers": ["Ada"], "length": 3, '
    '"dataset": "my_qa", "language": "en", "all_classes": null}\n',
    "records/my_table.tsv": "It was Ada.\tWho?\tAda\n",
    **{f"method/{name}.yaml": (CONF / "method/static_pruning.yaml").read_text() for name in MATCHED},
    "predictions.jsonl": '{"dataset": "qasper", "pred": "Ada", "answers": ["Ada"], "all_classes": null, "length": 3}\n',
}
LINES = [line.partition(" #")[0].strip() for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
VARIABLES = dict(match.groups() for line in LINES if (match := re.fullmatch(r'(\w+)="(.*)"', line)))
COMMANDS = list(dict.fromkeys(line.split(maxsplit=3)[3] for line in LINES if line.startswith("python -m lazybench ")))
COMPOSED = [line for line in COMMANDS if not re.match(r"list|status|report|score|time|run --help", line)]
OWN = [line for line in COMPOSED if re.match(r"run --config-dir \. (?!-m|.*fading)", line)]
LIBRARY = [text for kind, text in FENCE.findall(PAGES["lazyllm/README.md"]) if kind == "python"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/data/mine", f"{tmp_path}/records"))
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def values_of(word: str) -> list[str]:
    """Return a word for each value that a word sweeps over, split at commas outside brackets and quotes."""
    name, _, values = word.partition("=")
    swept = re.findall(r"""((?:\[[^]]*\]|"[^"]*"|[^,])+)""", values)
    return [f"{name}={value}" for value in swept] if len(swept) > 1 and "{" not in values else [word]


@pytest.mark.slow
@pytest.mark.parametrize("line", COMPOSED)
def test_every_command_composes(lazybench, folder, line):
    """A sweep composes as single jobs that together have every value."""
    line = re.sub(r"\$(\w+)", lambda match: VARIABLES.get(match[1], match[0]), line)
    line = re.sub(r"MATCHES|FOLDER", str(folder), line).replace("results/", f"{ROOT}/results/")
    command, *words = shlex.split(re.sub(r"(?<= )-m |\+experiment=\w+", "", line))
    choices = [values_of(word) for word in words]
    for number in range(max(map(len, choices), default=1)):
        job = [values[min(number, len(values) - 1)] for values in choices]
        code, out, err = lazybench(command.replace("plan", "run"), *job, "--cfg", "job")
        assert (code, bool(out)) == (0, True), err


def test_every_other_command_runs(run, lazybench, folder):
    assert run("method=baseline", "data.limit=1", "timing.warmup=0", output="results/runs")[0] == 0
    for line in {line.split()[0]: line for line in COMMANDS if line not in COMPOSED}.values():  # one per command
        code, out, err = lazybench(*shlex.split(re.sub(r"runs=\S+/runs", "runs=results/runs", line)))
        assert (code, bool(out)) == (0, True), f"{line}: {err}"


@pytest.mark.parametrize("line", slow_but(OWN[:1], OWN))
def test_own_choices_run(run, folder, line):
    code, _, err = run(*shlex.split(line)[1:], "data.limit=1", "timing.warmup=0")
    assert code == 0, err
    assert rows(folders(folder / "runs")[0])


@pytest.mark.parametrize(
    ("words", "module", "method"),
    [
        (["method=loudest"], "loudest", {"_target_": "loudest.Loudest", "schedule": "33%:0.7,67%:0.5"}),
        (
            ["method=lazyllm", "method.schedule=1:0.6", "method.ranking={_target_:fading.Fading,fade:0.3}"],
            "fading",
            {"ranking": {"_target_": "fading.Fading", "fade": 0.3}},
        ),
    ],
)
def test_a_ranking_of_ones_own_is_run(ran, folder, words, module, method):
    written = ran("--config-dir", ".", *words, "timing.per_dataset=0")
    settings = yaml.safe_load((written / "config.yaml").read_text())
    assert method.items() <= settings["method"].items()
    assert module in settings["code"]
    appearance = json.loads((written / "environment.json").read_text()).get("appearance")
    assert appearance == ({"label": "loudest head"} if module == "loudest" else None)
    assert all(row["prompt_computed"] < 1 for row in rows(written))


def test_the_first_example_of_the_library(model):
    values = {"model": model, "inputs": {"input_ids": torch.randint(5, 200, (1, 50))}}
    exec(next(text for kind, text in FENCE.findall(PAGES["README.md"]) if kind == "python"), values)
    assert values["lazy"].stats.num_computed[0].tolist() == [50, 27, 15, 15]


class Completions(BaseHTTPRequestHandler):
    """Answer a request for a completion with the number of tokens of its prompt."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"choices": [{"text": str(len(body["prompt"]))}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("localhost", 0), Completions) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def given(server):
    """Provide the names that the library's examples use: a model deep enough for every schedule, and a long prompt."""
    tokenizer = byte_tokenizer(pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "What is the name of the tower?"}]
    chat = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
    shape = {"vocab_size": len(tokenizer), "num_hidden_layers": 22, "max_position_embeddings": 1024}
    ids, model = peers.random_ids(0, 510), peers.build(0, **shape)  # more tokens than an example's min_tokens
    given = {"model": model, "ids": ids, "inputs": {"input_ids": ids}, "choices": [[5], [6, 7]], "tokenizer": tokenizer}
    given |= {"prompts": [messages[0]["content"] * 20, "Where?"], "chat": chat, "turn": ids[:, :9]}
    given |= {"document": "It was Ada. " * 45, "question": "Who?", "server": server, "name": "large"}
    # In a module of its own: a dataclass looks for the one that it is defined in.
    return {**given, "lazyllm": lazyllm, "__name__": __name__}


@pytest.mark.parametrize("example", LIBRARY, ids=lambda text: text.splitlines()[0])
def test_an_example_of_the_librarys_page_runs(example, given):
    scope = dict(given)
    exec(example, scope)
    assert "output" not in scope or scope["output"].shape[1] > 40
    assert "answer" not in scope or scope["answer"] == "153"  # tokens, 0.3 of the prompt
    if "protect" in scope:
        assert given["tokenizer"].decode(scope["encoded"]["input_ids"][0, scope["protect"]]) == "<user>Who?"
    assert "page" not in scope or scope["page"].count("<article") == 1


def test_every_public_name_is_on_the_librarys_page():
    assert [name for name in lazyllm.__all__ if name not in PAGES["lazyllm/README.md"]] == []
    assert all(hasattr(lazyllm, name) for name in lazyllm.__all__)


@pytest.mark.slow
def test_the_example_prints_what_the_readme_shows(capsys):
    (session,) = (text for _, text in FENCE.findall(PAGES["lazyllm/README.md"]) if text.startswith(">>> "))
    runpy.run_path(str(ROOT / "scripts/example.py"))
    assert capsys.readouterr().out == re.sub(r"^>>> .*\n", "", session, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_quickstart_shows_right_answers_and_speedups(capsys):
    runpy.run_path(str(ROOT / "scripts/first_result.py"))
    out, err = capsys.readouterr()
    answers = re.findall(
        r"^(unmodified|LazyLLM|lazyllm\+) +(.*?)((?: +\d+\.\d\d s +\d+\.\d\dx){2})$", out, re.MULTILINE
    )
    assert [name for name, *_ in answers] == ["unmodified", "LazyLLM", "lazyllm+"]
    (day,) = re.findall(r" on (\w+day) left ", out)
    assert all(day in answer for _, answer, _ in answers)
    assert "%|" not in err, "a progress bar"


def test_every_link_leads_somewhere():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\((?!https?:)([^)#]*)", PAGES[page])]
    assert [link for link in links if not (ROOT / link[0]).parent.joinpath(link[1]).exists()] == []


@pytest.mark.slow
def test_the_table_of_architectures_is_not_stale():
    check = subprocess.run([sys.executable, ROOT / "scripts/architectures", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
