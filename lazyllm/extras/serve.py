"""LazyLLM on an OpenAI-compatible port, one answer at a time: `python -m lazyllm.extras.serve MODEL`."""

import argparse
import asyncio
import copy
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lazyllm

try:
    import uvicorn
    from fastapi import BackgroundTasks, FastAPI, Request
    from fastapi.responses import JSONResponse, StreamingResponse
    from pydantic import ValidationError
    from pydantic_core import from_json, to_json

    from lazyllm.extras.openai_requests import ChatBody, TextBody, clean
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(f'lazyllm: {error}: pip install "fastapi>=0.115" "uvicorn>=0.30" "openai>=2"', file=sys.stderr)
    sys.exit(2)


class Answer:
    """Generate one answer: its `text` up to a stop string, and what of it is `ready` to be sent.

    It is a stopping criterion of `generate`, which may give a streamer a token only after it decided to go on.
    """

    def __init__(self, request: TextBody | ChatBody, model: Any, tokenizer: Any, protects: bool) -> None:
        self.tokenizer, self.seed, self.config = tokenizer, request.seed, copy.deepcopy(model.generation_config)
        self.prompt, self.own = request.encode(tokenizer, protects)
        self.own |= request.model_dump(include={"schedule"}, exclude_unset=True)
        text_config, n_prompt = model.config.get_text_config(), len(self.prompt)
        limits = [limit for limit in (request.max_tokens, request.max_completion_tokens) if limit]
        room = (getattr(text_config, "max_position_embeddings", None) or 2**63) - n_prompt
        if n_prompt == 0 or room < min(limits, default=1):
            raise ValueError(f"a prompt of {n_prompt} tokens leaves {room} of the model's positions to the answer")
        if not all(0 <= token < text_config.vocab_size for token in (*self.prompt, *map(int, request.logit_bias))):
            raise ValueError(f"token ids must be from 0 to {text_config.vocab_size - 1}")
        self.limit = min(limits, default=min(max(1024, self.config.max_new_tokens or 0), room))
        settings = {"max_new_tokens": self.limit, "num_return_sequences": 1}
        settings |= {"use_cache": True, "cache_implementation": "dynamic"}  # no answer depends on them
        sampling = request.model_dump(include={"temperature", "top_p"}, exclude_unset=True)
        if sampling:
            settings |= {"do_sample": False} if request.temperature == 0 else {"do_sample": True, **sampling}
        if request.logit_bias:
            settings["sequence_bias"] = {(int(token),): bias for token, bias in request.logit_bias.items()}
        self.config.update(**settings)
        self.stop = [text for text in ([request.stop] if isinstance(request.stop, str) else request.stop) if text]
        added, ends = tokenizer.get_added_vocab(), self.config.eos_token_id  # special tokens do not show in the text
        self.ends = {*(ends if isinstance(ends, list) else [ends]), *map(added.get, self.stop)}
        self.ids: list[int] = []
        self.job: Future[None] = None
        self.text, self.ready, self.ended, self.cancelled = "", "", False, False
        self.news, loop = asyncio.Event(), asyncio.get_running_loop()
        self.tell = lambda *_: loop.call_soon_threadsafe(self.news.set)

    def generate(self, model: Any) -> None:
        """Generate on the worker's thread, where no other answer draws random numbers."""
        _ = torch.seed() if self.seed is None else torch.manual_seed(self.seed)
        ids = torch.tensor([self.prompt], device=None if model.device.type == "meta" else model.device)
        self.own |= {"attention_mask": torch.ones_like(ids), "tokenizer": self.tokenizer}
        model.generate(ids, generation_config=self.config, stopping_criteria=[self], **self.own)
        self.ready = self.text

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self.ended:  # on Apple's GPUs `generate` takes one step more
            self.ids = input_ids[0, len(self.prompt) :].tolist()
            self.text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
            starts = [start for stop in self.stop if (start := self.text.find(stop)) >= 0]
            self.text = self.text[: min(starts, default=None)]
            self.ended = bool(starts) or self.ids[-1] in self.ends
            whole = self.text.rstrip("\ufffd")  # without a character whose other tokens are to come
            partial = (n for stop in self.stop for n in range(1, len(stop)) if whole.endswith(stop[:n]))
            self.ready = whole[: len(whole) - max(partial, default=0)]
            self.tell()
        return torch.full((len(input_ids),), self.ended or self.cancelled, device=input_ids.device)

    async def pieces(self) -> Any:
        """Yield new text as it comes, and raise what `generate` raises."""
        done, n_sent = False, 0
        while not done:
            await self.news.wait()
            self.news.clear()
            done = self.job.done() and self.job.result() is None
            ready = self.ready  # which the worker's thread replaces
            yield ready[n_sent:]
            n_sent = max(n_sent, len(ready))


def _describe(error: Exception) -> dict[str, Any]:
    """Return an error as OpenAI's API does."""
    message, kind = str(error) or repr(error), "invalid_request" if isinstance(error, ValueError) else "server"
    if isinstance(error, ValidationError):
        detail = error.errors()[-1]  # of several types, the last one's
        field = ".".join(str(key) for key in detail["loc"] if "[" not in str(key))
        unknown = detail["type"] == "extra_forbidden"
        message = f"{field}: {'this server does not support it, leave it out' if unknown else detail['msg']}"
    return {"error": {"message": message, "type": f"{kind}_error", "param": None, "code": None}}


def application(name: str, model: Any, tokenizer: Any, protects: bool = True) -> FastAPI:
    """Return an app that serves one model by its name; run it inside a `with` of `lazyllm.enable`.

    It answers as OpenAI's API does, one request at a time, and refuses what it cannot do with status 400 and a reason.
    Besides OpenAI's fields it takes `schedule`, where "" prunes nothing, and for chats `chat_template_kwargs` and
    `protect`: "template", see `lazyllm.template_tokens`, or "none". `protects` sets its default.
    """
    app, worker = FastAPI(title="LazyLLM"), ThreadPoolExecutor(1)

    async def respond(http: Request, tasks: BackgroundTasks) -> Any:
        chat = http.url.path == "/v1/chat/completions"
        request = (ChatBody if chat else TextBody).model_validate(clean(from_json(await http.body())))
        if request.model != name:
            raise ValueError(f"this server has the model {name!r} alone, not {request.model!r}")
        answer = Answer(request, model, tokenizer, protects)
        answer.job = worker.submit(answer.generate, model)
        answer.job.add_done_callback(answer.tell)
        pieces, line = answer.pieces(), lambda event: b"data: %s\n\n" % to_json(event)
        head = {"id": f"cmpl-{time.time_ns()}", "created": int(time.time()), "model": name}
        head["object"] = "chat.completion" + ".chunk" * request.stream if chat else "text_completion"

        def choice(text: str, last: bool = False, **role: str) -> dict[str, Any]:
            reason = ("stop" if answer.ended or len(answer.ids) < answer.limit else "length") if last else None
            content = {"delta" if request.stream else "message": {"content": text, **role}} if chat else {"text": text}
            return {**head, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}]}

        def usage() -> dict[str, int]:
            n_prompt, n_new = len(answer.prompt), len(answer.ids)
            return {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}

        async def events() -> Any:
            yield line(choice(first, role="assistant"))
            try:
                async for text in pieces:
                    if text:
                        yield line(choice(text))
                yield line(choice("", last=True))
                if request.stream_options.get("include_usage"):
                    yield line({**head, "choices": [], "usage": usage()})
                yield b"data: [DONE]\n\n"
            except Exception as error:
                yield line(_describe(error))

        if request.stream:
            first = await anext(pieces)  # before the stream begins, since `generate` may refuse
            tasks.add_task(setattr, answer, "cancelled", True)  # which also runs when the client has gone
            return StreamingResponse(events(), media_type="text/event-stream")
        async for _ in pieces:
            answer.cancelled = await http.is_disconnected()
        return {**choice(answer.text, last=True, role="assistant"), "usage": usage()}

    app.add_exception_handler(ValueError, lambda _, error: JSONResponse(_describe(error), status_code=400))
    app.add_exception_handler(Exception, lambda _, error: JSONResponse(_describe(error), status_code=500))
    app.post("/v1/chat/completions")(respond)
    app.post("/v1/completions")(respond)
    app.get("/health")(lambda: {"status": "ok"})
    card = {"id": name, "object": "model", "created": 0, "owned_by": "local"}
    app.get("/v1/models")(lambda: {"object": "list", "data": [card]})
    return app


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; where that cannot begin, say why in one line and return 2."""
    parser = argparse.ArgumentParser(prog="python -m lazyllm.extras.serve", description=__doc__.partition(":")[0])
    add = parser.add_argument
    add("model", help="hub id, folder or .gguf file")
    add("--schedule", default="23%:0.6,50%:0.6", help="where tokens are pruned and how many are kept: %(default)s")
    add("--ranking", choices=("eq1", "plus"), default="eq1", help="the paper's Eq. 1, or lazyllm.plus()")
    add("--min-tokens", type=int, default=500, help="shorter prompts are not pruned: %(default)s")
    add("--protect", choices=("template", "none"), default="template", help="what of a chat is kept: %(default)s")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    asked = parser.parse_args(arguments)
    path = Path(asked.model)
    where, weights = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (asked.model, {})
    try:
        socket.create_server((asked.host, asked.port)).close()  # now, and not after minutes of loading
        model = AutoModelForCausalLM.from_pretrained(where, device_map="auto", **weights).eval()
        tokenizer = AutoTokenizer.from_pretrained(where, **weights)
        ranking = lazyllm.plus() if asked.ranking == "plus" else lazyllm.Importance()
        with lazyllm.enable(model, asked.schedule, selection=ranking, min_tokens=asked.min_tokens) as lazy:
            print(f"{asked.model}: {lazy.schedule}", flush=True)
            app = application(asked.model, model, tokenizer, protects=asked.protect == "template")
            uvicorn.run(app, host=asked.host, port=asked.port)
    except Exception as error:  # damaged files raise errors of many kinds
        print(f"lazyllm: {(str(error).strip() or repr(error)).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
