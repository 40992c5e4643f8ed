"""A calibration's settings and all that follows from them, before the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lazybench.calibration import budgets
from lazybench.calibration.budgets import SCORE_LOSS, SPEEDUP, Budget
from lazybench.config import HALVES, CalibrateConfig
from lazybench.data import chosen_datasets, half_of
from lazybench.data.facts import DatasetFacts, load_facts
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError
from lazybench.methods.lazyllm import EQ1, parse_importance
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.job import PLACES, RESULTS_VERSION, Sources
from lazybench.store.run_folder import digest
from lazyllm import Importance

_SEARCHED = "search"


@dataclass(frozen=True)
class Plan:
    """What is to be calibrated, and on what.

    Attributes:
        config: the settings.
        budgets: what is asked of the schedules.
        facts: facts by dataset.
        tokenizer: the model's tokenizer.
        records: the records of both halves, in each a record of each dataset in turn: any first part of a half is
            like the whole.
        importance: by what tokens are ranked; None where that is searched, too.
        weights: what tells the model's weights from others.
    """

    config: CalibrateConfig
    budgets: list[Budget]
    facts: Mapping[str, DatasetFacts]
    tokenizer: PreTrainedTokenizerBase
    records: list[Record]
    importance: Importance | None
    weights: str

    @classmethod
    def of(cls, config: CalibrateConfig) -> Plan:
        """Check the settings and find data and weights.

        Raises:
            LazyBenchError: anything about the settings, the data or the model's files that cannot work.
        """
        asked = budgets.parse(config.budget)
        importance = None
        if config.importance != _SEARCHED:
            importance = parse_importance(config.importance, "importance", [EQ1, _SEARCHED])
        if config.data.half is not None:
            raise LazyBenchError(f"data.half={config.data.half}: calibrate splits the records itself: set half=")
        if any(budget.what == SCORE_LOSS for budget in asked) and not config.confirm:
            raise LazyBenchError("budget: a score loss needs scores, which confirm=false leaves out")
        facts, sources = load_facts(config.data.datasets), Sources()
        datasets = chosen_datasets(config.task, config.data, facts)
        met = [sources.records(name, config.data, config.model) for name in datasets]
        records = []
        for half in HALVES:
            found = _in_turns([[record for record in dataset if half_of(record) == half] for dataset in met])
            if not found:
                raise LazyBenchError(f"the {half} half of the {sum(map(len, met))} records is empty: raise data.limit")
            records += found[: config.records]
        tokenizer, weights = sources.tokenizer(config.model), sources.weights(config.model)
        return cls(config, asked, facts, tokenizer, records, importance, weights)

    @property
    def halves(self) -> list[str]:
        """The halves to calibrate on."""
        return list(HALVES) if self.config.half == "cross" else [self.config.half]

    @property
    def speedups(self) -> list[float]:
        """The ideal speedups to search at, increasing."""
        asked = [budget.limit for budget in self.budgets if budget.what == SPEEDUP]
        return sorted({*asked, *self.config.speedups})

    @property
    def settings(self) -> dict[str, Any]:
        """Everything set, and the hashes of the weights and records met."""
        return asdict(self.config) | {"weights": self.weights, "records": fingerprint(self.records)}

    @property
    def slug(self) -> str:
        """The importance in a file's name."""
        return _SEARCHED if self.importance is None else str(self.importance).replace(":", "_").replace(",", "_")

    def folder(self, where: Mapping[str, Any]) -> Path:
        """The folder of calibrations that share what they measure, on a machine that `environment.describe` gave."""
        config = self.config
        return Path(config.output) / config.model.name / config.data.name / config.task / self._digest(where)

    def _digest(self, where: Mapping[str, Any]) -> str:
        """Of what decides a candidate's speed and harm: how long to search, and among what, does not."""
        free = {"output", "minutes", "budget", "speedups", "confirm", "half", "data", "importance"}
        rest = {key: value for key, value in self.settings.items() if key not in free}
        rest["model"] = {key: value for key, value in rest["model"].items() if key not in PLACES}
        where = {key: value for key, value in where.items() if key != "commit"}
        facts = {record.dataset: asdict(self.facts[record.dataset]) for record in self.records}
        return digest({**rest, "where": where, "facts": facts, "results_version": RESULTS_VERSION})

    def of_half(self, half: str) -> list[Record]:
        """The records of one half."""
        return [record for record in self.records if half_of(record) == half]

    def other(self, half: str) -> list[Record]:
        """The records of the other half."""
        return [record for record in self.records if half_of(record) != half]

    def prompt(self, record: Record) -> Prompt:
        """The record's prompt."""
        return PromptBuilder(self.tokenizer, self.config.model, self.facts[record.dataset]).build(record)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are generated on a prompt."""
        return max(self.facts[record.dataset].max_new_tokens for record in self.records)


def _in_turns(datasets: Sequence[Sequence[Record]]) -> list[Record]:
    """A record of each dataset in turn, in the order of their hashes."""
    ordered = [sorted(dataset, key=lambda record: record.hash) for dataset in datasets]
    return [record for turn in zip_longest(*ordered) for record in turn if record is not None]
