"""Choose which tokens of a prompt to keep: a shorter prompt for any engine, and a chat template's tokens to protect."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
from transformers import PreTrainedModel

from lazyllm.core.ranking import Ranking
from lazyllm.core.schedule import PruningSchedule
from lazyllm.hf.arguments import read_ids
from lazyllm.hf.attention_interface import CURRENT_ENGINE
from lazyllm.hf.enable import enable


@dataclass(frozen=True, eq=False)
class Selected:
    """The tokens of a prompt that all stages of a schedule keep."""

    ids: torch.Tensor  # in order: the shortened prompt, int64 (k,), on the CPU
    positions: torch.Tensor  # in the prompt, sorted, int64 (k,), on the CPU


def select(
    model: PreTrainedModel,
    ids: torch.Tensor | Sequence[int],
    keep: float | PruningSchedule | str | Iterable[tuple[int, float]],
    *,
    ranking: Ranking | None = None,
) -> Selected:
    """Select the tokens of a prompt that the last stage of a schedule keeps in prefill, and run no layer after it.

    They are an ordinary, shorter prompt for any engine whose model has the same tokenizer. With one stage this is
    GemFilter (Shi et al. 2024, arXiv 2409.17422), ranked by LazyLLM's importance.

    Args:
        model: a model that `enable` takes, in eval mode.
        ids: the prompt, int64 (n,) or (1, n), or a list of ids.
        keep: the fraction of the prompt to keep, ranked once half of the layers have run: 0.3 is "50%:0.3"; or a
            schedule, as in `enable`. If nothing is pruned, nothing is computed.
        ranking: ranks the tokens, as in `enable`.

    Raises:
        LazyLLMError: wrong ids, a model in training mode, or what `enable` refuses.
    """
    schedule = f"50%:{keep}" if isinstance(keep, float | int) else keep
    lazy = enable(model, schedule, ranking=ranking)
    prompt = read_ids(model, "ids", ids)
    if not lazy.schedule.pruning:
        return Selected(prompt[0].cpu(), torch.arange(prompt.shape[1]))
    # The stage prunes before the first module of the next layer runs.
    after = lazy.layers[lazy.schedule.pruning[-1].layer + 1]
    hooks = [module.register_forward_pre_hook(_stop) for module in after.children()]
    try:
        with torch.no_grad(), lazy:
            model(prompt, use_cache=True, logits_to_keep=1)
    except _LastStageReached as reached:
        (positions,) = reached.args
    finally:
        for hook in hooks:
            hook.remove()
    return Selected(prompt[0].cpu()[positions], positions)


class _LastStageReached(Exception):
    """Ends a pass after the last stage, with the positions that it keeps."""


def _stop(*args: Any) -> None:
    engine = CURRENT_ENGINE.get()
    raise _LastStageReached(engine.group.active_positions(0, engine.max_tokens).cpu())


def template_tokens(tokenizer: Any, messages: Iterable[dict[str, Any]], **template: Any) -> torch.Tensor:
    """Mark all tokens of a templated conversation except texts of users, assistants and tools, bool (tokens,).

    These are the system prompt, the definitions and calls of tools, and the chat template's own tokens: pass the mask
    as `protect`, so that pruning keeps all instructions. A text that the template changes is protected, too.

    Args:
        tokenizer: the model's, with a chat template and offsets into the text.
        messages: the conversation, `role` and `content` of each message, as `apply_chat_template` takes it.
        template: other arguments of `apply_chat_template`, such as `tools`; `add_generation_prompt` is True by default.
    """
    messages, mark, contents = list(messages), uuid4().hex, []

    def mark_content(content: Any) -> Any:
        """Replace the texts of a message by numbered marks, but not the white space around them."""
        if isinstance(content, list):
            return [mark_content(part) for part in content]
        if isinstance(content, dict):
            return {**content, "text": mark_content(content["text"])} if "text" in content else content
        if not isinstance(content, str) or not (stripped := content.strip()):
            return content
        contents.append(stripped)
        return content.replace(stripped, f"{mark}{len(contents) - 1}{mark}")

    marked = [
        message
        if message["role"] in ("system", "developer")
        else message | {key: mark_content(message[key]) for key in ("content", "reasoning_content") if key in message}
        for message in messages
    ]
    template = {"add_generation_prompt": True, **template, "tokenize": False}
    text = tokenizer.apply_chat_template(messages, **template)
    # The template's own texts, alternating with the numbers of contents.
    pieces = re.split(f"{mark}(\\d+){mark}", tokenizer.apply_chat_template(marked, **template))
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    starts, ends = torch.tensor(offsets).unbind(dim=1)
    protected, end = torch.ones(len(starts), dtype=torch.bool), 0
    for own, number in zip(pieces[::2], pieces[1::2], strict=False):
        if (index := text.find(own, end)) < 0:
            break  # the template has other text around contents than around marks
        start, content = index + len(own), contents[int(number)]
        forms = content, json.dumps(content, ensure_ascii=False)[1:-1]
        end = start + max((len(form) for form in forms if text.startswith(form, start)), default=0)
        protected &= ~((starts >= start) & (ends <= end))
    return protected
