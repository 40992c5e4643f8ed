"""What methods share that answer a prompt in one generation of LazyLLM's engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.methods.checks import check_depth, naming
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt

_DEEP = 1000  # layers; deep enough to read any schedule before the model's depth is known


@dataclass
class OnEngine(Method):
    """Prunes by a schedule and a ranking: a subclass sets these two, and is a whole method.

    Attributes:
        schedule: where to prune and how much stays: whatever `lazyllm.enable` takes. As a field it is a setting,
            `method.schedule`: text such as `23%:0.6,50%:0.6`, or a list of its parts, which becomes text.
        selection: what ranks the tokens, a `lazyllm.Selection`; a property where it depends on settings.
    """

    schedule: ClassVar[Any] = ()
    selection: ClassVar[lazyllm.Selection] = lazyllm.Importance()
    _set_by: ClassVar[str] = "method.schedule"

    def __post_init__(self) -> None:
        if "schedule" in vars(self):
            self.schedule = _text(self.schedule)

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The schedule on a model of `num_layers` decoder layers."""
        return lazyllm.PruningSchedule.of(self.schedule, num_layers)

    @property
    def keep_1(self) -> Method:
        return OnEngine("keep_1")

    def check(self, model: PreTrainedModel) -> None:
        check_depth(self._set_by, self.schedule, model)
        lazyllm.enable(model, self.schedule, selection=self.selection)  # refuses what it could not prune

    def session(self, prompt: Prompt, decode: Decoder) -> lazyllm.Session:
        return lazyllm.enable(decode.model, self.schedule, selection=self.selection, record_positions=decode.tracing)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        tokens, stats = decode(prompt.ids), decode.session.stats
        return Output(tokens, stats.prompt_computed, stats)


def _text(schedule: object) -> str:
    """A schedule setting as text, the same for the same schedule."""
    if not isinstance(schedule, str | int | list):
        raise LazyBenchError(f"method.schedule={schedule} is not layer:keep pairs, such as [10:0.7,20:0.5]")
    parts = schedule if isinstance(schedule, list) else [schedule]
    text = ",".join(" ".join(map(str, parts)).replace(",", " ").split())
    with naming("method.schedule"):
        read = lazyllm.PruningSchedule.parse(text, _DEEP)
    return text if "%" in text else read.spec  # 0.60 is 0.6
