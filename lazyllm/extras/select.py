"""Which tokens of a prompt to keep, for something else to answer it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.ranking import Selection, check_survivors
from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.sequence import Sequence
from lazyllm.extras.token_ids import Ids, check_vocabulary, placed, text_ids
from lazyllm.hf.session import enable
from lazyllm.hf.support import check_adapters
from lazyllm.rankings.plus import Importance


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
    ranking = Importance() if selection is None else selection
    schedule = f"50%:{keep}" if isinstance(keep, float | int) else keep
    schedule = enable(model, schedule, selection=ranking, newest_only=True).schedule
    prompt = text_ids("ids", ids)
    if model.training:
        raise LazyLLMError("the model is in training mode: call model.eval() before selecting tokens")
    check_adapters(model)
    check_vocabulary(model, prompt)
    if not schedule.pruning:
        return Selected(prompt[0], torch.arange(prompt.shape[1]), 0.0)
    up_to = _UpTo(ranking, schedule.pruning[-1].layer)
    try:
        with torch.no_grad(), enable(model, schedule, selection=up_to, newest_only=True):
            model(placed(model, prompt), use_cache=True)
    except _LastStage as stage:
        positions, computed = stage.args
    return Selected(prompt[0][positions], positions, computed)


class _LastStage(Exception):
    """The last stage has been reached, nothing behind it is needed.

    Its arguments are the positions that it lets go on, int64 (k,), and the share of the prompt that was computed.
    """


class _UpTo(Selection, checked=False, parallel=True):
    """Ranks as another selection does, and ends the pass at the last stage.

    Whether that one can rank the model's tokens has been checked.
    """

    def __init__(self, ranking: Selection, last: int) -> None:
        self._ranking = ranking
        self._last = last

    def copy_for(self, cache: Sequence) -> Selection:
        own = _UpTo(self._ranking.copy_for(cache), self._last)
        own.cache = cache
        return own

    def wants(self, layer: int) -> bool:
        return self._ranking.wants(layer)

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        self._ranking.processes = self.processes
        self._ranking.observe(layer, query, key, scaling, softcap)

    def survivors(self, layer: int, count: int) -> torch.Tensor:
        chosen = self._ranking.survivors(layer, count)
        if self._ranking.checked:
            check_survivors(self._ranking, chosen, layer)
        if layer < self._last:
            return chosen
        groups = self.cache.group_of  # one for each layer
        computed = sum(group.n_active[0] for group in groups[: layer + 1])
        raise _LastStage(chosen.cpu(), computed / (len(groups) * self.cache.total))
