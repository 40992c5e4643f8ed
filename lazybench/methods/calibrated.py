"""LazyLLM with a schedule that `lazybench calibrate` found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import log
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from lazybench.data import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output
from lazybench.methods.lazyllm import LazyLLM
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazyllm import PruningSchedule, Session

_FOLD = {"schedule", "importance", "records"}


@dataclass
class Calibrated(Method):
    """LazyLLM as it was calibrated; each record gets a schedule that was found without it, where there is one.

    Attributes:
        budget: what the schedule was to keep to.
        folds: what was found, each with `schedule`, `importance` and `records`, the hashes of the records that it was
            found on. A calibration on one half of the records has one; a cross-fitted one has two.
        found: how it was found, for the reader; `layers` is the depth of its model.
    """

    budget: str = ""
    folds: list[dict[str, Any]] = field(default_factory=list, repr=False)  # names every record it was found on
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folds or not all(isinstance(fold, dict) and fold.keys() == _FOLD for fold in self.folds):
            raise LazyBenchError(f"method.folds must be a list of {', '.join(sorted(_FOLD))}, as calibrate writes it")
        self._methods = [
            LazyLLM(self.name, schedule=fold["schedule"], importance=fold["importance"]) for fold in self.folds
        ]
        self.folds = [
            {"schedule": of.schedule, "importance": of.importance, "records": list(map(str, fold["records"]))}
            for fold, of in zip(self.folds, self._methods, strict=True)
        ]
        self._seen = [frozenset(fold["records"]) for fold in self.folds]
        self.name = next((of.name for of in self._methods if not of.selection.is_eq1), self.name)

    def calibrated_on(self, records: Iterable[Record]) -> int:
        """How many of `records` every schedule was calibrated on."""
        return sum(all(record.hash in seen for seen in self._seen) for record in records)

    def pruning(self, share: float) -> Calibrated:
        """The same stages, each keep to the same power in all folds, which leave so much by their geometric mean."""
        power = log(1 - share) / fmean(log(of.left) for of in self._methods)
        folds = [
            fold | {"schedule": of.to_power(power).schedule} for fold, of in zip(self.folds, self._methods, strict=True)
        ]
        return replace(self, budget=f"{self.budget}, keeps^{power:.2f}", folds=folds)

    @property
    def keep_1(self) -> Method:
        return self._methods[0].keep_1

    def check(self, model: PreTrainedModel) -> None:
        layers = getattr(model.config, "num_hidden_layers", None)
        if self.found.get("layers") not in (None, layers):
            raise LazyBenchError(
                f"method {self.name} was calibrated on {self.found.get('model')}, of {self.found['layers']} layers, "
                f"and this model has {layers}: calibrate it by itself"
            )
        for method in self._methods:
            method.check(model)

    def session(self, prompt: Prompt, decode: Decoder) -> Session:
        return self._of(prompt).session(prompt, decode)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        return self._of(prompt).generate(prompt, decode, seed)

    def _of(self, prompt: Prompt) -> LazyLLM:
        place = next((place for place, seen in enumerate(self._seen) if prompt.record.hash not in seen), 0)
        return self._methods[place]

    def placed(self, model: PreTrainedModel) -> PruningSchedule:
        """The first fold's schedule on a model."""
        return self._methods[0].placed(model)
