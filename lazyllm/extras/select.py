"""Which tokens of a prompt to keep, for something else to answer it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.ranking import Selection
from lazyllm.core.schedule import PruningSchedule
from lazyllm.extras.token_ids import Ids, check_ready, text_ids
from lazyllm.hf.attention_interface import CURRENT
from lazyllm.hf.session import enable


@dataclass(frozen=True, eq=False)
class Selected:
    """The tokens of a prompt that all stages of a schedule left.

    Attributes:
        ids: the shortened prompt: their ids, in order, int64 (k,), on the CPU.
        positions: where in the prompt they stand, rising, int64 (k,), on the CPU.
        prompt_computed: what it cost: the mean over the model's layers of the share of the prompt that was computed
            there, 0 to 1. Layers behind the last stage compute nothing.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    prompt_computed: float


def select(
    model: PreTrainedModel,
    ids: Ids,
    keep: float | PruningSchedule | str | Iterable[tuple[int, float]],
    *,
    selection: Selection | None = None,
) -> Selected:
    """The tokens of a prompt that go on behind the last stage of a schedule, as they would in prefilling.

    What is left is an ordinary, shorter prompt for any engine whose model has the same tokenizer. The model runs up to
    the last stage and no further; nothing is generated. With one stage this is the way of GemFilter (Shi et al. 2024,
    arXiv 2409.17422), ranked by LazyLLM's importance. The newest token is always among them;
    `Importance(first=4, last=32)` keeps the ends of a prompt whole, such as those of a chat template.

    Args:
        model: a model that `enable` takes, in eval mode; one without a language-modelling head, too.
        ids: the prompt, int64 (n,) or (1, n), or a list of ids.
        keep: the fraction of the prompt to keep, ranked once half of the layers have run: 0.3 is "50%:0.3". Or where
            tokens are pruned and how many stay, as in `enable`. Where nothing is pruned, all of the prompt is left, and
            nothing is computed.
        selection: what ranks the tokens, as in `enable`.

    Raises:
        LazyLLMError: not such ids, a model in training mode, or what `enable` refuses.
    """
    schedule = f"50%:{keep}" if isinstance(keep, float | int) else keep
    lazy = enable(model, schedule, selection=selection, newest_only=True)
    check_ready(model, "selecting tokens")
    prompt = text_ids(model, "ids", ids)
    if not lazy.schedule.pruning:
        return Selected(prompt[0].cpu(), torch.arange(prompt.shape[1]), 0.0)
    behind = lazy.layers[lazy.schedule.pruning[-1].layer + 1]
    # The layer itself begins with the stage.
    hooks = [part.register_forward_pre_hook(_stop) for part in behind.children()]
    try:
        with torch.no_grad(), lazy:
            model(prompt, use_cache=True)
    except _LastStage as stage:
        positions, computed = stage.args
    finally:
        for hook in hooks:
            hook.remove()
    return Selected(prompt[0].cpu()[positions], positions, computed)


class _LastStage(Exception):
    """Nothing behind the last stage is needed; with the positions that it let go on, and the share of the prompt."""


def _stop(*args: Any) -> None:
    generation = CURRENT.get()
    layers = generation.group_of
    computed = sum(group.n_active[0] for group in layers[: generation.layer])
    raise _LastStage(generation.group.active[0].cpu(), computed / (len(layers) * generation.longest))
