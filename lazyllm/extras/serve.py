"""LazyLLM on an OpenAI-compatible port, one answer at a time: `python -m lazyllm.extras.serve MODEL`."""

import argparse
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from transformers import AsyncTextIteratorStreamer, AutoModelForCausalLM, AutoTokenizer

import lazyllm

try:
    import uvicorn
    from fastapi import BackgroundTasks, FastAPI, Request
    from fastapi.responses import JSONResponse, StreamingResponse
    from openai.types import chat
    from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, PositiveInt, TypeAdapter, ValidationError
except ModuleNotFoundError as error:
    hint = f'lazyllm: {error}: pip install "fastapi>=0.115" "uvicorn>=0.30" "openai>=2"'
    raise (SystemExit if __name__ == "__main__" else ModuleNotFoundError)(hint) from error

_NEUTRAL = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_logprobs": 0, "modalities": ["text"]}
_NEUTRAL |= {"best_of": 1, "echo": False, "suffix": "", "response_format": {"type": "text"}}
_IGNORED = {"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"}


class _Message(BaseModel, extra="allow", strict=True):
    __pydantic_extra__: dict[str, None]  # a reply that a client sends back has fields that are null
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[chat.ChatCompletionContentPartTextParam] | None = None
    name: str | None = None
    tool_calls: list[chat.ChatCompletionMessageFunctionToolCallParam] | None = None
    tool_call_id: str | None = None


class _TextRequest(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    model: str
    stream: bool = False
    stream_options: chat.ChatCompletionStreamOptionsParam = None  # the last chunk has the usage anyway
    max_tokens: PositiveInt = Field(None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    temperature: Annotated[float, Field(ge=0, le=0)] | Annotated[float, Field(ge=1e-6, le=2)] = None
    top_p: Annotated[float, Field(ge=0, le=1)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = None
    stop: Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = []
    logit_bias: dict[Annotated[int, Field(strict=False)], float] = {}
    schedule: str = None
    prompt: str
    protect: Literal["none"] = "none"

    def encode(self, tokenizer: Any, protects: bool) -> tuple[list[int], dict[str, Any]]:
        return tokenizer(self.prompt)["input_ids"], {}


class _ChatRequest(_TextRequest):
    prompt: None = None
    messages: list[_Message]
    tools: list[chat.ChatCompletionFunctionToolParam] = None
    tool_choice: Literal["auto", "none"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}
    protect: Literal["template", "none"] = None  # type: ignore[assignment]
    logprobs: Literal[False] = False

    def encode(self, tokenizer: Any, protects: bool) -> tuple[list[int], dict[str, Any]]:
        """Return the ids of the templated messages, and the arguments of `generate` that protect the template."""
        tools = self.tools if self.tool_choice == "auto" else None
        kwargs = {"add_generation_prompt": True, "tools": tools, **self.chat_template_kwargs}
        turns = [message.model_dump(exclude_none=True) for message in self.messages]
        try:
            for turn in turns:  # templates read text and mappings
                content = turn.get("content", "") if "tool_calls" in turn else turn["content"]
                turn["content"] = content if isinstance(content, str) else " ".join(part["text"] for part in content)
                for call in turn.get("tool_calls", []):
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            ids = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False, return_tensors=None, **kwargs)
            protects = protects if self.protect is None else self.protect == "template"
            return ids, {"protect": lazyllm.template_tokens(tokenizer, turns, **kwargs)} if protects else {}
        except Exception as error:  # templates raise errors of any kind
            raise ValueError(f"these messages cannot be put into the chat template: {error!r}") from error


class _Answer(AsyncTextIteratorStreamer):
    """A stopping criterion of `generate` that streams the answer's text up to its stop string."""

    def __init__(self, request: _TextRequest, model: Any, tokenizer: Any, protects: bool) -> None:
        super().__init__(tokenizer)
        self.prompt, self.settings = request.encode(tokenizer, protects)
        own, n_prompt = model.generation_config, len(self.prompt)
        room = (getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**63) - n_prompt
        if n_prompt == 0 or room < (request.max_tokens or 1):
            raise ValueError(f"a prompt of {n_prompt} tokens leaves {room} of the model's positions to the answer")
        self.limit = request.max_tokens or min(own.max_new_tokens or 1024, room)
        self.settings |= {"max_new_tokens": self.limit, "num_return_sequences": 1, "cache_implementation": "dynamic"}
        self.settings |= {"use_cache": True, "prompt_lookup_num_tokens": None, "assistant_early_exit": None}
        self.settings |= request.model_dump(include={"temperature", "top_p", "schedule"}, exclude_unset=True)
        if request.model_fields_set & {"temperature", "top_p"}:
            self.settings["do_sample"] = request.temperature != 0
        if request.logit_bias:
            self.settings["sequence_bias"] = {(token,): bias for token, bias in request.logit_bias.items()}
        self.stop, added, eos = list(filter(None, request.stop)), tokenizer.get_added_vocab(), own.eos_token_id
        self.ends = {*(eos if isinstance(eos, list) else [eos]), *map(added.get, self.stop)}  # the text lacks these
        self.text, self.n_sent, self.n_tokens, self.ended, self.cancelled = "", 0, 0, False, False

    def generate(self, model: Any, seed: int | None) -> None:
        """Generate on the worker's thread, where no other answer draws random numbers."""
        _ = torch.seed() if seed is None else torch.manual_seed(seed)
        ids = torch.tensor([self.prompt], device=model.device)
        inputs = {"attention_mask": torch.ones_like(ids), "tokenizer": self.tokenizer, "stopping_criteria": [self]}
        model.generate(ids, **inputs, **self.settings)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self.ended:  # on Apple's GPUs `generate` takes one step more
            ids = input_ids[0, len(self.prompt) :].tolist()
            self.n_tokens, text = len(ids), str(self.tokenizer.decode(ids, skip_special_tokens=True))
            self.text = text[: min((text.index(stop) for stop in self.stop if stop in text), default=None)]
            self.ended = self.text != text or ids[-1] in self.ends
            n_withheld = max(map(len, self.stop), default=1) - 1  # characters that may begin a stop string
            ready = self.text[: max(0, len(self.text) - n_withheld)].rstrip("\ufffd")  # complete characters
            self.on_finalized_text(ready[self.n_sent :])
            self.n_sent = max(self.n_sent, len(ready))
        return torch.full((len(input_ids),), self.ended or self.cancelled, device=input_ids.device)


def _describe(error: Exception) -> dict[str, Any]:
    message = str(error) or repr(error)
    if isinstance(error, ValidationError):
        message = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()][-1]
    return {"error": {"message": message, "type": type(error).__name__, "param": None, "code": None}}


def application(name: str, model: Any, tokenizer: Any, protects: bool = True) -> FastAPI:
    """Return an app that serves one model by its name; run it inside a `with` of `lazyllm.enable`.

    Besides OpenAI's fields it takes `schedule`, where "" prunes nothing, and for chats `chat_template_kwargs` and
    `protect`: "template", see `lazyllm.template_tokens`, or "none". `protects` sets its default.
    """
    app, worker = FastAPI(title="LazyLLM"), ThreadPoolExecutor(1)

    async def respond(http: Request, tasks: BackgroundTasks) -> Any:
        chats = http.url.path == "/v1/chat/completions"
        fields = TypeAdapter(dict[str, Any]).validate_json(await http.body())
        given = {key: fields[key] for key in fields.keys() - _IGNORED if fields[key] not in (None, _NEUTRAL.get(key))}
        request = (_ChatRequest if chats else _TextRequest).model_validate(given)
        if request.model != name:
            raise ValueError(f"this server has the model {name!r} alone, not {request.model!r}")
        answer = _Answer(request, model, tokenizer, protects)
        job = worker.submit(answer.generate, model, request.seed)
        job.add_done_callback(lambda _: answer.end())
        head = {"id": f"cmpl-{time.time_ns()}", "created": int(time.time()), "model": name}
        head["object"] = "chat.completion" + ".chunk" * request.stream if chats else "text_completion"

        def reply(text: str, ended: bool = False, **role: str) -> dict[str, Any]:
            content = {"delta" if request.stream else "message": {"content": text, **role}} if chats else {"text": text}
            reason = "stop" if answer.ended or answer.n_tokens < answer.limit else "length"
            choice = {"index": 0, **content, "finish_reason": reason if ended else None}
            n_prompt, n_new = len(answer.prompt), answer.n_tokens
            usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
            return {**head, "choices": [choice], "usage": usage if ended else None}

        async def events(first: str) -> Any:
            try:
                yield f"data: {json.dumps(reply(first, role='assistant'))}\n\n"
                async for text in answer:
                    yield f"data: {json.dumps(reply(text))}\n\n"
                job.result()
                yield f"data: {json.dumps(reply(answer.text[answer.n_sent :], ended=True))}\n\ndata: [DONE]\n\n"
            except Exception as error:
                yield f"data: {json.dumps(_describe(error))}\n\n"

        if request.stream:
            first = await anext(answer)
            if job.done():  # before the response begins, since `generate` may refuse
                job.result()
            tasks.add_task(setattr, answer, "cancelled", True)  # runs also when the client disconnects
            return StreamingResponse(events(first), media_type="text/event-stream")
        async for _ in answer:
            answer.cancelled = await http.is_disconnected()
        job.result()
        return reply(answer.text, ended=True, role="assistant")

    app.add_exception_handler(ValueError, lambda _, error: JSONResponse(_describe(error), status_code=400))
    app.add_exception_handler(Exception, lambda _, error: JSONResponse(_describe(error), status_code=500))
    app.post("/v1/chat/completions")(respond)
    app.post("/v1/completions")(respond)
    app.get("/health")(lambda: {"status": "ok"})
    app.get("/v1/models")(lambda: {"object": "list", "data": [{"id": name, "object": "model"}]})
    return app


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; exit with code 2 and one line if the server cannot start."""
    parser = argparse.ArgumentParser(prog="python -m lazyllm.extras.serve", description=__doc__.partition(":")[0])
    parser.add_argument("model", type=Path, help="hub id, folder or .gguf file")
    parser.add_argument("--schedule", default="23%:0.6,50%:0.6", help="layers and fractions to keep: %(default)s")
    parser.add_argument("--ranking", choices=("eq1", "plus"), default="eq1", help="the paper's Eq. 1 or lazyllm.plus()")
    parser.add_argument("--min-tokens", type=int, default=500, help="shorter prompts are not pruned: %(default)s")
    parser.add_argument("--protect", choices=("template", "none"), default="template", help="what to keep: %(default)s")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    path, name = options.model, str(options.model)
    where, weights = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})
    ranking = lazyllm.plus() if options.ranking == "plus" else lazyllm.AttentionRanking()
    try:
        socket.create_server((options.host, options.port)).close()  # fail before the model is loaded
        model = AutoModelForCausalLM.from_pretrained(where, device_map="auto", **weights).eval()
        tokenizer = AutoTokenizer.from_pretrained(where, **weights)
        with lazyllm.enable(model, options.schedule, ranking=ranking, min_tokens=options.min_tokens) as lazy:
            print(f"{name}: {lazy.schedule}", flush=True)
            app = application(name, model, tokenizer, protects=options.protect == "template")
            uvicorn.run(app, host=options.host, port=options.port)
    except Exception as error:  # damaged files raise errors of many kinds
        parser.exit(2, f"lazyllm: {(str(error).strip() or repr(error)).splitlines()[0]}\n")


if __name__ == "__main__":
    main()
