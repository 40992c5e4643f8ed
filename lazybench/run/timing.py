"""Time methods beside the unmodified model: one answer at a time, in one process on one device."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.errors import RecordFailure, one_line
from lazybench.methods.base import Method, answer
from lazybench.model.decoding import Decoder, Question
from lazybench.run.batches import attempt
from lazybench.run.divergence import UNMODIFIED

UNMODIFIED_NAME = "unmodified"
NOISE = 0.1  # relative difference up to which two trials of the unmodified model agree
_MORE = 4  # one record in four may be timed again
_WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class Trial:
    """One timed answer: wall times in seconds, from the tokenised prompt until a token is known on the host."""

    ttft_s: float  # until the first new token
    generation_s: float  # until the last one
    decode_step_s: float | None  # mean over the tokens after the first; None for an answer of one token
    new_tokens: int


def trial(method: Method, model: PreTrainedModel, question: Question) -> Trial:
    """Time one answer of `method`; raises `RecordFailure` where it cannot answer."""
    decode = Decoder(model, [question])
    attempt([question], lambda: answer(method, decode))
    first, last, steps = decode.times[0], decode.times[-1], len(decode.times) - 1
    return Trial(first, last, (last - first) / steps if steps else None, len(decode.times))


def is_noisy(first: Trial, last: Trial) -> bool:
    """Return whether two trials of one answer differ by more than `NOISE`: other work slowed one of them down."""
    pairs = ((first.ttft_s, last.ttft_s), (first.generation_s, last.generation_s))
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

    def time(
        self,
        questions: Sequence[Question],
        is_done: Callable[[Question], bool],
        retries: int,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """Time questions, one per record, with a progress bar.

        Args:
            questions: all of a timing run, in order.
            is_done: whether an earlier start has timed a question.
            retries: how many records earlier starts have timed again.
            write: called with each record's row: `_id`, `dataset`, `prompt_tokens`, `seed`, `retries`, `noisy`, and by
                name the `trials` of the unmodified model and of each method that could answer; or an `error` if the
                unmodified model or all methods failed.
        """
        left = [*filter(lambda pair: not is_done(pair[1]), enumerate(questions))]
        if left and self.warmup:
            self._warm_up(left[0][1])
        with tqdm(total=len(questions), initial=len(questions) - len(left), unit="record", desc="timing") as progress:
            for number, question in left:
                row = self._row(question, number)
                if row.get("noisy") and retries < len(questions) // _MORE:
                    retries += 1
                    row = self._row(question, number) | {"retries": 1}
                write(row)
                progress.update()

    def _warm_up(self, question: Question) -> None:
        print(f"warming up: {self.warmup} untimed rounds of the first record", flush=True)
        for _ in tqdm(range(self.warmup), desc="warm-up", unit="round"):
            self._untimed(question)

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
        names = [*self.methods]
        random.Random(f"{record.dataset}/{record.id}").shuffle(names)
        try:
            first = trial(UNMODIFIED, self.model, question)
            for name in names:
                method = self.methods[name]
                try:
                    trials[name] = [trial(method, self.model, question._replace(seed=number % method.repeats))]
                except RecordFailure as failure:
                    failures.append(f"{name}: {failure}")
            last = trial(UNMODIFIED, self.model, question) if trials or not names else first
        except RecordFailure as failure:
            return row | {"error": f"the unmodified model: {one_line(str(failure))}"}
        if failures and not trials:
            return row | {"error": one_line(failures[0])}
        trials = {UNMODIFIED_NAME: [first, last], **trials}
        taken = {name: [asdict(each) for each in own] for name, own in trials.items()}
        return row | {"trials": taken, "noisy": is_noisy(first, last)}
