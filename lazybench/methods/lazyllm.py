"""LazyLLM (Fu et al. 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import lazyllm
from lazybench.errors import LazyBenchError, prefix_errors
from lazybench.methods.engine import OnEngine
from lazybench.model.instance import make
from lazybench.model.prompts import Prompt, template_tokens
from lazybench.rules import one_of, setting

EQ1 = "eq1"
NAMED = {EQ1: lazyllm.AttentionRanking, "plus": lazyllm.plus}
PAPER, PLUS, NO_REVIVAL = "lazyllm", "lazyllm+", "_no_revival"
NAMES = (PAPER, PLUS, PAPER + NO_REVIVAL, PLUS + NO_REVIVAL)
# The stages that `match tune=true` tries, each with the keeps raised to the power that gives the speedup.
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


@dataclass
class LazyLLM(OnEngine):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2)."""

    # `layer:keep` pairs as text or list; a layer may be a part of the depth. On the command line, where a comma outside
    # brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
    schedule: str | list[str] = ""
    # With `template` all tokens but the record's context are kept at every stage: the dataset's prompt, the question in
    # it, and the chat wrapper. The paper has no such rule, `none`.
    protect: str = setting("none", one_of(("none", "template")))
    # `eq1`, the paper's; `plus`, which is `lazyllm.plus()`; or settings of `lazyllm.AttentionRanking`, such as
    # `{queries: 8, pooling: 7}`, with `_target_` for a subclass of it. With another than the paper's the method is
    # called `lazyllm+`; without revival `_no_revival` follows either name.
    ranking: Any = EQ1

    def __post_init__(self) -> None:
        super().__post_init__()
        ranking = self.build_ranking()
        changed = beyond_eq1(ranking)
        self.ranking = changed or EQ1
        if self.name in NAMES:
            self.name = (PLUS if changed.keys() - {"revive"} else PAPER) + ("" if ranking.revive else NO_REVIVAL)

    def build_ranking(self) -> lazyllm.AttentionRanking:
        ranking = self.ranking
        if isinstance(ranking, str) and ranking in NAMED:
            return NAMED[ranking]()
        if isinstance(ranking, dict):
            settings = {"_target_": "lazyllm.AttentionRanking", **ranking}
            with prefix_errors("method.ranking", lazyllm.LazyLLMError):
                ranking = make("method.ranking", settings, "a subclass of lazyllm.AttentionRanking")
        if not isinstance(ranking, lazyllm.AttentionRanking):
            example = "'method.ranking={queries:8,pooling:7}'"
            raise LazyBenchError(f"method.ranking={ranking} must be {', '.join(NAMED)} or parts such as {example}")
        return ranking

    def protected(self, prompts: Sequence[Prompt]) -> Tensor | None:
        if self.protect == "none":
            return None
        masks = [template_tokens(prompt) for prompt in prompts]
        return pad_sequence(masks, batch_first=True, padding_side="left")

    def trials(self) -> list[Self]:
        return [replace(self, schedule=schedule) for schedule in SCHEDULES]

    def pruning(self, share: float) -> Self:
        """Return the same stages with each keep raised to one power; `LazyBenchError` if they prune nothing."""
        pairs = [stage.split(":") for stage in self.schedule.split(",") if stage]
        product = math.prod(float(keep) for _, keep in pairs)
        if product == 1:
            raise LazyBenchError(f"method.schedule={self.schedule} prunes nothing: give stages that do")
        power = math.log(1 - share) / math.log(product)
        return replace(self, schedule=",".join(f"{layer}:{round(float(keep) ** power, 4)}" for layer, keep in pairs))


def beyond_eq1(ranking: lazyllm.AttentionRanking) -> dict[str, Any]:
    """Return the settings of a ranking that differ from Eq. 1's, and a subclass as `_target_`."""
    kind = type(ranking)
    target = {} if kind is lazyllm.AttentionRanking else {"_target_": f"{kind.__module__}.{kind.__qualname__}"}
    settings = {field.name: (getattr(ranking, field.name), field.default) for field in fields(ranking)}
    return target | {name: value for name, (value, default) in settings.items() if value != default}
