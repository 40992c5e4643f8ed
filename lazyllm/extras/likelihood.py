"""How likely a model takes given texts to be, as it would generate them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError
from lazyllm.extras.token_ids import Ids, check_ready, text_ids


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihood of a continuation of a prompt.

    Attributes:
        tokens: log-probability of each of its tokens, float32 (n,), of a float64 model float64, on the CPU.
        greedy: whether it is what greedy generation answers: each token has the largest logit of all.
    """

    tokens: torch.Tensor
    greedy: bool

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return float(self.tokens.double().sum())


def log_likelihood(model: PreTrainedModel, ids: Ids, continuation: Ids) -> LogLikelihood:
    """Log-likelihood of one continuation of a prompt; see `log_likelihoods`."""
    return log_likelihoods(model, ids, [continuation])[0]


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
    if not isinstance(continuations, Iterable):
        raise LazyLLMError(f"the continuations must be a list of texts, each a list of ids, not {continuations!r}")
    prompt, texts = text_ids(model, "ids", ids), [text_ids(model, "a continuation", text) for text in continuations]
    check_ready(model, "asking for log-likelihoods")
    with torch.no_grad():
        begun = _step(model, prompt, None)
        cache = getattr(begun, "past_key_values", None)
        if cache is None:
            raise LazyLLMError(f"{type(model).__name__} gives no cache of keys and values: use another model")
        found = []
        for place, text in enumerate(texts):
            # Another one goes on with what this one would write to.
            shared = text.numel() > 1 and place < len(texts) - 1
            found.append(_follow(model, begun.logits, text, copy.deepcopy(cache) if shared else cache))
        return found


def _step(model: PreTrainedModel, ids: torch.Tensor, cache: Any) -> Any:
    return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True)


def _follow(model: PreTrainedModel, logits: torch.Tensor, text: torch.Tensor, cache: Any) -> LogLikelihood:
    """The log-likelihood of a text after a prompt, which left this cache and gave `logits`, (1, 1, vocabulary)."""
    tokens, greedy = [], []
    for place, token in enumerate(text[0].tolist()):
        if place:
            logits = _step(model, text[:, place - 1 : place], cache).logits
        row = logits[0, -1]
        exact = torch.float64 if row.dtype == torch.float64 else torch.float32
        tokens.append(row.to(exact).log_softmax(dim=-1)[token])
        greedy.append(row.float().argmax() == token)  # in the dtype that `generate` chooses in
    return LogLikelihood(torch.stack(tokens).cpu(), bool(torch.stack(greedy).all()))
