"""Tokenises a text and tells where in it each token ends."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[int]]:
    """Token ids of `text` without special tokens, and the positions in `text` at which the tokens end.

    Tokens that make up one character together end at the same position.
    """
    if tokenizer.is_fast:
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return encoding.input_ids, [end for _, end in encoding.offset_mapping]
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids, _decoded_ends(tokenizer, ids, len(text))


def _decoded_ends(tokenizer: PreTrainedTokenizerBase, ids: list[int], length: int) -> list[int]:
    """Token ends from how much text each further id decodes to, for tokenizers that do not tell.

    Ids are decoded from the last whole character's first id on, since some tokenizers drop the space before the
    first id, and all of them need a character's last byte to show it. A tokenizer that does not give the text
    back in full shifts the ends.
    """

    def decode(start: int, stop: int) -> str:
        return tokenizer.decode(ids[start:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False)

    ends: list[int] = []
    context = done = position = 0
    for stop in range(1, len(ids) + 1):
        with_new = decode(context, stop)
        if with_new.endswith("\N{REPLACEMENT CHARACTER}") and stop < len(ids):
            continue  # part of a character
        position = min(length, position + len(with_new) - len(decode(context, done)))
        ends += [position] * (stop - done)
        context, done = done, stop
    return ends
