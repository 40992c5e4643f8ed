"""Log-likelihoods of continuations of a prompt, as in multiple choice."""

import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.importance import probability_dtype
from lazyllm.hf.arguments import read_ids
from lazyllm.hf.private import CACHE


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihood of a continuation of a prompt."""

    tokens: torch.Tensor  # log-probability of each token, float32 (n,), or float64 of a float64 model, on the CPU
    total: float  # log-probability of the continuation
    greedy: bool  # whether greedy generation would produce it: each token has the largest logit


def log_likelihoods(
    model: PreTrainedModel, ids: torch.Tensor | Sequence[int], continuations: Iterable[torch.Tensor | Sequence[int]]
) -> list[LogLikelihood]:
    """Return the log-likelihood of each of several continuations of one prompt.

    The prompt is computed once for all of them, and each token of a continuation but the last takes one decoding step.
    Inside `with lazyllm.enable(model, ...)` tokens are pruned as in a generation.

    Args:
        model: a causal language model in eval mode.
        ids: the prompt, int64 (n,) or (1, n), or a list of ids; for a text without a prompt, the BOS token.
        continuations: the tokens of each, in the same form.

    Raises:
        LazyLLMError: ids of several texts or of none, or a model in training mode.
    """
    prompt, texts = read_ids(model, "ids", ids), [read_ids(model, "a continuation", text) for text in continuations]
    # PEFT's wrapper passes on the arguments that its own `forward` does not name.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # Without position_ids Bamba counts each pass from 0. RoBERTa as a decoder makes its own, which do not begin at 0.
    takes_positions = "position_ids" in inspect.signature(base.forward).parameters
    takes_positions &= not getattr(base.config, "is_decoder", False)

    def step(tokens: torch.Tensor, cache: Any, start: int) -> Any:
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
        more = {"position_ids": positions} if takes_positions else {}
        return model(tokens, **{CACHE: cache}, use_cache=True, logits_to_keep=1, return_dict=True, **more)

    likelihoods = []
    with torch.no_grad():
        prefill = step(prompt, None, 0)
        for number, text in enumerate(texts):
            # A pass writes to the cache, and the next continuation needs that of the prompt.
            is_shared = text.numel() > 1 and number < len(texts) - 1
            cache = copy.deepcopy(prefill[CACHE]) if is_shared else prefill[CACHE]
            tokens, is_greedy = [], []
            for index, token in enumerate(text[0].split(1)):
                output = step(text[:, index - 1 : index], cache, prompt.shape[1] + index - 1) if index else prefill
                logits = output.logits[0, -1]
                token = token.to(logits.device)
                # Unlike indexing, `gather` raises for ids outside of the vocabulary.
                tokens.append(logits.to(probability_dtype(logits.dtype)).log_softmax(dim=-1).gather(0, token))
                is_greedy.append(logits.float().argmax() == token)  # in the dtype that `generate` chooses in
            each = torch.cat(tokens).cpu()
            likelihoods.append(LogLikelihood(each, float(each.double().sum()), bool(torch.cat(is_greedy).all())))
            del cache  # before the next is copied
    return likelihoods
