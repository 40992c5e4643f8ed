"""What a request to the server may ask for: OpenAI's fields as far as they are followed, and LazyLLM's own."""

from typing import Annotated, Any, Literal

from openai.types import chat
from pydantic import BaseModel, Field, PositiveInt
from pydantic_core import from_json

import lazyllm

# Fields that change no answer, and values that ask for what is done anyway.
_HARMLESS = {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"}
_NEUTRAL = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "modalities": ["text"], "top_logprobs": 0}
_NEUTRAL |= {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True}
_NEUTRAL |= {"frequency_penalty": 0, "presence_penalty": 0}


def clean(value: Any, name: str = "") -> Any:
    """Drop what asks for nothing, nulls too, but not from JSON schemas and variables of the chat template."""
    if isinstance(value, dict) and name not in ("tools", "chat_template_kwargs"):
        asked = [key for key in value if key not in _HARMLESS and value[key] not in (None, [], _NEUTRAL.get(key))]
        return {key: clean(value[key], key) for key in asked}
    return [clean(item, name) for item in value] if isinstance(value, list) else value


class Body(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    """The fields of every request."""

    model: str
    stream: bool = False
    stream_options: chat.ChatCompletionStreamOptionsParam = {}
    max_tokens: PositiveInt = None
    max_completion_tokens: PositiveInt = None
    temperature: Annotated[float, Field(ge=0, le=0)] | Annotated[float, Field(ge=1e-6, le=2)] = None
    top_p: Annotated[float, Field(ge=0, le=1)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = None
    stop: str | Annotated[list[str], Field(max_length=4)] = []
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] = {}
    schedule: str = None


class TextBody(Body):
    """A request to `/v1/completions`."""

    prompt: str | list[int] | Annotated[list[str | list[int]], Field(max_length=1)]
    protect: Literal["none"] = "none"

    def encode(self, tokenizer: Any, protects: bool) -> tuple[list[int], dict[str, Any]]:
        """Return the prompt's ids, and no arguments of `generate`."""
        prompt = self.prompt if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else self.prompt[0]
        return tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt, {}


class _Message(BaseModel, extra="forbid", strict=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[chat.ChatCompletionContentPartTextParam] = None
    reasoning_content: str = None
    name: str = None
    tool_calls: list[chat.ChatCompletionMessageFunctionToolCallParam] = None
    tool_call_id: str = None


class ChatBody(Body):
    """A request to `/v1/chat/completions`."""

    messages: list[_Message]
    tools: list[chat.ChatCompletionFunctionToolParam] = None
    chat_template_kwargs: dict[str, Any] = {}
    protect: Literal["template", "none"] = None
    logprobs: Literal[False] = False

    def encode(self, tokenizer: Any, protects: bool) -> tuple[list[int], dict[str, Any]]:
        """Return the ids of the templated conversation, and the arguments of `generate` that protect the template."""
        template = {"add_generation_prompt": True, **self.chat_template_kwargs}
        fixed = {"tokenize": True, "return_dict": False, "padding": False, "truncation": False}
        fixed |= {"return_tensors": None, "chat_template": None}  # twice is an error
        messages = [message.model_dump(exclude_unset=True) for message in self.messages]
        try:
            for message in messages:
                content = message.get("content", "") if message["role"] == "assistant" else message["content"]
                message["content"] = content if isinstance(content, str) else " ".join(part["text"] for part in content)
                for call in message.get("tool_calls", []):  # templates read a mapping
                    call["function"]["arguments"] = from_json(call["function"]["arguments"])
            ids = tokenizer.apply_chat_template(messages, tools=self.tools, **fixed, **template)
            if self.protect == "none" or not (self.protect or protects):
                return ids, {}
            return ids, {"protect": lazyllm.template_tokens(tokenizer, messages, tools=self.tools, **template)}
        except Exception as error:  # templates raise errors of any kind
            raise ValueError(f"these messages cannot be put into the chat template: {error!r}") from error
