"""What is wrong with a folder that a model could not be loaded from."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lazybench.data.record import kind
from lazybench.errors import first_line

_OBJECTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")
WHOLE = "a folder must hold whole config.json, tokenizer and .safetensors files, as save_pretrained writes them"


def lacking(folder: Path, weights: bool = True, tokenizer: bool = True) -> tuple[str, str] | None:
    """Which parts of a model a folder lacks, and what to do; None where it has them.

    Args:
        folder: the folder.
        weights: whether it must hold weights.
        tokenizer: whether it must hold a tokenizer.
    """
    parts = {"no config.json": ["config.json"]}
    if weights:
        parts["no weights (.safetensors)"] = list(_WEIGHTS)
    if tokenizer:
        parts["no tokenizer (tokenizer.json)"] = list(_TOKENIZERS)
    missing = [part for part, patterns in parts.items() if not _holds(folder, patterns)]
    if not missing:
        return None
    said = "the folder has " + " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    if elsewhere := sorted([*folder.glob("*.gguf"), *folder.glob("*/config.json"), *folder.glob("*/*/config.json")]):
        other = elsewhere[0] if elsewhere[0].suffix == ".gguf" else elsewhere[0].parent
        return said, f"a model is in {other}: give model.path={other}"
    return said, WHOLE


def damage(folder: Path, pattern: str = "*") -> str | None:
    """The first of a folder's files that cannot be read, and why; None where all can."""
    for path in sorted(folder.glob(pattern)):
        try:
            if path.suffix == ".json":
                content = json.loads(path.read_bytes())
                if path.name in _OBJECTS and not isinstance(content, dict):
                    return f"{path}: must hold a JSON object, not {kind(content)}"
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
        except json.JSONDecodeError as error:
            return f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}"
        except (OSError, ValueError, SafetensorError) as error:
            return f"{path}: {first_line(error)}"
    return None


def _holds(folder: Path, patterns: list[str]) -> bool:
    return any(path.is_file() for pattern in patterns for path in folder.glob(pattern))
