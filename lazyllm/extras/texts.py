"""What is asked of a model about a given text: which tokens of a prompt to keep, and how likely an answer is."""

import copy
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.importance import exact
from lazyllm.core.ranking import Selection
from lazyllm.core.schedule import PruningSchedule
from lazyllm.hf.attention_interface import CURRENT
from lazyllm.hf.refusals import refusal, refuse_if
from lazyllm.hf.session import enable

Ids = torch.Tensor | Sequence[int]


@dataclass(frozen=True, eq=False)
class Selected:
    """The tokens of a prompt that all stages of a schedule left.

    Attributes:
        ids: the shortened prompt: their ids, in order, int64 (k,), on the CPU.
        positions: where in the prompt they stand, rising, int64 (k,), on the CPU.
        prompt_computed: what it cost: the mean over the model's layers of the share of the prompt that was computed
            there, 0 to 1. Layers behind the last stage compute nothing.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    prompt_computed: float


def select(
    model: PreTrainedModel,
    ids: Ids,
    keep: float | PruningSchedule | str | Iterable[tuple[int, float]],
    *,
    selection: Selection | None = None,
) -> Selected:
    """The tokens of a prompt that go on behind the last stage of a schedule, as they would in prefilling.

    What is left is an ordinary, shorter prompt for any engine whose model has the same tokenizer. The model runs up to
    the last stage and no further; nothing is generated. With one stage this is the way of GemFilter (Shi et al. 2024,
    arXiv 2409.17422), ranked by LazyLLM's importance. The newest token is always among them;
    `Importance(first=4, last=32)` keeps the ends of a prompt whole, such as those of a chat template.

    Args:
        model: a model that `enable` takes, in eval mode; one without a language-modelling head, too.
        ids: the prompt, int64 (n,) or (1, n), or a list of ids.
        keep: the fraction of the prompt to keep, ranked once half of the layers have run: 0.3 is "50%:0.3". Or where
            tokens are pruned and how many stay, as in `enable`. Where nothing is pruned, all of the prompt is left, and
            nothing is computed.
        selection: what ranks the tokens, as in `enable`.

    Raises:
        LazyLLMError: not such ids, a model in training mode, or what `enable` refuses.
    """
    schedule = f"50%:{keep}" if isinstance(keep, float | int) else keep
    lazy = enable(model, schedule, selection=selection, newest_only=True)
    prompt = _text_ids(model, "ids", ids)
    if not lazy.schedule.pruning:
        return Selected(prompt[0].cpu(), torch.arange(prompt.shape[1]), 0.0)
    behind = lazy.layers[lazy.schedule.pruning[-1].layer + 1]
    # The layer itself begins with the stage.
    hooks = [part.register_forward_pre_hook(_stop) for part in behind.children()]
    try:
        with torch.no_grad(), lazy:
            model(prompt, use_cache=True)
    except _LastStage as stage:
        positions, computed = stage.args
    finally:
        for hook in hooks:
            hook.remove()
    return Selected(prompt[0].cpu()[positions], positions, computed)


class _LastStage(Exception):
    """Nothing behind the last stage is needed; with the positions that it let go on, and the share of the prompt."""


def _stop(*args: Any) -> None:
    generation = CURRENT.get()
    layers = generation.group_of
    computed = sum(group.n_active[0] for group in layers[: generation.layer])
    raise _LastStage(generation.group.active[0].cpu(), computed / (len(layers) * generation.longest))


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihood of a continuation of a prompt.

    Attributes:
        tokens: log-probability of each of its tokens, float32 (n,), of a float64 model float64, on the CPU.
        total: log-probability of the whole continuation.
        greedy: whether it is what greedy generation answers: each token has the largest logit of all.
    """

    tokens: torch.Tensor
    total: float
    greedy: bool


def log_likelihoods(model: PreTrainedModel, ids: Ids, continuations: Iterable[Ids]) -> list[LogLikelihood]:
    """Log-likelihood of each of several continuations of one prompt, as in multiple choice.

    It is that of a generation which is made to answer with the continuation: one pass over the prompt, for all of them,
    then one for each token but the last. So inside `with lazyllm.enable(model, ...)` prompt and continuation are pruned
    as they would be, and outside it is the unmodified model's. Stats are those with the last continuation.

    Args:
        model: a causal language model in eval mode.
        ids: the prompt, int64 (n,) or (1, n), or a list of ids; for a text without a prompt, the BOS token.
        continuations: of each the tokens, in the same form.

    Raises:
        LazyLLMError: not such ids, no token at all, a model in training mode, or one without a cache.
    """
    prompt, texts = _text_ids(model, "ids", ids), [_text_ids(model, "a continuation", text) for text in continuations]
    # PEFT's wrapper hands on what its own `forward` does not name.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # Encoders as decoders count by themselves, RoBERTa from another number than 0.
    takes_positions = "position_ids" in inspect.signature(base.forward).parameters
    takes_positions &= not getattr(base.config, "is_decoder", False)

    def step(tokens: torch.Tensor, cache: Any, start: int) -> Any:
        """Run tokens from position `start` on; Bamba would count each pass from 0."""
        end = start + tokens.shape[1]
        given = {"position_ids": torch.arange(start, end, device=tokens.device)[None]} if takes_positions else {}
        return model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True, **given)

    found = []
    with torch.no_grad():
        begun = step(prompt, None, 0)
        if getattr(begun, "past_key_values", None) is None:
            raise LazyLLMError(f"{type(model).__name__} gives no cache of keys and values: use another model")
        for index, text in enumerate(texts):
            # Another one goes on with what this one would write to.
            shared = text.numel() > 1 and index < len(texts) - 1
            cache = copy.deepcopy(begun.past_key_values) if shared else begun.past_key_values
            tokens, greedy = [], []
            for place, token in enumerate(text[0].tolist()):
                last = text[:, place - 1 : place], cache, prompt.shape[1] + place - 1
                row = (step(*last) if place else begun).logits[0, -1]
                tokens.append(row.to(exact(row.dtype)).log_softmax(dim=-1)[token])
                greedy.append(row.float().argmax() == token)  # in the dtype that `generate` chooses in
            each = torch.stack(tokens).cpu()
            found.append(LogLikelihood(each, float(each.double().sum()), bool(torch.stack(greedy).all())))
            del cache  # before the next is copied
    return found


def template_tokens(tokenizer: Any, messages: Sequence[dict[str, Any]], **template: Any) -> torch.Tensor:
    """Which tokens of a templated conversation are not what users, assistants and tools said, bool (tokens,).

    These are the system prompt, the definitions and calls of tools, and the chat template's own tokens: what `protect`
    is to be given where pruning must leave instructions whole.

    Args:
        tokenizer: the model's, one that gives offsets into the text, with a chat template.
        messages: the conversation, `role` and `content` of each message, as `apply_chat_template` takes it.
        template: what else `apply_chat_template` is given, such as `tools`; the answer's beginning is asked for.

    Raises:
        LazyLLMError: a message that is not a dict with a role, or a tokenizer without offsets.
    """
    messages = list(messages) if isinstance(messages, Iterable) else [messages]
    for message in messages:
        has_role = isinstance(message, dict) and isinstance(message.get("role"), str)
        refuse_if(not has_role, "message", given=repr(message)[:80])
    template = {"add_generation_prompt": True, **template, "tokenize": False}
    text = tokenizer.apply_chat_template(messages, **template)
    # Of private use, which JSON leaves as it is.
    mark = next(mark for mark in map(chr, range(0xF0000, 0x110000)) if mark not in text)
    said: list[str] = []

    def marked(content: Any) -> Any:
        """The content of a message with marks in place of its texts, which cut the template's own into pieces."""
        if isinstance(content, list):
            return [
                {**part, "text": marked(part["text"])} if isinstance(part, dict) and "text" in part else marked(part)
                for part in content
            ]
        if not isinstance(content, str) or not content.strip():
            return content
        said.append(content.strip())
        return f"{mark}{len(said) - 1}{mark}"

    others = [
        one
        if one["role"] in ("system", "developer")
        else {key: marked(of) if key in ("content", "reasoning_content") else of for key, of in one.items()}
        for one in messages
    ]
    # A template may leave out contents, or change their order: the marks have numbers.
    pieces = re.split(f"{mark}(\\d+){mark}", tokenizer.apply_chat_template(others, **template))
    try:
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    except (KeyError, NotImplementedError, ValueError):  # by kind of tokenizer
        raise refusal("no_offsets", name=type(tokenizer).__name__) from None
    starts, ends = torch.tensor(offsets).unbind(dim=1)
    own, end = torch.ones(len(starts), dtype=torch.bool), 0
    for piece, number, following in zip(pieces[::2], pieces[1::2], pieces[2::2], strict=False):
        start = max(end, text.find(piece, end)) + len(piece)
        start += len(text[start:]) - len(text[start:].lstrip())
        forms = said[int(number)], json.dumps(said[int(number)], ensure_ascii=False)[1:-1]
        found = [start + len(form) for form in forms if text.startswith(form, start)]
        # What a template changes, as by leaving out the reasoning in it, ends where its own text goes on.
        end = max(found) if found else max(start, text.find(following, start))
        own &= ~((starts >= start) & (ends <= end))
    return own


def _text_ids(model: PreTrainedModel, name: str, given: Any) -> torch.Tensor:
    """Token ids, int64 (1, n), where the model takes them; `LazyLLMError` where `given` are not those of one text."""
    refuse_if(model.training, "training")
    adapter = getattr(model, "active_peft_config", None)
    refuse_if(getattr(adapter, "is_prompt_learning", False), "virtual_tokens", owner=model)
    try:
        ids = given if isinstance(given, torch.Tensor) else torch.tensor(list(given))
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0, 0, 0)
    ids = ids[None] if ids.ndim == 1 else ids
    of_one = ids.ndim == 2 and len(ids) == 1 and ids.numel() and ids.dtype == torch.int64
    refuse_if(not of_one, "text_ids", name=name, given=str(given)[:40])
    largest = model.config.get_text_config().vocab_size - 1
    refuse_if(not 0 <= int(ids.min()) <= int(ids.max()) <= largest, "unknown_ids", name=name, largest=largest)
    # Where weights are offloaded, hooks move them to where they are needed.
    return ids.cpu() if model.device.type == "meta" else ids.to(model.device)
