"""Models of the hub where it refuses, cannot be reached or is not to be asked: one line says so and what to do."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from support import LAZY, folders

from lazybench.data import hub

GATED = "meta-llama/Llama-2-7b-chat-hf"


@contextmanager
def hub_that(answers):
    """A hub at a URL of its own: it answers with a status and headers, or (None) never."""
    if answers is None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return
    status, headers = answers

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def on_the_hub(tmp_path, begin="", timeout=120, **environment):
    """What is said of a model of the hub, in a process of its own: its library reads its settings when imported."""
    code = (
        f"{begin}\nimport sys\nfrom lazybench.config import ModelConfig\nfrom lazybench.errors import LazyBenchError\n"
        "from lazybench.model.loading import load_tokenizer\n"
        f"try: load_tokenizer(ModelConfig(name='x', path={GATED!r}, limit=100))\n"
        "except LazyBenchError as error: sys.exit(f'{error}')"
    )
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings |= {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ":".join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=settings, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=timeout,
    )  # fmt: skip
    said = done.stderr.strip()
    assert done.returncode == 1, said
    assert len(said.splitlines()) == 1, said
    assert f"model.path={GATED} cannot be loaded" in said
    return said


@pytest.mark.slow
def test_a_gated_model_without_a_token(tmp_path):
    gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
    with hub_that((401, gate)) as url:
        said = on_the_hub(tmp_path, HF_ENDPOINT=url)
    assert "gated repo" in said
    assert "log in with `hf auth login` if the model is gated, or give a local folder or .gguf file" in said


@pytest.mark.slow
def test_offline_means_no_connection_at_all(tmp_path):
    begin = (
        "import os, socket\n"
        "def refuse(*words): os.write(2, b'a connection\\nwas made\\n'); os._exit(3)\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse"
    )
    said = on_the_hub(tmp_path, begin, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE=1 is set, and the local cache lacks it" in said


@pytest.mark.slow
@pytest.mark.parametrize("answers", [None, (503, {})], ids=["silent", "broken"])
def test_a_hub_that_cannot_be_asked_does_not_hold_up_a_run(tmp_path, answers):
    with hub_that(answers) as url:
        said = on_the_hub(tmp_path, timeout=40, HF_ENDPOINT=url)  # starting Python included
    assert f"{url} " in said
    assert "and the local cache lacks it (connect to the hub, or give a local folder or .gguf file)" in said


@pytest.fixture
def endpoint(monkeypatch):
    """Set the hub's URL, as if nothing had been asked of any hub before."""

    def set_url(url):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "_TIMEOUT", 0.2)
        hub.unreachable.cache_clear()

    yield set_url
    hub.unreachable.cache_clear()


@pytest.mark.parametrize(
    ("answers", "says"), [(None, "cannot be reached"), ((503, {}), "answers with 503"), ((401, {}), None)]
)
def test_whether_the_hub_can_be_asked_is_found_out_with_one_request(endpoint, answers, says):
    with hub_that(answers) as url:
        endpoint(url)
        why = hub.unreachable()
        assert why is None if says is None else says in why
    assert hub.unreachable() == why  # not asked again


def test_a_refused_connection_is_found_out_at_once(endpoint, refused, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    endpoint(url)
    start = time.monotonic()
    assert f"{url} cannot be reached (ConnectError)" in refused("none/such-model")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("offline", [False, True])
def test_a_cached_model_is_used_without_the_hub(endpoint, run, tiny_model, tmp_path, monkeypatch, offline):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub/models--some--tiny"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    with hub_that(None) as url:
        endpoint(url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        if offline:
            monkeypatch.setattr(socket.socket, "connect", connected)
        code, _, err = run(*LAZY, "model.path=some/tiny", "data.limit=1")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert f"some/tiny@{commit}" in (folder / "config.yaml").read_text()


def connected(*words):
    raise AssertionError("a connection")
