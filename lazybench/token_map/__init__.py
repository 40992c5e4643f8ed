"""A page that shows which tokens of a prompt reached which layers, and which came back for which generated token."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from lazyllm import Stats


def html(stats: "Stats", tokenizer: Any, ids: "torch.Tensor | Iterable[int]", title: str = "LazyLLM") -> str:
    """A page of a generation's text: how deep each token got in prefilling, and which came back, step by step.

    It is one HTML document that loads nothing, which a notebook shows as it is.

    Args:
        stats: of the generation, with its positions (`record_positions=True`).
        tokenizer: the model's, whose `decode` gives the tokens' text.
        ids: ids of the prompt and the answer, without padding, int64 (tokens,), such as `output[0]`.
        title: what to call the generation, such as its model and method.

    Raises:
        LazyLLMError: its positions were not recorded, nothing was pruned, or the ids do not fit.
    """
    # torch takes seconds to import.
    from lazybench.token_map.page import Reach, page

    return page([Reach.of(stats, ids, title)], tokenizer)
