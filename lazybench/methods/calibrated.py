"""A method with settings that `lazybench calibrate` or `lazybench match tune=true` found."""

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
    """A method as a config has it."""
    return {"_target_": f"{type(method).__module__}.{type(method).__qualname__}", **asdict(method)}


def config_of(
    head: str, name: str, budget: str, folds: Iterable[tuple[Method, Iterable[Record]]], found: dict[str, Any]
) -> str:
    """The YAML of a calibrated method: its attributes, each fold as its method and records; `head` is a comment."""
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
    """Written in quotes, as some hashes read as numbers to some readers of YAML, and many on a line."""


def _represent(dumper: yaml.SafeDumper, hashes: _Hashes) -> yaml.Node:
    of = [dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"') for value in hashes]
    return yaml.SequenceNode("tag:yaml.org,2002:seq", of, flow_style=True)


yaml.SafeDumper.add_representer(_Hashes, _represent)


@dataclass
class Calibrated(Method):
    """A method as it was calibrated; each record gets settings that were found without it, where there are such."""

    budget: str = ""  # what the settings were to keep to
    # What was found, each with `method`, its settings, and `records`, the hashes of all records that it was found on. A
    # calibration on one half of the records has one; a cross-fitted one has two.
    folds: list[dict[str, Any]] = field(default_factory=list, repr=False)
    found: dict[str, Any] = field(default_factory=dict)  # how, for the reader; `layers` is the depth of its model

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folds or not all(isinstance(of, dict) and of.keys() == {"method", "records"} for of in self.folds):
            raise LazyBenchError("method.folds must be a list of method and records, as calibrate writes it")
        found = [fold["method"] for fold in self.folds]
        self._methods = [of if isinstance(of, Method) else build_method(of) for of in found]  # Hydra may have built it
        self.folds = [
            {"method": settings_of(of), "records": list(map(str, fold["records"]))}
            for fold, of in zip(self.folds, self._methods, strict=True)
        ]
        self._seen = [frozenset(fold["records"]) for fold in self.folds]
        self.repeats = self._methods[0].repeats

    def calibrated_on(self, records: Iterable[Record]) -> int:
        """How many of `records` every fold was calibrated on."""
        return sum(all(record.hash in seen for seen in self._seen) for record in records)

    def pruning(self, share: float) -> "Calibrated":
        """Each fold where it prunes such a share."""
        folds = [
            fold | {"method": settings_of(of.pruning(share))}
            for fold, of in zip(self.folds, self._methods, strict=True)
        ]
        return replace(self, budget=f"{self.budget}, pruning {share:.2f}", folds=folds)

    def layer_tokens(self, model: PreTrainedModel, tokens: int) -> list[int]:
        """Those of the first fold."""
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
                f"method {self.name} was calibrated on {self.found.get('model')}, of {self.found['layers']} layers, "
                f"and this model has {layers}: calibrate it by itself"
            )
        for method in self._methods:
            method.check(model)

    def prepare(self, model: PreTrainedModel) -> None:
        super().prepare(model)
        for method in self._methods:
            method.prepare(model)

    def session(self, prompt: Prompt, decode: Decoder) -> AbstractContextManager[Any]:
        return self._of(prompt).session(prompt, decode)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        return self._of(prompt).generate(prompt, decode, seed)

    def _of(self, prompt: Prompt) -> Method:
        place = next((place for place, seen in enumerate(self._seen) if prompt.record.hash not in seen), 0)
        return self._methods[place]
