"""A method with settings that `lazybench match` chose, with `tune=true` on one half of the records for the other."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from transformers import PreTrainedModel

from lazybench.data import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


def settings_of(method: Method) -> dict[str, Any]:
    """Return a method's settings as its config has them."""
    values, given = asdict(method), [field.name for field in fields(method) if field.init]
    target = f"{type(method).__module__}.{type(method).__qualname__}"
    return {"_target_": target, **{name: values[name] for name in given}}


@dataclass
class Matched(Method):
    """Run each record with settings that were chosen on other records, if there are any."""

    speedup: str = ""  # the speedup that the method is matched to, such as `2x`
    # A mapping per choice: `method`, which becomes its settings, and `records`, the hashes of the records it was chosen
    # on. With `tune=true` there are two, one per half of the records; else one without records.
    folds: list[dict[str, Any]] = field(default_factory=list, repr=False)
    # How the settings were chosen, for the reader; `layers` is the depth of the model they are for.
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.methods = [fold["method"] for fold in self.folds]
        self.folds = [fold | {"method": settings_of(fold["method"])} for fold in self.folds]
        self.repeats, self.label = self.methods[0].repeats, self.methods[0].label

    def again(self, match: Callable[[Method], Method], found: dict[str, Any]) -> "Matched":
        """Return it with each of its methods matched again; `found` describes how, beside how they were chosen."""
        folds = [fold | {"method": match(method)} for fold, method in zip(self.folds, self.methods, strict=True)]
        return replace(self, folds=folds, found=found | {"chosen": self.found.get("chosen", self.found)})

    def matched_on(self, records: Iterable[Record]) -> int:
        """Return the number of `records` that have no settings chosen on other records."""
        return sum(all(record.hash in fold["records"] for fold in self.folds) for record in records)

    @property
    def ttft_bound(self) -> float:
        return self.methods[0].ttft_bound

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        return self.methods[0].layer_tokens(model, tokens)

    @property
    def nothing_pruned(self) -> Method | None:
        return self.methods[0].nothing_pruned

    def check(self, model: PreTrainedModel) -> None:
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        if self.found.get("layers") not in (None, layers):
            raise LazyBenchError(
                f"method {self.name} was matched to {self.found.get('model')}, of {self.found['layers']} layers, "
                f"and this model has {layers}: match it to this one, with lazybench match"
            )
        for method in self.methods:
            method.check(model)

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        for method in self.methods:
            method.prepare(model)

    def session(self, prompts: Sequence[Prompt], decode: Decoder) -> AbstractContextManager[Any]:
        return self.for_record(prompts[0].record).session(prompts, decode)

    def generate(self, prompts: Sequence[Prompt], decode: Decoder, seeds: Sequence[int]) -> Sequence[Output]:
        return self.for_record(prompts[0].record).generate(prompts, decode, seeds)

    def for_record(self, record: Record) -> Method:
        """Return the first method that was not chosen on the record; without one, the first."""
        folds = zip(self.methods, self.folds, strict=True)
        held_out = (method for method, fold in folds if record.hash not in fold["records"])
        return next(held_out, self.methods[0])
