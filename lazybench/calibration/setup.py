"""A calibration's settings and all that follows from them, before the model is loaded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import lazyllm
from lazybench.calibration.search import searchable
from lazybench.config import HALVES, CalibrateConfig
from lazybench.data import Record, choose, fingerprint, half_of, load_facts
from lazybench.errors import LazyBenchError
from lazybench.methods.lazyllm import EQ1, NAMED, parse_importance
from lazybench.methods.shared import naming
from lazybench.model.environment import RESULTS_VERSION
from lazybench.model.prompts import Prompt, build_all
from lazybench.run import own_code
from lazybench.run.job import PLACES
from lazybench.run.sources import Sources
from lazybench.store.journal import Key
from lazybench.store.run_folder import digest
from lazyllm import Importance

SPEEDUP, KL, SCORE_LOSS = "speedup", "kl", "score loss"
_NUMBER = r"\s*(\d*\.?\d+)\s*"
_FORMS = {
    SPEEDUP: (rf"speedup\s*>={_NUMBER}x?", "speedup >= {:g}"),
    KL: (rf"kl\s*<={_NUMBER}(?:nats?)?", "KL <= {:g}"),
    SCORE_LOSS: (rf"score[ _]loss\s*<={_NUMBER}%", "score loss <= {:g}%"),
}
_SEARCH = "search"
_SPEEDUPS = (1.5, 2.0, 3.0)  # where a budget of harm picks among speedups, and none are given
_MEASURES = 2  # what a folder keeps of each record and of the model's times: another number where that changes
# Settings that decide neither speed nor harm: how long to search, and among what.
_FREE = ("output", "minutes", "budget", "speedups", "confirm", "half", "data", "importance")


@dataclass(frozen=True)
class Budget:
    """At least so much `speedup`, the ideal one of whole generations, or at most so much of the others.

    These are `kl` (nats) and `score loss` (percent of the unmodified model's score).
    """

    what: str
    limit: float

    def __str__(self) -> str:
        return _FORMS[self.what][1].format(self.limit)

    @property
    def slug(self) -> str:
        return f"{self.what.replace(' ', '_')}_{self.limit:g}"


def parse_budgets(text: str) -> list[Budget]:
    """Budgets with commas between; `LazyBenchError` where one is of another form."""
    found = []
    for part in map(str.strip, text.split(",")):
        read = {what: re.fullmatch(form, part, re.IGNORECASE) for what, (form, _) in _FORMS.items()}
        budget = next((Budget(what, float(of[1])) for what, of in read.items() if of), None)
        if budget is None or (budget.what == SPEEDUP and budget.limit <= 1):
            raise LazyBenchError(
                f"budget={part!r} is no budget, or bounds nothing: give 'speedup >= 2' (above 1), 'KL <= 0.1' or "
                "'score loss <= 1%'"
            )
        found.append(budget)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Setup:
    """What is to be calibrated, and on what."""

    config: CalibrateConfig
    budgets: list[Budget]
    # Those of both halves, in each a record of each dataset in turn: any first part of a half is like the whole.
    records: list[Record]
    prompts: Mapping[Key, Prompt]  # their prompts, without the texts, which nothing here needs
    importance: Importance
    searched: Mapping[str, Sequence[Any]]  # the values to try for parts of it, by name; empty where it is not searched
    weights: str  # what tells the model's weights from others
    left_out: str | None  # one line about the datasets that `all` leaves out; None where it leaves out none

    @classmethod
    def of(cls, config: CalibrateConfig) -> "Setup":
        """Check the settings and find data and weights; `LazyBenchError` for what cannot work."""
        sources = Sources()
        asked, importance, searched = check(config, sources)
        facts = load_facts(config.data.datasets)
        choice = choose(config.task, config.data, facts)
        met = sources.of_each(choice.datasets, config.data, config.model)
        records = []
        for half in HALVES:
            found = in_turns([[record for record in dataset if half_of(record) == half] for dataset in met])
            if not found:
                raise LazyBenchError(f"the {half} half of the {sum(map(len, met))} records is empty: raise data.limit")
            records += found[: config.records]
        tokenizer, weights = sources.tokenizer(config.model), sources.weights(config.model)
        built = build_all(tokenizer, config.model, facts, records)
        prompts = {key: replace(prompt, text="") for key, prompt in built.items()}
        return cls(config, asked, records, prompts, importance, searched, weights, choice.left_out)

    @property
    def halves(self) -> list[str]:
        return list(HALVES) if self.config.half == "cross" else [self.config.half]

    @property
    def speedups(self) -> list[float]:
        """The ideal speedups to search at, increasing."""
        asked = {budget.limit for budget in self.budgets if budget.what == SPEEDUP}
        picked = _SPEEDUPS if any(budget.what != SPEEDUP for budget in self.budgets) else ()
        return sorted({*asked, *(self.config.speedups or picked)})

    @property
    def settings(self) -> dict[str, Any]:
        """Everything set, and the hashes of the weights and records met, and of code that is not LazyBench's."""
        settings = asdict(self.config) | {"weights": self.weights, "records": fingerprint(self.records)}
        made_of = {"importance": self.config.importance, "tokenizer": self.config.model.tokenizer}
        metrics = {prompt.builder.facts.metric for prompt in self.prompts.values()}
        code = own_code.digests(self.importance, made_of, [metric for metric in metrics if "." in metric])
        return settings | ({"code": code} if code else {})

    @property
    def slug(self) -> str:
        ranking = str(self.importance).replace(":", "_").replace(",", "_")
        if not self.searched:
            return ranking
        parts, changed = searchable(self.importance, self.config.answer_tokens > 1), self.importance.changed
        usual = [
            f"{part}_{getattr(self.importance, part)}".lower()
            for part in parts
            if part not in {*self.searched, *changed}
        ]
        return "_".join([_SEARCH, *([ranking] if changed else []), *usual])

    def folder(self, where: Mapping[str, Any]) -> Path:
        """The folder on a machine that `environment.describe` gave, named by all that decides speed and harm."""
        config, decisive = self.config, {key: value for key, value in self.settings.items() if key not in _FREE}
        decisive["model"] = {key: value for key, value in decisive["model"].items() if key not in PLACES}
        decisive["where"] = {key: value for key, value in where.items() if key != "commit"}
        decisive["facts"] = {of.record.dataset: asdict(of.builder.facts) for of in self.prompts.values()}
        decisive |= {"results_version": RESULTS_VERSION, "measures": _MEASURES}
        return Path(config.output, config.model.name, config.data.name, config.task, digest(decisive))

    def of_half(self, half: str) -> list[Record]:
        return [record for record in self.records if half_of(record) == half]

    def other(self, half: str) -> list[Record]:
        return [record for record in self.records if half_of(record) != half]


def check(config: CalibrateConfig, sources: Sources) -> tuple[list[Budget], Importance, dict[str, Sequence[Any]]]:
    """Return the budgets, the importance and what of it is searched, checked against the model's config.

    Raises:
        LazyBenchError: one of them or the reference is none, or does not work on the model.
    """
    asked = parse_budgets(config.budget)
    importance, searched = _importance(config.importance, config.answer_tokens > 1)
    if config.data.half is not None:
        raise LazyBenchError(f"data.half={config.data.half}: calibrate splits the records itself: set half=")
    with naming("reference"):
        reference = lazyllm.enable(sources.skeleton(config.model), config.reference, selection=importance).schedule
    if not reference.pruning:
        raise LazyBenchError("reference= prunes nothing: give layer:keep pairs such as 36%:0.7,70%:0.5")
    return asked, importance, searched


def _importance(value: Any, decoding: bool) -> tuple[Importance, dict[str, Sequence[Any]]]:
    """The importance that a setting describes, and the values to try for the parts that it leaves to the search."""
    given = {_SEARCH: True} if value == _SEARCH else value
    searching = isinstance(given, dict) and given.get(_SEARCH) is True
    if searching:
        given = {part: of for part, of in given.items() if part != _SEARCH}
    importance = parse_importance(given or EQ1, "importance", [*NAMED, _SEARCH])
    parts = searchable(importance, decoding) if searching else {}
    return importance, {part: values for part, values in parts.items() if part not in given}


def in_turns(datasets: Sequence[Sequence[Record]]) -> list[Record]:
    """A record of each dataset in turn, in the order of their hashes."""
    ordered = [sorted(dataset, key=lambda record: record.hash) for dataset in datasets]
    return [record for turn in zip_longest(*ordered) for record in turn if record is not None]
