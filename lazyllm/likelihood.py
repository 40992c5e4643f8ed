"""How likely a model takes given texts to be, as it would generate them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.errors import LazyLLMError
from lazyllm.row_by_row import check_adapters

Ids = torch.Tensor | Sequence[int]


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
    prompt, texts = _ids("ids", ids), [_ids("a continuation", text) for text in continuations]
    if model.training:
        raise LazyLLMError("the model is in training mode: call model.eval() before asking for log-likelihoods")
    check_adapters(model)
    largest = model.config.get_text_config().vocab_size - 1
    if any(int(text.min()) < 0 or int(text.max()) > largest for text in (prompt, *texts)):
        raise LazyLLMError(f"there are ids that are not in the model's vocabulary, 0 to {largest}")
    with torch.no_grad():
        begun = _step(model, prompt, None)
        cache = getattr(begun, "past_key_values", None)
        if cache is None:
            raise LazyLLMError(
                f"{type(model).__name__} gives no cache of keys and values to go on with: use another model"
            )
        found = []
        for place, text in enumerate(texts):
            # Another one goes on with what this one would write to.
            shared = text.numel() > 1 and place < len(texts) - 1
            found.append(_follow(model, begun.logits, text, copy.deepcopy(cache) if shared else cache))
        return found


def _ids(name: str, given: Any) -> torch.Tensor:
    """Token ids, int64 (1, n), on the CPU."""
    try:
        ids = given if isinstance(given, torch.Tensor) else torch.tensor(list(given))
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0, 0, 0)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or len(ids) != 1 or (ids.numel() and ids.dtype != torch.int64):
        raise LazyLLMError(
            f"{name} must be token ids of one text, a list such as [5, 6] or int64 of shape (n,) or (1, n), not "
            f"{type(given).__name__} {str(given)[:40]!r}"
        )
    if not ids.numel():
        raise LazyLLMError(f"{name} must hold a token, as a text without a prompt begins with BOS")
    return ids.cpu()


def _step(model: PreTrainedModel, ids: torch.Tensor, cache: Any) -> Any:
    # Where weights are offloaded, hooks move the ids to where they are needed.
    ids = ids if model.device.type == "meta" else ids.to(model.device)
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
