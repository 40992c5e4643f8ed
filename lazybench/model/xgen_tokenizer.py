"""XGen's tokenizer: GPT-2's byte-level BPE with runs of white space and special tokens of its own."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from huggingface_hub import hf_hub_download
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lazybench.data.hub import explain_errors
from lazybench.errors import LazyBenchError

GPT2 = "openai-community/gpt2"
_END = "<|endoftext|>"
_NAMES = ("vocab.json", "encoder.json")  # of the vocabulary's file, by the hub and by OpenAI
# SHA-256 of the vocabulary as JSON with sorted keys; the ids of another one mean something else to the model.
_DIGEST = "855ec41a9d90094ebb1189ee8082e915505cf2dfe0691a4f39da9c020f9476b2"
# The bytes of a space and a tab in GPT-2's vocabulary.
_SPACE, _TAB = "Ġ", "ĉ"
# Names of the special tokens, in order; 881 masks follow.
_MARKS = """
    fim_prefix fim_middle fim_suffix fim_pad filename gh_stars issue_start issue_comment issue_closed jupyter_start
    jupyter_text jupyter_code jupyter_output empty_output commit_before commit_msg commit_after reponame
    dummy_0 dummy_1 dummy_2 dummy_3 sep eom
"""


def build(vocabulary: str = GPT2) -> PreTrainedTokenizerFast:
    """Make XGen's tokenizer, 51,200 tokens; it reads special tokens in a text as such and puts none around it.

    Args:
        vocabulary: GPT-2's vocabulary: a hub id, or a folder with its `vocab.json` or `encoder.json`.

    Raises:
        LazyBenchError: there is no such file, or it holds another vocabulary.
    """
    ids = _read(vocabulary)
    for character, longest in ((_SPACE, 31), (_TAB, 9)):
        for length in range(longest, 1, -1):
            ids[character * length] = len(ids)
    core = Tokenizer(models.BPE(vocab=ids, merges=list(_merges(ids)), ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    marks = [f"<{name}>" for name in _MARKS.split()]
    marks += [f"<mask_{number}>" for number in range(881, 0, -1)]
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (_END, *marks)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=_END,
        pad_token=_END,
        extra_special_tokens=marks,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],  # generate takes no other
    )


def _merges(ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that make a token, in the order in which BPE merges them.

    tiktoken has no list of pairs: it merges any two neighbours that make a token, lowest id first. So each way to cut a
    token in two is a pair. Of equal ids the leftmost is merged: a run of one byte grows from its left end, so the pair
    with the longer left part comes first.
    """
    for token in sorted(ids.keys() - {_END}, key=ids.__getitem__):
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in ids and token[cut:] in ids:
                yield token[:cut], token[cut:]


def _read(vocabulary: str) -> dict[str, int]:
    """Read GPT-2's ids by token, from a folder or through the hub's cache."""
    name, folder = f"model.tokenizer.vocabulary={vocabulary}", Path(vocabulary).expanduser()
    with explain_errors(name, f"give {GPT2}, or a folder with its {' or '.join(_NAMES)}", folder.is_dir()) as offline:
        if folder.is_dir():
            path = next((folder / file for file in _NAMES if (folder / file).is_file()), folder / _NAMES[0])
        else:
            path = Path(hf_hub_download(vocabulary, _NAMES[0], local_files_only=offline))
        ids = json.loads(path.read_bytes())
    if hashlib.sha256(json.dumps(ids, sort_keys=True).encode()).hexdigest() != _DIGEST:
        raise LazyBenchError(f"{name}: {path} is not GPT-2's vocabulary, or not all of it")
    return ids
