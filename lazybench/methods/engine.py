"""What methods share that answer a prompt in one generation of LazyLLM's engine."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.methods.shared import LAYER, SHARE, naming, one_of, setting
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt, template_tokens
from lazyllm import PruningSchedule

# Where `match tune=true` tries stages; what each keep becomes is up to the speedup.
DEPTHS = ("3%", "8%", "12%", "17%", "21%", "25%", "29%", "33%", "38%", "42%", "46%", "50%")
SCHEDULES = (
    "8%:0.5",
    "12%:0.5",
    "21%:0.5",
    "29%:0.5",
    "3%:0.6,20%:0.6",
    "7%:0.6,27%:0.6",
    "13%:0.6,40%:0.6",
    "23%:0.6,50%:0.6",
    "3%:0.6,13%:0.6,40%:0.6",
    "3%:0.6,20%:0.6,50%:0.6",
    "7%:0.6,27%:0.6,50%:0.6",
    "13%:0.6,27%:0.6,50%:0.6",
)


def stages_said(method: Method, model: PreTrainedModel) -> str | None:
    """What became of the parts of the depth in a method's schedule: `schedule: 23%:0.6 -> 6:0.6`; None without."""
    if not isinstance(method, OnEngine) or not isinstance(method.schedule, str) or "%" not in method.schedule:
        return None
    return f"schedule: {method.schedule} -> {method.placed(model).spec}"


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
    protect: ClassVar[str] = "none"
    _set_by: ClassVar[str] = "method.schedule"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "schedule" not in vars(self):
            return
        parts = self.schedule if isinstance(self.schedule, list) else [self.schedule]
        words = " ".join(map(str, parts)).replace(",", " ").split()
        self.schedule = ",".join(words)
        with naming("method.schedule"):
            if "%" not in self.schedule:
                self.schedule = PruningSchedule.parse(self.schedule).spec  # the same for the same: 0.60 is 0.6
            for word in words:  # by itself and on any depth: whether layers increase shows on a model
                PruningSchedule.parse(word, 100)

    def placed(self, model: PreTrainedModel) -> PruningSchedule:
        """The schedule on a model: parts of the depth become the nearest layers that see everything."""
        return lazyllm.enable(model, self.schedule, selection=self.selection).schedule

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        found = []
        for stage in self.placed(model).stages:
            found += [tokens] * (stage.layer + 1 - len(found))
            tokens = stage.kept(tokens)
        return found + [tokens] * (model.config.get_text_config().num_hidden_layers - len(found))

    @property
    def keep_1(self) -> Method | None:
        keep_1 = OnEngine("keep_1")
        keep_1.selection = lazyllm.Importance(for_good=self.selection.for_good)  # as a model with states asks for
        return keep_1

    def check(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, (), selection=self.selection)  # refuses what it could not prune
        with naming(self._set_by):
            self.placed(model)

    def session(self, prompt: Prompt, decode: Decoder) -> Any:
        how = {"selection": self.selection, "record_positions": decode.tracing}
        if self.protect == "template":
            protected = template_tokens(prompt)
            how["protect"] = lambda ids: protected
        return lazyllm.enable(decode.model, self.schedule, **how)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        tokens, stats = decode(prompt.ids), decode.session.stats
        return Output(tokens, stats.prompt_computed, stats)


@dataclass
class OneStage(OnEngine):
    """Prune prompt tokens once, after one layer; a subclass sets `selection`, and by that whether they may return.

    The layer counts from 0, or is a part of the depth such as `16%`.
    """

    _set_by: ClassVar[str] = "method.layer"

    layer: int | str = setting("16%", LAYER)
    keep: float = setting(0.5, SHARE)

    @property
    def schedule(self) -> str:
        """The one stage."""
        return f"{self.layer}:{self.keep}"

    def trials(self) -> list[Self]:
        return [replace(self, layer=layer) for layer in DEPTHS]


@dataclass
class Staged(OnEngine):
    """Prunes by a schedule that can be set: a subclass sets the ranking, and is a whole method.

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
        protect: with `template` all that is not the record's context always goes on: the tokens of the dataset's
            prompt, the question among them, and those of the chat wrapper. The paper has none of this, `none`.
    """

    schedule: str | list[str] = ""
    protect: str = setting("none", one_of(("none", "template")))

    def trials(self) -> list[Self]:
        return [replace(self, schedule=schedule) for schedule in SCHEDULES]

    def pruning(self, share: float) -> Self:
        """The same stages, each keep to the same power; `LazyBenchError` where they prune nothing."""
        pairs = [part.split(":") for part in self.schedule.split(",") if part]
        left = math.prod(float(keep) for _, keep in pairs)
        if left == 1:
            raise LazyBenchError(f"method.schedule={self.schedule} prunes nothing: give stages that do")
        power = math.log(1 - share) / math.log(left)
        return replace(self, schedule=",".join(f"{layer}:{round(float(keep) ** power, 4)}" for layer, keep in pairs))
