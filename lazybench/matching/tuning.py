"""Choose settings by cross-fitting: those of least divergence on one half of the records serve the other half."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.intervals import NEGLIGIBLE, geometric_mean
from lazybench.data import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.identity import digest, method_identity
from lazybench.methods import Method
from lazybench.methods.calibrated import settings_of
from lazybench.model.decoding import decoder_for
from lazybench.model.prompts import Prompt
from lazybench.run.divergence import Expected, divergence, expected
from lazybench.store.journal import Journal, Key


@dataclass
class Tuning:
    """Measure the divergence of methods from the unmodified model, once for each method and record.

    Attributes:
        model: the model under test.
        prompts: by record.
        answer_tokens: compare the next tokens over at most this many tokens of the unmodified model's answer.
        folder: keeps the measured values, a JSON Lines file for each method.
        decides: everything else that a value depends on; part of the name of its file.
        bar: advances with each measured record.
    """

    model: PreTrainedModel
    prompts: Mapping[Key, Prompt]
    answer_tokens: int
    folder: Path
    decides: Mapping[str, Any]
    bar: tqdm
    _expected: dict[Key, Expected] = field(default_factory=dict)

    def best(self, trials: Sequence[Method], records: Sequence[Record]) -> tuple[Method, list[dict[str, Any]]]:
        """Return the trial of least divergence and a row about each, by successive halving.

        All trials are measured on the first half of `records`, and the better half of them on all records. A row has
        `kl`, in nats, on how many `records`, and whether it is the `best`.
        """
        first = records[: math.ceil(len(records) / 2)]
        finalists = sorted(trials, key=lambda trial: self.kl(trial, first))[: math.ceil(len(trials) / 2)]
        best = min(finalists, key=lambda trial: self.kl(trial, records))
        rows = []
        for trial in trials:
            measured = records if trial in finalists else first
            rows.append({"kl": self.kl(trial, measured), "records": len(measured), "best": trial is best})
        return best, rows

    def kl(self, method: Method, records: Sequence[Record]) -> float:
        """Return the geometric mean over records of the mean KL(unmodified || method) of the next token, in nats."""
        journal = Journal(
            self.folder / f"{digest({**self.decides, 'method': method_identity(settings_of(method))})}.jsonl"
        )
        journal.load()
        missing = [record for record in records if journal.rows.get(record.key, {}).get("record") != record.hash]
        if missing:
            method.prepare(self.model)
        for record in missing:
            kl = self._measure(method, record)
            journal.add({"dataset": record.dataset, "_id": record.id, "record": record.hash, "kl": kl})
            self.bar.update()
        kls = np.array([journal.rows[record.key]["kl"] for record in records])
        return max(NEGLIGIBLE, geometric_mean(kls).value)

    def _measure(self, method: Method, record: Record) -> float:
        prompt = self.prompts[record.key]
        decode = decoder_for(self.model, prompt)
        try:
            if record.key not in self._expected:
                self._expected[record.key] = expected(prompt, decode, self.answer_tokens)
            kls, _ = divergence(method, prompt, decode, self._expected[record.key])
            kl = float(kls.mean())
            if not kl < math.inf:
                raise RecordFailure("the divergence is not finite")
        except RecordFailure as failure:
            raise LazyBenchError(f"method {method.name} on {record.dataset} {record.id}: {failure}") from failure
        return kl
