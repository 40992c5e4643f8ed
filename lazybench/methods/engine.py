"""What methods share that answer a prompt in one generation of LazyLLM's engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.methods.shared import LAYER, SHARE, naming, setting
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazyllm import PruningSchedule

_parsed = cache(PruningSchedule.parse)


def layers_of(model: PreTrainedModel) -> int:
    """How many decoder layers a model has."""
    return int(model.config.get_text_config().num_hidden_layers)


def _text(schedule: object) -> str:
    """A schedule setting as text, the same for the same schedule."""
    parts = schedule if isinstance(schedule, list) else [schedule]
    words = " ".join(map(str, parts)).replace(",", " ").split()
    with naming("method.schedule"):
        if any("%" in word for word in words):
            for word in words:  # by itself and on any depth: whether layers increase shows on a model
                PruningSchedule.parse(word, 100)
            return ",".join(words)
        return PruningSchedule.parse(",".join(words)).spec  # 0.60 is 0.6


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
        super().__post_init__()
        if "schedule" in vars(self):
            self.schedule = _text(self.schedule)

    def pruning_schedule(self, num_layers: int) -> PruningSchedule:
        """The schedule on a model of `num_layers` decoder layers."""
        given = self.schedule
        return _parsed(given, num_layers) if isinstance(given, str) else PruningSchedule.of(given, num_layers)

    @property
    def keep_1(self) -> Method:
        return OnEngine("keep_1")

    def check(self, model: PreTrainedModel) -> None:
        layers = layers_of(model)
        with naming(self._set_by):
            schedule = self.pruning_schedule(layers)
            schedule.check(layers)
        lazyllm.enable(model, schedule, selection=self.selection)  # refuses what it could not prune

    def session(self, prompt: Prompt, decode: Decoder) -> lazyllm.Session:
        schedule = self.pruning_schedule(layers_of(decode.model))
        return lazyllm.enable(decode.model, schedule, selection=self.selection, record_positions=decode.tracing)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        tokens, stats = decode(prompt.ids), decode.session.stats
        return Output(tokens, stats.prompt_computed, stats)


@dataclass
class OneStage(OnEngine):
    """Prune prompt tokens once, after one layer; a subclass sets `selection`, and by that whether they may return.

    Attributes:
        layer: the decoder layer after which to prune.
        keep: fraction of the prompt tokens that stay.
    """

    _set_by: ClassVar[str] = "method.layer"

    layer: int = setting(4, LAYER)
    keep: float = setting(0.5, SHARE)

    @property
    def schedule(self) -> PruningSchedule:
        """The one stage."""
        return PruningSchedule([(self.layer, self.keep)])


@dataclass
class Staged(OnEngine):
    """Prunes by a schedule that can be set: a subclass sets the ranking, and is a whole method.

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
    """

    schedule: str | list[str] = ""

    @property
    def left(self) -> float:
        """The fraction of the prompt's tokens that all stages leave.

        Raises:
            LazyBenchError: they leave all.
        """
        left = math.prod(keep for _, keep in self._stages)
        if left == 1:
            raise LazyBenchError(f"method.schedule={self.schedule} prunes nothing: give stages that do")
        return left

    def pruning(self, share: float) -> Self:
        """The same stages, each keep to the same power."""
        return self.to_power(math.log(1 - share) / math.log(self.left))

    def to_power(self, power: float) -> Self:
        """The same stages, each keep to this power: above 1 prunes more."""
        return replace(self, schedule=",".join(f"{layer}:{round(keep**power, 4)}" for layer, keep in self._stages))

    @property
    def _stages(self) -> list[tuple[str, float]]:
        pairs = [part.split(":") for part in self.schedule.split(",") if part]
        return [(layer, float(keep)) for layer, keep in pairs]
