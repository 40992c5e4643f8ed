"""Time methods beside the unmodified model, and finished runs side by side: one answer at a time, on one device."""

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.records import NOTHING_PRUNED
from lazybench.analysis.records import UNMODIFIED as UNMODIFIED_NAME
from lazybench.config import DataConfig, ModelConfig, RunConfig, TimingConfig
from lazybench.data import in_turn
from lazybench.errors import LazyBenchError, RecordFailure, one_line
from lazybench.identity import digest
from lazybench.methods.base import Method, answer
from lazybench.model import environment
from lazybench.model.decoding import Decoder, Question, question_of
from lazybench.run.batches import attempt
from lazybench.run.divergence import UNMODIFIED
from lazybench.run.prepare import Job, prepare
from lazybench.run.resources import Resources
from lazybench.store import writing
from lazybench.store.journal import PREDICTIONS, TIMES, Journal, Rows
from lazybench.store.locks import locked
from lazybench.store.run_folder import RunFolder, read_settings
from lazybench.store.survey import run_folders

NOISE = 0.1  # relative difference up to which two trials of the unmodified model agree
_MORE = 4  # one record in four may be timed again
_WARM_UP_TOKENS = 2


def trial(method: Method, model: PreTrainedModel, question: Question) -> dict[str, Any]:
    """Time one answer of `method`; raises `RecordFailure` where it cannot answer.

    Returns:
        wall times in seconds, from the tokenised prompt until a token is known on the host: `ttft_s` until the first
        new token, `generation_s` until the last, and `decode_step_s`, the mean over the tokens after the first, None
        for an answer of one token; and the number of `new_tokens`.
    """
    decode = Decoder(model, [question])
    attempt([question], partial(answer, method, decode))
    first, last, steps = decode.times[0], decode.times[-1], len(decode.times) - 1
    step = (last - first) / steps if steps else None
    return {"ttft_s": first, "generation_s": last, "decode_step_s": step, "new_tokens": steps + 1}


def is_noisy(first: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    """Return whether two trials of one answer differ by more than `NOISE`: other work slowed one of them down."""
    pairs = [(first[key], last[key]) for key in ("ttft_s", "generation_s")]
    return any(max(pair) > (1 + NOISE) * min(pair) for pair in pairs)


@dataclass(frozen=True)
class Timing:
    """Time the answers of several methods to the same records, each beside the unmodified model's.

    Every method answers a record once, in shuffled order, and the unmodified model first and last: if its two times
    differ by more than `NOISE`, the record is timed again, but at most a quarter of all records are. A method with
    several seeds answers with one of them per record, in turn.
    """

    model: PreTrainedModel
    methods: Mapping[str, Method]  # by name in rows, without the unmodified model
    source: Mapping[str, Any]  # `device`, `threads`, `commit` and `date`, added to each row
    warmup: int  # untimed rounds before the first record

    def time(self, questions: Sequence[Question], timed: Rows, write: Callable[[dict[str, Any]], None]) -> None:
        """Time questions, with a progress bar.

        Args:
            questions: one per record.
            timed: rows of records that earlier starts have timed.
            write: called with each record's row: `_id`, `dataset`, `prompt_tokens`, `seed`, `retries`, `noisy`, and by
                name the `trials` of the unmodified model and of each method that could answer; or an `error` if the
                unmodified model or all methods failed.
        """
        keys = [question.prompt.record.key for question in questions]
        retries = sum(timed[key]["retries"] for key in keys if key in timed)
        left = [number for number, key in enumerate(keys) if key not in timed]
        rounds = self.warmup if left else 0
        for _ in tqdm(range(rounds), desc="warm-up", unit="round", disable=not rounds):
            self._untimed(questions[left[0]])
        with tqdm(total=len(keys), initial=len(keys) - len(left), unit="record", desc="timing") as progress:
            for number in left:
                row = self._row(questions[number], number)
                if row.get("noisy") and retries < len(keys) // _MORE:
                    retries += 1
                    row = self._row(questions[number], number) | {"retries": 1}
                write(row)
                progress.update()

    def _untimed(self, question: Question) -> None:
        """Answer a question's first tokens by every method."""
        short = question._replace(stops=replace(question.stops, max_new_tokens=_WARM_UP_TOKENS))
        for method in (UNMODIFIED, *self.methods.values()):
            with suppress(RecordFailure):  # its timed answer will report the error
                trial(method, self.model, short)

    def _row(self, question: Question, number: int) -> dict[str, Any]:
        record, trials, failures = question.prompt.record, {}, []
        row = {"_id": record.id, "dataset": record.dataset, "prompt_tokens": question.prompt.ids.shape[1]}
        row |= {"seed": number, "trials": {}, "retries": 0, "noisy": False, **self.source}
        if self.model.device.type != "cpu":
            self._untimed(question)  # kernels are chosen and memory is laid out per shape
        names, methods = [*self.methods], {UNMODIFIED_NAME: UNMODIFIED, **self.methods}
        random.Random(f"{record.dataset}/{record.id}").shuffle(names)
        for name in (UNMODIFIED_NAME, *names, UNMODIFIED_NAME):
            try:
                taken = trial(methods[name], self.model, question._replace(seed=number % methods[name].repeats))
            except RecordFailure as failure:
                failures.append(f"{name}: {failure}")
            else:
                trials.setdefault(name, []).append(taken)
        unmodified = trials.get(UNMODIFIED_NAME, ())
        if len(unmodified) < 2 or (names and len(trials) == 1):
            return row | {"error": one_line(failures[-1])}
        return row | {"trials": trials, "noisy": is_noisy(*unmodified)}


def finished_runs(root: Path, resources: Resources) -> list[dict[Path, Job]]:
    """Return the jobs of the finished runs below `root` by folder, a mapping per unmodified model and set of prompts.

    Raises:
        LazyBenchError: there is no finished run, or the code, weights or records of one have changed.
    """
    groups: dict[str, dict[Path, Job]] = {}
    for path in run_folders(root):
        settings, _ = read_settings(path)
        rows, expected = RunFolder(path).rows(PREDICTIONS), sum((settings.get("records_of") or {}).values())
        if not expected or len(rows) < expected:
            print(f"not timed, as it is not finished: {path}")
            continue
        job = prepare(_config(settings, path.parents[3]), resources)
        if job.folder(environment.describe(job.config.model)) != path:
            raise LazyBenchError(f"{path}: its code, weights, records or dtype have changed since: run it again")
        prompts = [settings["data"][key] for key in ("seed", "tokens", "half")]
        shared = repr((path.parent.parent, settings["model"], settings["weights"], prompts))
        groups.setdefault(shared, {})[path] = job
    if not groups:
        raise LazyBenchError(f"runs={root}: no finished run there; make one: lazybench run method=lazyllm task=code")
    return [*groups.values()]


def _config(settings: Mapping[str, Any], root: Path) -> RunConfig:
    """Return the config of a stored run, whose output folder is now `root`."""

    def known(schema: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(schema) if field.name in values}

    sections = {"model": ModelConfig, "data": DataConfig, "timing": TimingConfig}
    values = {name: schema(**known(schema, settings[name])) for name, schema in sections.items()}
    return RunConfig(**{**known(RunConfig, settings), **values, "matched": "mark", "output": str(root)})


def time_together(jobs: Mapping[Path, Job], resources: Resources, records: int, warmup: int) -> Path:
    """Time runs of one model on some of the records that all of them have answered; return the timing run's folder.

    Args:
        jobs: the runs by folder.
        resources: loads the model.
        records: number of records to time, one of each dataset in turn.
        warmup: untimed rounds before the first one.

    Raises:
        LazyBenchError: no record was answered by all, or the folder cannot be written.
    """
    first = next(iter(jobs.values()))
    answered = [
        {key for key, row in RunFolder(path).rows(PREDICTIONS).items() if not row.get("error")} for path in jobs
    ]
    shared = [record for record in first.records if all(record.key in keys for keys in answered)]
    by_dataset = [[record for record in shared if record.dataset == name] for name in first.dataset_configs]
    if not (chosen := in_turn(by_dataset)[:records]):
        raise LazyBenchError(f"the runs of {first.config.model.name} share no answered record: none can be timed")
    described, source = environment.describe(first.config.model), environment.source(first.config.model)
    source["threads"] = torch.get_num_threads()
    names = [f"{path.parent.name}/{path.name}" for path in jobs]
    where = {key: (source | described)[key] for key in ("device", "threads", "dtype", "attention")}
    identity = {"runs": names, "records": [record.key for record in chosen], "warmup": warmup, **where}
    folder = first.method_folder.parent / "times" / digest(identity)
    with locked(folder / ".lock"):
        model = resources.model(first.config.model)
        methods = {}
        for name, job in zip(names, jobs.values(), strict=True):
            job.method.prepare(model)
            if job.method.nothing_pruned is not None:
                methods[NOTHING_PRUNED] = job.method.nothing_pruned
            if not job.is_baseline:
                methods[name] = job.method
        journal = Journal(folder / TIMES)
        journal.load()
        command = {"command": ["time", *sys.argv[2:]], "runs": names, "records": len(chosen)}
        writing.replace(folder / "timing.json", json.dumps({**source, **where, **command}, indent=2) + "\n")
        questions = [question_of(model, first.prompt(record)) for record in chosen]
        Timing(model, methods, source, warmup).time(questions, journal.rows, journal.add)
    return folder
