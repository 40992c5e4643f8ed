"""A page that shows how many layers each prompt token went through, and the tokens revived for each generated token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from lazyllm import Stats


def html(stats: "Stats", tokenizer: Any, ids: "torch.Tensor | Sequence[int]", title: str = "LazyLLM") -> str:
    """Return the token map of a generation: one HTML document that loads nothing, which a notebook shows as it is.

    Args:
        stats: of the generation, with its positions (`record_positions=True`).
        tokenizer: the model's, whose `decode` gives the tokens' text.
        ids: ids of the prompt and the answer, without padding, int64 (tokens,), such as `output[0]`.
        title: heading of the generation, such as its model and method.

    Raises:
        LazyLLMError: no positions were recorded, nothing was pruned, or the ids do not fit.
    """
    # torch takes seconds to import.
    from lazybench.token_map.page import TokenMap, render

    return render([TokenMap.from_stats(stats, ids, title)], tokenizer)
