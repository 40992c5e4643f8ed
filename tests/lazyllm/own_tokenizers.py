"""Tokenizers made here."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast


def by_bytes() -> PreTrainedTokenizerFast:
    """A tokenizer of one token a byte, as GPT-2's alphabet writes them."""
    alphabet = {sign: index for index, sign in enumerate(sorted(ByteLevel.alphabet()))}
    core = Tokenizer(BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def by_words(words: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2's: a space is part of the word behind it, and what is no word is its bytes."""
    pieces = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(WordLevel({piece: index for index, piece in enumerate(pieces)}))
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(strip)
    return PreTrainedTokenizerFast(tokenizer_object=core)
