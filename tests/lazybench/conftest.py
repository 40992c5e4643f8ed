from __future__ import annotations

import sys

import pytest
import transformers
from support import byte_tokenizer, save_tiny_model


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, tokenizer):
    """A random Llama with a byte tokenizer, saved as a folder."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


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
        settings = {
            "model.path": tiny_model,
            "model.name": "tiny",
            "model.chat": "null",
            "model.limit": 900,
            "data.tokens": 512,
            "data.limit": 2,
            "timing.warmup": 1,
            "timing.cpu_share": 0,  # other work on this machine is no part of these tests
            "task": "2wikimqa",
            "output": tmp_path / output,
        }
        if not any(word.startswith("method=") for word in words):
            settings |= {"method": "lazyllm", "method.schedule": "[1:0.6]"}
        given = {word.partition("=")[0] for word in words}
        defaults = [f"{key}={value}" for key, value in settings.items() if key not in given]
        return lazybench(command, *defaults, *words)

    return call
