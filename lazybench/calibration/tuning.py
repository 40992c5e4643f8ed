"""One rule of tuning for all methods: of settings that are as fast, the least harmful on one half of the records.

It serves the records of the other half, and the other way round, so that none is judged by settings that saw it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.intervals import NEGLIGIBLE, geometric_mean
from lazybench.calibration.search import Harm
from lazybench.data import Record
from lazybench.methods import Method
from lazybench.methods.calibrated import settings_of
from lazybench.model.decoding import Decoder, decoder_for
from lazybench.model.prompts import Prompt
from lazybench.store.journal import Journal, Key
from lazybench.store.run_folder import digest


@dataclass
class Tuning:
    """Measures the harm of settings on records, each pair once, kept in `folder`, a file for each settings.

    Harm is the KL divergence of the next token over the first `answer_tokens` of the unmodified model's answer, as a
    geometric mean over records, in nats. `decides` is what else it depends on.
    """

    model: PreTrainedModel
    prompts: Mapping[Key, Prompt]
    answer_tokens: int
    folder: Path
    decides: Mapping[str, Any]
    bar: tqdm

    def __post_init__(self) -> None:
        self._harm = Harm(self._ask, self.answer_tokens)

    def best(self, trials: Sequence[Method], records: Sequence[Record]) -> tuple[Method, list[dict[str, Any]]]:
        """The least harmful trial, and a row about each: all on the first half of the records, the better half on all.

        Returns:
            the trial; of each `kl`, in nats, and on how many `records`.
        """
        first = records[: math.ceil(len(records) / 2)]
        left = sorted(trials, key=lambda of: self.harm(of, first))[: math.ceil(len(trials) / 2)]
        best = min(left, key=lambda of: self.harm(of, records))
        met = [(of, records if of in left else first) for of in trials]
        return best, [{"kl": self.harm(of, on), "records": len(on), "best": of is best} for of, on in met]

    def harm(self, method: Method, records: Sequence[Record]) -> float:
        """The method's harm on these records."""
        journal = Journal(self.folder / f"{digest({**self.decides, 'method': settings_of(method)})}.jsonl")
        journal.load()
        missing = [of for of in records if journal.rows.get(of.key, {}).get("record") != of.hash]
        if missing:
            method.prepare(self.model)
        for record in missing:
            kl, _ = self._harm.by(method, record, f"method {method.name}")
            journal.add({"dataset": record.dataset, "_id": record.id, "record": record.hash, "kl": kl})
            self.bar.update()
        kls = np.array([journal.rows[record.key]["kl"] for record in records])
        return max(NEGLIGIBLE, geometric_mean(kls).value)

    def _ask(self, record: Record) -> tuple[Prompt, Decoder]:
        prompt = self.prompts[record.key]
        return prompt, decoder_for(self.model, prompt)
