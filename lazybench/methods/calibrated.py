"""A cross-fitted method: settings that `lazybench match tune=true` chose on one half of the records for the other."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml
from transformers import PreTrainedModel

from lazybench.data import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method, Output, build_method
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


def settings_of(method: Method) -> dict[str, Any]:
    """Return a method's settings as its config has them."""
    return {"_target_": f"{type(method).__module__}.{type(method).__qualname__}", **asdict(method)}


def config_of(
    head: str, name: str, budget: str, folds: Iterable[tuple[Method, Iterable[Record]]], found: dict[str, Any]
) -> str:
    """Return the YAML of a `Calibrated`, given its attributes and a comment for its first line.

    A fold is a method and the records that its settings were chosen on.
    """
    settings = {
        "_target_": f"{Calibrated.__module__}.{Calibrated.__qualname__}",
        "name": name,
        "budget": budget,
        "folds": [
            {"method": settings_of(method), "records": _Hashes(sorted(record.hash for record in records))}
            for method, records in folds
        ],
        "found": found,
    }
    return f"# {head}\n{yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=120)}"


class _Hashes(list[str]):
    """Hashes that are written in quotes, many on a line: some YAML readers take some of them for numbers."""


def _represent(dumper: yaml.SafeDumper, hashes: _Hashes) -> yaml.Node:
    nodes = [dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"') for value in hashes]
    return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes, flow_style=True)


yaml.SafeDumper.add_representer(_Hashes, _represent)


@dataclass
class Calibrated(Method):
    """Run each record with settings that were chosen on other records, where there are such.

    Attributes:
        budget: what the settings were chosen for, such as `2x`.
        folds: a mapping for each choice: `method`, its settings, and `records`, the hashes of the records it was made
            on. A cross-fitted method has two, one of each half of the records.
        found: how the settings were chosen, for the reader; `layers` is the depth of the model they are for.
    """

    budget: str = ""
    folds: list[dict[str, Any]] = field(default_factory=list, repr=False)
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folds or not all(
            isinstance(fold, dict) and set(fold) == {"method", "records"} for fold in self.folds
        ):
            raise LazyBenchError("method.folds must be a list of method and records, as match tune=true writes it")
        methods = [fold["method"] for fold in self.folds]
        self._methods = [one if isinstance(one, Method) else build_method(one) for one in methods]  # Hydra may build it
        self.folds = [
            {"method": settings_of(method), "records": list(map(str, fold["records"]))}
            for fold, method in zip(self.folds, self._methods, strict=True)
        ]
        self._hashes = [frozenset(fold["records"]) for fold in self.folds]
        self.repeats = self._methods[0].repeats

    def calibrated_on(self, records: Iterable[Record]) -> int:
        """Return the number of `records` for which there are no settings that were chosen on others."""
        return sum(all(record.hash in hashes for hashes in self._hashes) for record in records)

    def pruning(self, share: float) -> "Calibrated":
        folds = [
            fold | {"method": settings_of(method.pruning(share))}
            for fold, method in zip(self.folds, self._methods, strict=True)
        ]
        return replace(self, budget=f"{self.budget}, pruning {share:.2f}", folds=folds)

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        return self._methods[0].layer_tokens(model, tokens)

    @property
    def appearance(self) -> dict[str, str]:
        return self._methods[0].appearance

    @property
    def keep_1(self) -> Method | None:
        return self._methods[0].keep_1

    def check(self, model: PreTrainedModel) -> None:
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        if self.found.get("layers") not in (None, layers):
            raise LazyBenchError(
                f"method {self.name} was tuned on {self.found.get('model')}, of {self.found['layers']} layers, "
                f"and this model has {layers}: tune it on this one, with match tune=true"
            )
        for method in self._methods:
            method.check(model)

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        for method in self._methods:
            method.prepare(model)

    def session(self, prompt: Prompt, decode: Decoder) -> AbstractContextManager[Any]:
        return self._choose(prompt).session(prompt, decode)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        return self._choose(prompt).generate(prompt, decode, seed)

    def _choose(self, prompt: Prompt) -> Method:
        """Return the first method that was not chosen on the prompt's record; without one, the first."""
        held_out = (
            method
            for method, hashes in zip(self._methods, self._hashes, strict=True)
            if prompt.record.hash not in hashes
        )
        return next(held_out, self._methods[0])
