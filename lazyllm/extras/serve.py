"""LazyLLM on an OpenAI-compatible port, through transformers' own server: `python -m lazyllm.extras.serve MODEL`."""

import argparse
import inspect
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import lazyllm
from lazyllm.hf.requests import read_schedule
from lazyllm.hf.support import windows

try:
    import openai  # noqa: F401 - transformers' server takes its types
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from fastapi.responses import JSONResponse
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(f'lazyllm: {error}: pip install "fastapi>=0.115" "uvicorn>=0.30" "openai>=2"', file=sys.stderr)
    sys.exit(2)

from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager, TimedModel
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import BaseHandler, GenerationState, Modality

_SHARED = {"model", "stream", "generation_config", "temperature", "top_p", "seed", "schedule"}
# What changes no answer, and what asks for no more than is done anyway.
_HARMLESS = {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "stream_options", "user"}
_NEUTRAL = {"n": 1, "presence_penalty": 0, "tool_choice": "auto", "parallel_tool_calls": True, "echo": False}
_NEUTRAL |= {"response_format": {"type": "text"}}
# Parts of messages, and items beside them, that are read.
_READ = {"text", "input_text", "output_text", "reasoning_text", "reasoning", "function_call", "function_call_output"}


class _Strict(BaseHandler):
    """A handler of transformers' server, which refuses what that one would leave out of account."""

    known: str  # the model's name in the server
    tokenizer: Any
    protects: bool  # whether a request that does not say has its template's tokens protected
    prompt: str  # the field that has it
    seen: list[int | None]  # how many positions each layer sees, None all
    honoured: set[str]  # fields that the answer follows

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        given = body.get(self.prompt)
        if not given:
            raise lazyllm.LazyLLMError(f"{self.prompt} is empty: there is nothing to answer")
        messages = [one for one in given if isinstance(one, dict)]
        parts = [one for one in messages if "role" not in one]
        parts += [part for one in messages if isinstance(one.get("content"), list) for part in one["content"]]
        if any(part.get("type") not in _READ for part in parts):
            raise lazyllm.LazyLLMError(f"{self.prompt} must hold text alone: this server reads no images or files")
        if messages:  # with calls, even none, transformers leaves out what is said
            given = [{key: of for key, of in one.items() if of or key != "tool_calls"} for one in messages]
        others = body.keys() - self.honoured - _HARMLESS
        ignored = sorted(name for name in others if body[name] not in (None, _NEUTRAL.get(name)))
        if ignored:
            raise lazyllm.LazyLLMError(f"this server does not support {', '.join(ignored)}: leave that out")
        # Unless told otherwise, transformers' server streams responses, and OpenAI's does not.
        return await super().handle_request({"stream": False, **body, self.prompt: given}, request_id)  # type: ignore[misc]

    def _validate_request(self, body: dict[str, Any]) -> None:
        super()._validate_request({name: value for name, value in body.items() if name not in ("schedule", "protect")})

    def _build_generation_config(self, body: dict[str, Any], *args: Any, **kwargs: Any) -> GenerationConfig:
        config = super()._build_generation_config({**body, "seed": None}, *args, **kwargs)
        if body.get("temperature") or (body.get("top_p") and body.get("temperature") is None):
            config.do_sample = True  # else a model that is greedy by default would ignore them
        own = vars(config)
        if (seed := body.get("seed")) is not None:
            # On the thread that generates, and just before this request: when it came in, others were under way.
            manager: Any = self.generation_state.get_manager(self.known)
            manager.submit(torch.manual_seed, seed)
        own["schedule"] = body.get("schedule", own.get("schedule"))
        if own["schedule"] is not None:  # refused before a stream begins
            read_schedule(own["schedule"], self.seen, lazyllm.Importance())
        if "protect" in self.honoured:
            asked = body.get("protect") or ("template" if self.protects else "none")
            if asked not in ("template", "none"):
                raise lazyllm.LazyLLMError(f"protect={asked!r} must be template or none")
            if asked == "template":
                messages, tools = self._conversation(body)
                messages = self.get_processor_inputs_from_messages(messages, Modality.LLM)
                template = {**self.chat_template_kwargs, **(body.get("chat_template_kwargs") or {})}
                own["protect"] = lazyllm.template_tokens(self.tokenizer, messages, tools=tools, **template)
        return config

    def _conversation(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        """The messages and tools that the chat template is given."""
        return body["messages"], body.get("tools")


class _Chats(_Strict, ChatCompletionHandler):
    prompt = "messages"
    honoured = _SHARED | {"messages", "max_tokens", "max_completion_tokens", "stop", "frequency_penalty", "logit_bias"}
    honoured |= {"tools", "chat_template_kwargs", "protect"}


class _Completions(_Strict, CompletionHandler):
    prompt = "prompt"
    honoured = _SHARED | {"prompt", "max_tokens", "stop", "frequency_penalty", "suffix"}


class _Responses(_Strict, ResponseHandler):
    prompt = "input"
    honoured = _SHARED | {"input", "instructions", "max_output_tokens", "tools", "protect"}

    def _conversation(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        return self._normalize_input(body), self._normalize_tools(body.get("tools"))


def application(name: str, model: Any, tokenizer: Any, protects: bool = True) -> FastAPI:
    """Serves chats, completions and responses of one loaded model, by its name; run it inside a `with` of `enable`.

    Besides OpenAI's fields a request may bring `schedule`, its own one, where "" prunes nothing, and a chat or response
    `protect`: "template", see `lazyllm.template_tokens`, or "none"; without it `protects` decides. What LazyLLM or
    `generate` refuses (a `ValueError`), or a chat template, or what cannot be read, and fields that it would ignore,
    are an HTTP error 400 with its reason. As in transformers' server, a message is its role, content and tool calls,
    one with tool calls these alone.
    """
    models: Any = ModelManager()
    state = GenerationState()
    known = models.process_model_name(name)
    models.loaded_models[known] = TimedModel(model, -1, tokenizer)
    models.force_model = name
    models.get_gen_models = lambda: [{"id": name, "object": "model", "created": 0, "owned_by": "local"}]
    handlers = dict.fromkeys(part for part in inspect.signature(build_server).parameters if part.endswith("_handler"))
    handlers["chat_handler"] = _Chats(models, state)
    handlers["completion_handler"] = _Completions(models, state)
    handlers["response_handler"] = _Responses(models, state)
    text = model.config.get_text_config()
    for handler in filter(None, handlers.values()):
        handler.seen = windows(text, text.num_hidden_layers)
        handler.known, handler.tokenizer, handler.protects = known, tokenizer, protects
    app = build_server(models, generation_state=state, **handlers)
    # The others load models, unload this one, or do what it is not made for.
    kept = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/health")
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", None) in kept]

    async def refused(request: Any, error: Exception) -> JSONResponse:
        said = getattr(error, "detail", str(error) if isinstance(error, ValueError) else f"{error!r} in the request")
        return JSONResponse({"error": {"message": said}}, status_code=getattr(error, "status_code", 400))

    # A chat template refuses a conversation by its own error; forms that transformers does not expect raise the next.
    for kind in (ValueError, jinja2.TemplateError, KeyError, TypeError, AttributeError, HTTPException):
        app.add_exception_handler(kind, refused)

    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until interrupted; what does not work is said in one line, before the port is opened, with exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m lazyllm.extras.serve", description=__doc__.partition(":")[0])
    add = parser.add_argument
    add("model", help="hub id, folder or .gguf file")
    add("--schedule", default="23%:0.6,50%:0.6", help="where tokens are pruned and how many stay: %(default)s")
    add("--ranking", choices=("eq1", "plus"), default="eq1", help="the paper's Eq. 1, or lazyllm.plus()")
    add("--min-tokens", type=int, default=500, help="shorter prompts are not pruned: %(default)s")
    add("--protect", choices=("template", "none"), default="template", help="what of a chat always stays: %(default)s")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    asked = parser.parse_args(arguments)
    try:
        socket.create_server((asked.host, asked.port)).close()  # now, and not after minutes of loading
        path = Path(asked.model)
        where, weights = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (asked.model, {})
        model = AutoModelForCausalLM.from_pretrained(where, device_map="auto", **weights).eval()
        tokenizer = AutoTokenizer.from_pretrained(where, **weights)
        ranking = lazyllm.plus() if asked.ranking == "plus" else lazyllm.Importance()
        with lazyllm.enable(model, asked.schedule, selection=ranking, min_tokens=asked.min_tokens) as lazy:
            print(f"{asked.model}: {lazy.schedule}", flush=True)
            app = application(asked.model, model, tokenizer, protects=asked.protect == "template")
            uvicorn.run(app, host=asked.host, port=asked.port)
    except (OSError, OverflowError, ValueError) as error:
        print(f"lazyllm: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
