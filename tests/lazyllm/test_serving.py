"""The OpenAI-compatible server, asked by OpenAI's own client, on a model that LazyLLM is enabled on."""

import json
import runpy
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import families
import openai
import pytest
import torch
import uvicorn
from checks import STAGES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import lazyllm
from lazyllm.extras import serve

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
        "{{ message.content or message.tool_calls[0].function.arguments.to }} {% endfor %}w5"
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", padding_side="left", chat_template=template)


@contextmanager
def serving(model, tokenizer, **settings):
    """Serve a model as "tiny" and yield a client."""
    app = serve.application("tiny", model, tokenizer, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        url = "http://{}:{}/v1".format(*server.servers[0].sockets[0].getsockname())
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=240) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with serving(model, tokenizer, protects=False) as client:
        yield client


@contextmanager
def scripted(model, steps):
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


def chat(text):
    return [{"role": "user", "content": text}]


def ask(client, text, **settings):
    request = {"model": "tiny", "messages": chat(text), "temperature": 0, "max_tokens": 8, **settings}
    answer = client.chat.completions.create(**request)
    if request.get("stream"):
        return "".join(chunk.choices[0].delta.content for chunk in answer)
    return answer.choices[0].message.content


def expected(model, tokenizer, text, schedule=STAGES):
    """Return the answer of `generate` to a chat."""
    ids = tokenizer(f"w1 {text} w5", return_tensors="pt").input_ids
    with lazyllm.enable(model, schedule) as lazy:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    return tokenizer.decode(output[0, ids.shape[1] :]), lazy.stats.rows


def test_answers_are_those_of_generate_in_turn_at_once_and_streamed(model, tokenizer, client):
    wanted = [expected(model, tokenizer, text) for text in TEXTS]
    answers = [answer for answer, _ in wanted]
    with lazyllm.enable(model, STAGES) as lazy:
        for text, (answer, rows) in zip(TEXTS, wanted, strict=True):
            assert ask(client, text) == ask(client, text, stream=True) == answer
            assert torch.equal(lazy.stats.rows, rows)
        with ThreadPoolExecutor(2) as pool:
            for stream in (False, True):
                assert list(pool.map(lambda text, stream=stream: ask(client, text, stream=stream), TEXTS)) == answers
        request = {"model": "tiny", "prompt": f"w1 {TEXTS[0]} w5", "temperature": 0, "max_tokens": 8}
        answer = client.completions.create(**request)
        chunks = [*client.completions.create(**request, stream=True, stream_options={"include_usage": True})]
        assert answer.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == answers[0]
        assert len([chunk for chunk in chunks if chunk.choices[0].text]) == 8
        for end in (answer, chunks[-1]):
            assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.total_tokens) == (42, 8, 50)
            assert end.choices[0].finish_reason == "length"
    assert ask(client, TEXTS[0]) == expected(model, tokenizer, TEXTS[0], "")[0]
    assert [card.id for card in client.models.list()] == ["tiny"]


def test_requests_bring_their_own_settings_and_tools_stay(model, tokenizer, client):
    tools = [{"type": "function", "function": {"name": "maps", "description": "w11 w12 w13", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "maps", "arguments": '{"to": "w14"}'}}
    turns = [*chat(TEXTS[0]), {"role": "assistant", "tool_calls": [call]}]
    turns += [{"role": "tool", "tool_call_id": "1", "content": TEXTS[1]}, *chat(TEXTS[2])]
    request = {"messages": turns, "tools": tools}
    answer, wanted = ask(client, "", **request), expected(model, tokenizer, TEXTS[0], "2:0.25")[0]
    assert ask(client, "", **request, tool_choice="none") == ask(client, "", messages=turns) != answer
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        assert ask(client, "", extra_body={"schedule": ""}, **request) == answer
        assert ask(client, TEXTS[0], extra_body={"schedule": "2:0.25"}) == wanted
        assert ask(client, "", extra_body={"protect": "template"}, **request) != answer
        call["function"]["arguments"] = {"to": "w14"}
        own = lazyllm.template_tokens(tokenizer, [{"content": "", **turn} for turn in turns], tools=tools)
        assert int(own.sum()) == 8  # w1, those of the tool, the call's and w5
        assert all(set(own.nonzero()[:, 0].tolist()) <= set(active.tolist()) for active in lazy.stats.positions[0])
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="after layer 9, but the model has"):
                ask(client, TEXTS[0], extra_body={"schedule": "9:0.5"}, stream=stream)
        with serving(model, tokenizer) as by_default:
            ask(by_default, TEXTS[1])
        assert lazy.stats.protected == 2  # w1 and w5


def rows(name, *values, **others):
    return [{name: value, **others} for value in values]


def message(**fields):
    return {"messages": [{"role": "user", "content": "w9", **fields}]}


REFUSED = {
    "messages": [*rows("messages", [], [{"role": "user"}]), message(audio={"id": "1"}), message(tool_calls=[{}])],
    "no system": [message(role="system")],
    "Input should be 'text'": [message(content=[{"type": "image_url", "image_url": {"url": "w9"}}])],
    "a prompt of 514 tokens": [message(content="w9 " * 512)],
    "leaves 509 of the model's positions": rows("max_tokens", 510),
    "has the model 'tiny' alone": [{"model": "another"}],
    "seed: ": rows("seed", 2**70, 1.5),
    "temperature": rows("temperature", 1e-40, -1, float("nan")),
    "protect: Input should be": [*rows("protect", False), *rows("protect", "template", prompt="w9")],
    "bias": rows("logit_bias", {"97": 1}, {"-1": 1}),
    "multiple values": rows("chat_template_kwargs", {"tokenize": False}, {"return_tensors": "pt"}),
    "not permitted": [{"n": 2}, {"top_k": 2}, {"response_format": {}}, {"prompt": "w9", "best_of": 2}],
    "generation_config": [{"generation_config": '{"num_return_sequences": 2}'}],
    "logprobs": [{"logprobs": True}, {"prompt": "w9", "logprobs": 0}],
    "prompt": rows("prompt", "", [], [97], ["w9", "w9"]),
    **{"expected value": ["w9"], "should be an object": ["[]"], "hex escape": ['"\\ud83d"']},
}


@pytest.mark.parametrize(("given", "reason"), [(given, reason) for reason in REFUSED for given in REFUSED[reason]])
def test_options_that_would_be_ignored_get_status_400(client, given, reason):
    url, content = "/completions" if "prompt" in given else "/chat/completions", given
    if isinstance(given, dict):
        content = json.dumps({"model": "tiny"} | ({} if "prompt" in given else message()) | given)
    with pytest.raises(openai.BadRequestError) as error:
        client.post(url, cast_to=object, content=content.encode())
    assert reason in error.value.body["message"]


def test_options_of_a_request_are_honoured(client):
    answer = ask(client, TEXTS[0])
    neutral = {"n": 1, "presence_penalty": 0.0, "user": "me", "logprobs": False, "stop": [], "tool_choice": "none"}
    neutral |= {"response_format": {"type": "text"}, "parallel_tool_calls": True}
    neutral |= {"top_logprobs": 0, "modalities": ["text"], "seed": None, "logit_bias": {"9": 0}}
    assert ask(client, TEXTS[0], **neutral, extra_body={"protect": None, "schedule": None}) == answer
    assert ask(client, TEXTS[0], max_tokens=None, max_completion_tokens=8) == answer
    assert ask(client, TEXTS[0], logit_bias={"9": 100}, max_tokens=2) == "w9 w9"

    def draw(seed, **sampling):
        return ask(client, TEXTS[0], **{"temperature": 2.0, "seed": seed, **sampling})

    one, two = draw(1), draw(2)
    assert len({one, two, answer, draw(None), draw(1, temperature=None, top_p=0.99)}) == 5
    with ThreadPoolExecutor(3) as pool:  # each goes by its own seed, whatever the others do
        assert [*pool.map(draw, (1, 2, 1, 2))] == [one, two] * 2
    turns = [*chat(TEXTS[0]), {"role": "assistant", "content": TEXTS[1]}, *chat(TEXTS[2])]
    parts = [{"type": "text", "text": half} for half in TEXTS[0].split(" ", 1)]
    same = [{"role": "user", "content": parts}, {**turns[1], "tool_calls": None, "annotations": None}, turns[2]]
    assert ask(client, "", messages=turns) == ask(client, "", messages=same) != ask(client, "", messages=turns[2:])


STOPS = [("w5 w6", 7, "w4 ", 3), (["w7", "w5 w9"], 7, "w4 w5 w6 ", 4), ("w8 w1", 7, "w4 w5 w6 w7 w8", 5)]


@pytest.mark.parametrize(("stop", "last", "text", "count"), [*STOPS, ("w0", 0, "w4 w5 w6", 4)])  # w0 is a special token
def test_an_answer_ends_before_the_stop_string(model, client, stop, last, text, count):
    request = {"model": "tiny", "messages": chat(TEXTS[0]), "stop": stop, "max_tokens": 5}
    with scripted(model, [4, 5, 6, last, 8][:count] * 2):
        assert ask(client, "", stream=True, **request) == text
        answer = client.chat.completions.create(**request)
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == (text, count)
    assert answer.choices[0].finish_reason == ("length" if count == 5 else "stop")


def test_a_character_of_several_tokens_is_streamed_whole(model):
    names = [f"w{token}" for token in range(93)] + [f"<0x{byte:02X}>" for byte in "€".encode()] + ["<0xF0>"]
    words = Tokenizer(models.WordLevel({name: token for token, name in enumerate(names)}, unk_token="w1"))
    words.decoder = decoders.ByteFallback()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    with serving(model, tokenizer) as client, scripted(model, [4, 93, 94, 95, 5, 96]):
        chunks = client.completions.create(model="tiny", prompt="w4", max_tokens=6, stream=True)
        assert [text for chunk in chunks if (text := chunk.choices[0].text)] == ["w4", "€", "w5", "\ufffd"]


def test_an_error_in_the_middle_ends_the_stream(model, tokenizer, client):
    (answer, _), error = expected(model, tokenizer, TEXTS[0]), RuntimeError("out of memory")
    with lazyllm.enable(model, STAGES), scripted(model, [4] * 100 + [error]):
        stream = client.chat.completions.create(model="tiny", messages=chat(TEXTS[0]), stream=True)
        assert next(stream).choices[0].delta.content.startswith("w4")
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)
    with scripted(model, [error]), pytest.raises(openai.InternalServerError, match="out of memory"):
        ask(client, TEXTS[0], stream=True)
    with lazyllm.enable(model, STAGES):  # uvicorn closes a connection after an error
        assert ask(client.with_options(max_retries=2), TEXTS[0]) == answer


def test_a_client_that_leaves_in_the_middle_is_not_waited_for(model, client):
    request = {"model": "tiny", "messages": chat(TEXTS[1]), "max_tokens": 400}
    steps = iter(range(800))
    with scripted(model, (time.sleep(0.01) or 4 for _ in steps)):
        with client.chat.completions.create(stream=True, **request) as stream:
            assert next(stream)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(**request)
        assert ask(client, TEXTS[0], max_tokens=1) == "w4"
    assert next(steps) < 200


def test_the_settings_of_the_checkpoint_are_followed(model, client, monkeypatch):
    own, answer = model.generation_config, ask(client, TEXTS[0])
    changes = {"do_sample": True, "num_return_sequences": 2, "use_cache": False, "cache_implementation": "static"}
    for name, value in {**changes, "prompt_lookup_num_tokens": 3}.items():
        monkeypatch.setattr(own, name, value)
    with lazyllm.enable(model, ""):
        assert ask(client, TEXTS[0]) == answer  # one choice
    monkeypatch.setattr(own, "sequence_bias", {(9,): 200.0})
    for limit in (1024, 2):
        monkeypatch.setattr(own, "max_new_tokens", limit)
        given = ask(client, TEXTS[0], max_tokens=None, temperature=None)
        assert given == " ".join(["w9"] * min(limit, 470))  # at most the positions that the model has left
    monkeypatch.setattr(own, "eos_token_id", [8, 9])
    given = client.chat.completions.create(model="tiny", messages=chat(TEXTS[0]), max_tokens=1)
    assert (given.choices[0].finish_reason, given.usage.completion_tokens) == ("stop", 1)
    monkeypatch.setattr(own, "num_beams", 2)
    with lazyllm.enable(model, STAGES), pytest.raises(openai.BadRequestError, match="beam search"):
        ask(client, TEXTS[0])


def test_the_command_line(model, tokenizer, capsys, monkeypatch, tmp_path):
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "whole")
    file = shutil.copytree(tmp_path / "whole", tmp_path / "damaged") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    monkeypatch.setattr(uvicorn, "run", lambda app, host, port: print(f"{host}:{port}"))
    serve.main([str(tmp_path / "whole"), "--ranking", "plus", "--port", "0"])
    assert "keep 0.6 (36% of the prompt)\n127.0.0.1:0\n" in capsys.readouterr().out
    taken = socket.create_server(("127.0.0.1", 0))
    for name, words, reason in (
        ("whole", ["--port", str(taken.getsockname()[1])], "already in use"),
        ("whole", ["--schedule", "9:0.5"], "the schedule prunes after layer 9, but the model has 5 layers"),
        ("nothing.gguf", [], "nothing.gguf"),
        ("damaged", [], ""),
    ):
        with pytest.raises(SystemExit, match="2"):
            serve.main([str(tmp_path / name), "--port", "0", *words])
        *before, line = capsys.readouterr().err.splitlines()
        assert line.startswith("lazyllm: ")
        assert reason in line
        assert all("Loading weights" in shown for shown in before if shown)
    taken.close()
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "lazyllm.extras.serve")
    with pytest.raises(SystemExit, match=r"lazyllm: .*pip install .fastapi>=0\.115"):
        runpy.run_module("lazyllm.extras.serve", run_name="__main__")
