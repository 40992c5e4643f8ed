"""A calibration's settings and all that follows from them, before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lazybench.calibration import budgets
from lazybench.calibration.budgets import SCORE_LOSS, SPEEDUP, Budget
from lazybench.config import HALVES, CalibrateConfig
from lazybench.data import half_of
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError
from lazybench.facts import DatasetFacts, datasets_of, load_facts
from lazybench.jobs.job import RESULTS_VERSION, Sources
from lazybench.methods.lazyllm import parse_importance
from lazybench.prompts import Prompt, PromptBuilder
from lazybench.store import digest
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
        records: the records of both halves.
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
        importance = None if config.importance == _SEARCHED else parse_importance(config.importance)
        if config.data.half is not None:
            raise LazyBenchError(f"data.half={config.data.half}: calibrate splits the records itself: set half=")
        if any(budget.what == SCORE_LOSS for budget in asked) and not config.confirm:
            raise LazyBenchError("budget: a score loss needs scores, which confirm=false leaves out")
        facts, sources = load_facts(config.data.datasets), Sources()
        records = [
            record
            for name in datasets_of(config.task, facts)
            for record in sources.records(name, config.data, config.model)
        ]
        for half in HALVES:
            if not any(half_of(record) == half for record in records):
                raise LazyBenchError(f"the {half} half of the {len(records)} records is empty: raise data.limit")
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

    def folder(self, where: Mapping[str, Any]) -> Path:
        """The calibration's folder on a machine that `environment.describe` described as `where`."""
        config = self.config
        return Path(config.output) / config.model.name / config.data.name / config.task / self._digest(where)

    def _digest(self, where: Mapping[str, Any]) -> str:
        """Of what decides a candidate's harm and what candidates there are: how long to search does not."""
        free = {"output", "minutes", "budget", "speedups", "confirm", "half", "data"}
        rest = {key: value for key, value in self.settings.items() if key not in free}
        rest["model"] = {key: value for key, value in rest["model"].items() if key not in ("name", "path", "device")}
        where = {key: value for key, value in where.items() if key != "commit"}
        facts = {record.dataset: asdict(self.facts[record.dataset]) for record in self.records}
        return digest({**rest, "where": where, "facts": facts, "results_version": RESULTS_VERSION})

    def of_half(self, half: str) -> list[Record]:
        """The records of one half."""
        return [record for record in self.records if half_of(record) == half]

    def other(self, half: str) -> list[Record]:
        """The records of the other half."""
        return [record for record in self.records if half_of(record) != half]

    def in_turns(self, half: str) -> list[Record]:
        """The records of one half, a record of each dataset in turn: any first part of them is like the whole."""
        datasets: dict[str, list[Record]] = {}
        for record in sorted(self.of_half(half), key=lambda record: record.hash):
            datasets.setdefault(record.dataset, []).append(record)
        return list(_in_turns(list(datasets.values())))

    def prompt(self, record: Record) -> Prompt:
        """The record's prompt."""
        return PromptBuilder(self.tokenizer, self.config.model, self.facts[record.dataset]).build(record)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are generated on a prompt."""
        return max(self.facts[record.dataset].max_new_tokens for record in self.records)


def _in_turns(groups: Sequence[Sequence[Record]]) -> Iterator[Record]:
    for turn in zip_longest(*groups):
        yield from (record for record in turn if record is not None)
