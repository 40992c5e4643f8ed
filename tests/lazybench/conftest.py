import shutil
import socket
import sys

import pytest
import transformers
from calibrating import TIMES, line
from support import FINISHED, LAZY, byte_tokenizer, folders, one_line, save_tiny_model

from lazybench.data import hub


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, tokenizer):
    """A random Llama with a byte tokenizer, saved as a folder."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """An empty folder to work in."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def lazybench(monkeypatch, capsys, tiny_model, tmp_path):
    """Call the command line in this process; returns (exit code, stdout, stderr)."""
    from lazybench.__main__ import main

    verbosity = transformers.utils.logging.get_verbosity()

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lazybench", *words])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
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
        return lazybench(command, *_small(tiny_model, tmp_path / output, words), *words)

    return call


def _small(model, output, words):
    """The settings of a small run on a model, but for those that `words` set."""
    settings = {
        "model.path": model,
        "model.name": "tiny",
        "model.chat": "null",
        "model.limit": 900,
        "data.tokens": 512,
        "data.limit": 2,
        "timing.warmup": 1,
        "timing.cpu_share": 0,  # other work on this machine is no part of these tests
        "task": "2wikimqa",
        "output": output,
    }
    if not any(word.startswith("method=") for word in words):
        settings |= {"method": "lazyllm", "method.schedule": "[1:0.6]"}
    given = {word.partition("=")[0] for word in words}
    return [f"{key}={value}" for key, value in settings.items() if key not in given]


@pytest.fixture(scope="session")
def finished_runs(tiny_model, tmp_path_factory):
    """An output folder with one finished and traced run, of `LAZY` over the task of `FINISHED`."""
    from lazybench.__main__ import main

    output = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        words = ["lazybench", "run", *_small(tiny_model, output, FINISHED), *FINISHED]
        patch.setattr(sys, "argv", words)
        assert main() == 0
    return output


@pytest.fixture
def finished(finished_runs, tmp_path):
    """The folder of a finished run, a copy of its own: `run(*FINISHED)` finds it."""
    shutil.copytree(finished_runs, tmp_path / "runs")
    (folder,) = folders(tmp_path / "runs")
    return folder


@pytest.fixture(scope="session")
def six_layers(tmp_path_factory, tokenizer):
    return save_tiny_model(tmp_path_factory.mktemp("six"), tokenizer, layers=6)


def steady(patch):
    """A model whose time is its tokens: what is in reach does not depend on the machine."""
    patch.setattr("lazybench.calibration.times.measure", lambda _, ids: TIMES)


@pytest.fixture
def calibrate(lazybench, monkeypatch, six_layers, tmp_path):
    """Call `lazybench calibrate` on the model of six layers; settings given override the usual ones."""
    steady(monkeypatch)
    return lambda *words: lazybench(*line("calibrate", six_layers, tmp_path / "calibrations", *words))


@pytest.fixture(scope="session")
def calibrations(six_layers, tmp_path_factory):
    """Finished calibrations of three budgets: on the first half, and on each half for the other."""
    from lazybench.__main__ import main

    output = tmp_path_factory.mktemp("calibrations")
    with pytest.MonkeyPatch.context() as patch:
        steady(patch)
        for half in ("first", "cross"):
            asked = {"first": ("budget=speedup >= 1.3, KL <= 1000", "speedups=[1.5]"), "cross": ()}[half]
            words = line("calibrate", six_layers, output, f"half={half}", *asked)
            patch.setattr(sys, "argv", ["lazybench", *words])
            assert main() == 0
    (folder,) = {path.parent for path in output.glob("*/*/*/*/times.json")}
    return folder


@pytest.fixture
def refused(run, tmp_path):
    """Run on the weights at a path; what the command says, which left nothing behind."""

    def call(path, *words):
        code, _, err = run(*LAZY, f"model.path={path}", *words)
        assert not (tmp_path / "runs").exists()
        said = one_line(code, err)
        assert f"model.path={path}" in said
        return said

    return call


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub that must not be asked, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", lambda *words: pytest.fail("a connection"))
    hub.unreachable.cache_clear()
    yield
    hub.unreachable.cache_clear()
