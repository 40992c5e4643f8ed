import re
import shutil
import socket
import sys
from pathlib import Path

import pytest
import transformers
from support import FINISHED, byte_tokenizer, folders, save_tiny_model, shortened_longbench, small_run

from lazybench.data import dataset_configs, hub


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, tokenizer):
    """A random Llama with a byte tokenizer, saved as a folder."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


@pytest.fixture(scope="module")
def model(tiny_model):
    """The tiny model, loaded once for each file."""
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_model).eval()


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """An empty folder to work in."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def short_longbench():
    return shortened_longbench()


@pytest.fixture
def lazybench(monkeypatch, capsys, short_longbench):
    """Call the command line in this process, with short answers; returns (exit code, stdout, stderr)."""
    from lazybench.__main__ import main

    monkeypatch.setattr(dataset_configs, "_longbench", lambda: short_longbench)
    verbosity = transformers.utils.logging.get_verbosity()

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lazybench", *words])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    transformers.utils.logging.set_verbosity(verbosity)


@pytest.fixture
def run(lazybench, tiny_model, tmp_path):
    """Call `lazybench run`, or `plan`, on the tiny model with small data; settings given override these."""

    def call(*words: str, output: str = "runs", command: str = "run") -> tuple[int, str, str]:
        return lazybench(command, *small_run(tiny_model, tmp_path / output, words), *words)

    return call


@pytest.fixture
def ran(run):
    """Call `lazybench run` as `run` does, to its end; returns the run's folder."""

    def call(*words: str, output: str = "runs") -> Path:
        code, out, err = run(*words, output=output)
        assert code == 0, err
        return Path(re.findall("^(?:saved in|shard .* records:) (.*)$", out, re.MULTILINE)[-1])

    return call


@pytest.fixture(scope="session")
def finished_runs(tiny_model, short_longbench, tmp_path_factory):
    """An output folder with one finished and traced run, of `LAZY` over the task of `FINISHED`."""
    from lazybench.__main__ import main

    output = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        words = ["lazybench", "run", *small_run(tiny_model, output, FINISHED), *FINISHED]
        patch.setattr(sys, "argv", words)
        patch.setattr(dataset_configs, "_longbench", lambda: short_longbench)
        assert main() == 0
    return output


@pytest.fixture
def finished(finished_runs, lazybench, tmp_path):
    """The folder of a finished run, a copy of its own: `run(*FINISHED)` finds it."""
    shutil.copytree(finished_runs, tmp_path / "runs")
    (folder,) = folders(tmp_path / "runs")
    return folder


@pytest.fixture(scope="session")
def six_layers(tmp_path_factory, tokenizer):
    return save_tiny_model(tmp_path_factory.mktemp("six"), tokenizer, layers=6)


@pytest.fixture
def silent_hub(monkeypatch):
    """A hub that accepts connections and never answers; its URL."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "_TIMEOUT", 0.2)
        hub.why_unreachable.cache_clear()
        yield url
        hub.why_unreachable.cache_clear()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub that must not be asked, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", lambda *words: pytest.fail("a connection"))
    hub.why_unreachable.cache_clear()
    yield
    hub.why_unreachable.cache_clear()


@pytest.fixture
def undrawn(monkeypatch):
    """Reports have no figures."""
    monkeypatch.setattr("lazybench.report.figures.drawings.FIGURES", ())
    monkeypatch.setattr("lazybench.report.figures.drawings.speed_against_kl", lambda *_: None)


@pytest.fixture
def report(tmp_path, undrawn):
    """Make a report, without figures, of the runs in `runs/`; returns its folder."""
    from lazybench.cli.report import main

    def make(*words):
        runs = [] if any(word.startswith("runs=") for word in words) else [f"runs={tmp_path / 'runs'}"]
        assert main([*runs, f"output={tmp_path / 'report'}", *words]) == 0
        return tmp_path / "report"

    return make
