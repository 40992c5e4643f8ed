"""How long a prompt and its answer may be on a model."""

from __future__ import annotations

from transformers import PreTrainedModel

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError


def positions(model: PreTrainedModel) -> int | None:
    """Most tokens of prompt and answer together, maybe of a model without weights; None where no config says it."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_limit(config: ModelConfig, new_tokens: int, model: PreTrainedModel) -> None:
    """Refuse prompts that the model has no positions for.

    Args:
        config: the model's settings.
        new_tokens: most tokens that are generated on a prompt.
        model: the model, maybe without weights.

    Raises:
        LazyBenchError: `model.limit` and the new tokens are more than the model holds.
    """
    holds = positions(model)
    if holds is not None and config.limit + new_tokens > holds:
        raise LazyBenchError(
            f"model.limit={config.limit} and {new_tokens} new tokens are more than the {holds} positions of "
            f"{config.name}: set model.limit={holds - new_tokens} or less"
        )
