"""Enable LazyLLM on a model, and restore the model afterwards."""

import functools
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel

from lazyllm.core.engine import Setup
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.ranking import Ranking
from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.sequence import Stats, only
from lazyllm.hf import private
from lazyllm.hf.arguments import read_schedule
from lazyllm.hf.attention_interface import NAME, loaded_kernel
from lazyllm.hf.model_patches import ModelPatches, Patch
from lazyllm.hf.model_support import check_adapters, check_attention, find_parts
from lazyllm.rankings.attention import AttentionRanking


class Session:
    """Prune the prompts of everything that `model` generates inside the `with` of `lazyllm.enable`.

    `model.generate` works as without it, in any number of threads: a generation belongs to its cache
    (`past_key_values`). A call can have its own `schedule`, and `protect`: which of all tokens so far are kept at every
    stage, bool (tokens,) or (batch, tokens). Protected tokens count toward what a stage keeps; if there are more of
    them, all are kept, see `stats.exceeded`. Without revival, what is pruned stays pruned. See `template_tokens`.

    A forward pass with `logits_to_keep=1` returns the newest tokens' logits, (batch, 1, vocabulary). The weights
    are not changed, and afterwards the model is unmodified, also after an exception.

    Args:
        model: a Hugging Face decoder-only model, or PEFT's wrapper of one.
        schedule: where tokens are pruned and how many are kept: a `PruningSchedule`, text such as "10:0.7,20:0.5" or
            "23%:0.54,50%:0.54", or pairs such as [(10, 0.7), (20, 0.5)]; "" prunes nothing.
        ranking: ranks the tokens: `lazyllm.AttentionRanking()` by default, the paper's Eq. 1; `lazyllm.plus()`;
            `lazyllm.StaticRanking()`; or an instance of a subclass of `lazyllm.Ranking`.
        min_tokens: a prompt of fewer tokens is not pruned, nor a conversation that begins with it. Padding counts if
            prompts come in chunks.
        record_positions: keep the active and computed positions of every step and layer in `stats`.
        record_importance: keep the importance in every layer of prefill in `stats`.

    Attributes:
        schedule: the stages.
        layers: the model's decoder layers.

    Raises:
        LazyLLMError: the model, schedule or ranking is not supported; inside the `with`, an input is not.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: PruningSchedule | str | Iterable[tuple[int, float]],
        *,
        ranking: Ranking | None = None,
        min_tokens: int = 0,
        record_positions: bool = False,
        record_importance: bool = False,
    ) -> None:
        _warn_if_untested(transformers.__version__)
        ranking = AttentionRanking() if ranking is None else ranking
        if not isinstance(ranking, Ranking):
            raise LazyLLMError(f"ranking must be an instance of a ranking, such as lazyllm.plus(), not {ranking!r}")
        ranking.check()
        # PEFT's wrapper has a `generate` that calls that of the model inside.
        is_wrapper = not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model")
        self._model: Any = model.get_base_model() if is_wrapper else model
        parts = find_parts(self._model, ranking.revive)
        self._parts, self.layers = parts, parts.layers
        self.schedule = read_schedule(schedule, parts.windows, ranking)
        if parts.processes is not None and not ranking.parallel:
            name = type(ranking).__name__
            instead = f"use self.over_processes, and declare `class {name}(..., parallel=True)`"
            raise LazyLLMError(f"the model's heads are split over processes, which {name} does not support: {instead}")
        self._setup = Setup(
            schedule=self.schedule,
            kernel=loaded_kernel(parts.decoder.config),
            windows=parts.windows,
            processes=parts.processes,
            ranking=ranking,
            min_tokens=min_tokens,
            record_positions=record_positions,
            record_importance=record_importance,
        )
        self._restore = ExitStack()  # restores the model
        self._patches: ModelPatches | None = None

    @property
    def stats(self) -> Stats:
        """Counts of the only sequence of the generation that began last; an output's `past_key_values` have its own."""
        return only(self.sequences)

    @property
    def sequences(self) -> list[Stats]:
        """Counts of each sequence of the generation that began last, over all its turns."""
        return [] if self._patches is None else self._patches.sequences

    def start(self) -> "Session":
        """Begin, as a `with` does; until `stop`, everything that the model generates is pruned."""
        config = self._parts.decoder.config
        check_attention(self._parts.decoder)
        check_adapters(self._model.modules())
        # The config may have changed since `enable`; a new kernel object marks the caches of this `with`.
        setup = replace(self._setup, kernel=loaded_kernel(config))
        patches = ModelPatches(self._model, self._parts, setup)
        self._patches = patches
        with ExitStack() as restore:
            restore.callback(private.set_attention_implementation, config, setup.kernel.name)
            private.set_attention_implementation(config, NAME)
            for method in patches.methods():
                restore.callback(Patch(*method).remove)
            self._restore = restore.pop_all()
        return self

    __enter__ = start

    def stop(self) -> None:
        """End, as a `with` does; a call that still runs in another thread then ends in an error."""
        self._restore.close()

    def __exit__(self, *error: object) -> None:
        self.stop()


@functools.cache  # once
def _warn_if_untested(version: str) -> None:
    """Warn if transformers is newer than the versions that the tests run on."""
    if tuple(map(int, version.split(".")[:2])) > tuple(map(int, private.TESTED.split("."))):
        what = f"LazyLLM is tested with transformers up to {private.TESTED}, and this is {version}"
        warnings.warn(f"{what}: compare an answer with schedule '' to the unmodified model's", stacklevel=3)


enable = Session
