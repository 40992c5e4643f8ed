"""Loads a second model, which a method's setting names, beside the model under test."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.model.loading import load_model, load_tokenizer


def load_second(
    setting: str, path: str, under_test: PreTrainedModel
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model at `path`, and its tokenizer, on the device of the model under test.

    Args:
        setting: the method's field that names it, for messages.
        path: hub id, local folder or `.gguf` file.
        under_test: the model under test.

    Raises:
        LazyBenchError: it cannot be had.
    """
    # limit is about prompts of the model under test.
    config = ModelConfig(name=setting, path=path, device=str(under_test.device), limit=2)
    try:
        return load_model(config), load_tokenizer(config)
    except LazyBenchError as error:
        raise LazyBenchError(f"method.{setting}: {error}") from error
