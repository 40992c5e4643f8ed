"""Self-information of a text's tokens under a causal language model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.selective_context.tokens import encode
from lazybench.model.decoding import positions_of

# Tokens whose logits exist at once. The rest of a window waits, and reads the cache: long windows times large
# vocabularies would fill any memory.
_CHUNK = 1024
# Window of a model that tells no number of positions.
_ANY_WINDOW = 2048


@dataclass(frozen=True)
class ScoredTokens:
    """Tokens of a text in order.

    Attributes:
        ends: where in the text each token ends, int64 (tokens,), never falling.
        information: self-information of each token in nats, float64 (tokens,).
    """

    ends: np.ndarray
    information: np.ndarray

    def visible(self, text: str) -> ScoredTokens:
        """These tokens without those that are white space alone."""
        starts = [0, *self.ends[:-1]]
        seen = np.array([not text[start:end].isspace() for start, end in zip(starts, self.ends, strict=True)], bool)
        return ScoredTokens(self.ends[seen], self.information[seen])


@dataclass(frozen=True)
class Scorer:
    """A causal language model that tells how much it learns from each token: `-ln p`, given those before.

    Attributes:
        model: the language model.
        tokenizer: its tokenizer; its BOS, or EOS where it has none, goes before each window, so that the first
            token has a probability too.
        longest: tokens of a window at most; None means as many as the model has positions.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    longest: int | None = None

    @torch.inference_mode()
    def score(self, text: str, spans: list[tuple[int, int]]) -> ScoredTokens:
        """Score parts of `text`, at `spans`, each by itself: a forward pass, or one a window where a part is longer.

        Raises:
            LazyBenchError: the tokenizer has no token to begin with.
            RecordFailure: the model's logits are not finite.
        """
        ends: list[int] = []
        losses: list[torch.Tensor] = []
        for start, end in spans:
            ids, inside = encode(self.tokenizer, text[start:end])
            if not ids:
                continue
            # White space that a tokenizer drops at the end is the last token's: the part ends with it.
            ends += [start + position for position in inside[:-1]] + [end]
            losses += [self._losses(window) for window in torch.tensor(ids).split(self._window())]
        information = torch.cat(losses).double().cpu().numpy() if losses else np.empty(0)
        if np.isnan(information).any():
            raise RecordFailure("the scorer's logits are not finite: nothing can be told from them")
        return ScoredTokens(np.maximum.accumulate(np.array(ends, np.int64)), information)

    def _losses(self, ids: torch.Tensor) -> torch.Tensor:
        """`-ln p` of each of `ids`, int64 (tokens,), float32 (tokens,) on the model's device."""
        ids = torch.cat([torch.tensor([self._beginning()]), ids]).to(self.model.device)
        losses, cache = [], None
        for given, expected in zip(ids[:-1].split(_CHUNK), ids[1:].split(_CHUNK), strict=True):
            output = self.model(given[None], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            losses.append(functional.cross_entropy(output.logits[0].float(), expected, reduction="none"))
        return torch.cat(losses)

    def _window(self) -> int:
        holds = positions_of(self.model) or _ANY_WINDOW
        return min(holds, self.longest or holds)

    def _beginning(self) -> int:
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise LazyBenchError(
            f"the scorer {self.model.name_or_path} has neither a BOS nor an EOS token, which goes before a text: "
            "set method.scorer to another model"
        )
