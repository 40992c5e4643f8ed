"""Methods that run on LazyLLM's engine, in one generation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor
from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import prefix_errors
from lazybench.methods.base import Method, Output
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.rules import LAYER, SHARE, setting
from lazyllm import PruningSchedule

# The layers that `match tune=true` tries, each with the keep that gives the speedup.
DEPTHS = ("3%", "8%", "12%", "17%", "21%", "25%", "29%", "33%", "38%", "42%", "46%", "50%")


def describe_stages(method: Method, model: PreTrainedModel) -> str | None:
    """Return the layers of a schedule in parts of the depth, `schedule: 23%:0.6 -> 6:0.6`; None for other methods."""
    if not isinstance(method, OnEngine) or not isinstance(method.schedule, str) or "%" not in method.schedule:
        return None
    return f"schedule: {method.schedule} -> {method.resolve_schedule(model).spec}"


@dataclass
class OnEngine(Method):
    """Prune by a schedule and a ranking, which a subclass defines."""

    can_batch = True
    # Any schedule that `lazyllm.enable` accepts. As a field it is the setting `method.schedule`: text such as
    # `23%:0.6,50%:0.6`, or a list of its parts, which becomes text.
    schedule: ClassVar[Any] = ()
    ranking: ClassVar[lazyllm.Ranking] = lazyllm.AttentionRanking()  # a property if it depends on settings
    _schedule_setting: ClassVar[str] = "method.schedule"  # for messages

    def __post_init__(self) -> None:
        super().__post_init__()
        if "schedule" not in vars(self):
            return
        parts = self.schedule if isinstance(self.schedule, list) else [self.schedule]
        stages = " ".join(map(str, parts)).replace(",", " ").split()
        self.schedule = ",".join(stages)
        with prefix_errors("method.schedule", lazyllm.LazyLLMError):
            if "%" not in self.schedule:
                self.schedule = PruningSchedule.parse(self.schedule).spec  # one text for 0.60 and 0.6
            for stage in stages:  # one by one, at any depth: whether layers increase depends on the model
                PruningSchedule.parse(stage, 100)

    def build_ranking(self) -> lazyllm.Ranking:
        """Return the ranking of a generation."""
        return self.ranking

    def resolve_schedule(self, model: PreTrainedModel) -> PruningSchedule:
        """Return the schedule on a model: parts of the depth become the nearest layers with full attention."""
        return lazyllm.enable(model, self.schedule, ranking=self.build_ranking()).schedule

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        counts = []
        for stage in self.resolve_schedule(model).stages:
            counts += [tokens] * (stage.layer + 1 - len(counts))
            tokens = stage.kept(tokens)
        return counts + [tokens] * (model.config.get_text_config().num_hidden_layers - len(counts))

    @property
    def nothing_pruned(self) -> Method | None:
        method = OnEngine("nothing_pruned")
        method.ranking = lazyllm.AttentionRanking(revive=False)  # as a model with states requires
        return method

    def check(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, (), ranking=self.build_ranking())  # refuses models that it cannot prune
        with prefix_errors(self._schedule_setting, lazyllm.LazyLLMError):
            self.resolve_schedule(model)

    def protected(self, prompts: Sequence[Prompt]) -> Tensor | None:
        """Return the tokens to keep at every stage, bool (prompts, longest prompt), left-padded; None for none."""
        return None

    def session(self, prompts: Sequence[Prompt], decode: Decoder) -> lazyllm.Session:
        settings = {"ranking": self.build_ranking(), "record_positions": decode.tracing}
        return lazyllm.enable(decode.model, self.schedule, **settings)

    def generate(self, prompts: Sequence[Prompt], decode: Decoder, seeds: Sequence[int]) -> Sequence[Output]:
        protected = self.protected(prompts)  # work on the prompts, which counts in the times
        answers = decode([prompt.ids for prompt in prompts], **({} if protected is None else {"protect": protected}))
        pairs = zip(answers, decode.session.sequences, strict=True)
        return [Output(tokens, stats.prompt_computed, stats) for tokens, stats in pairs]


@dataclass
class OneStage(OnEngine):
    """Prune prompt tokens once, after one layer; a subclass sets `ranking`.

    The layer counts from 0, or is a part of the depth such as `16%`.
    """

    _schedule_setting: ClassVar[str] = "method.layer"

    layer: int | str = setting("16%", LAYER)
    keep: float = setting(0.5, SHARE)

    @property
    def schedule(self) -> str:
        """The one stage."""
        return f"{self.layer}:{self.keep}"

    def trials(self) -> list[Self]:
        return [replace(self, layer=layer) for layer in DEPTHS]
