"""Trace records in untimed passes: divergences, computed tokens by stage, attention by layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import lazyllm
from lazybench.data import Record
from lazybench.errors import RecordFailure, one_line
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.batches import Question, within_memory
from lazybench.run.divergence import Expected, averaged, kl
from lazybench.run.record_runner import RecordRunner
from lazyllm import LazyLLMError, Stats

_BINS = 200
_SHARES = 101

Row = dict[str, Any]


def trace(runner: RecordRunner, records: Sequence[Record], write: Callable[[Row], None]) -> None:
    """Trace records, and call `write` with the trace of each.

    A trace has `_id`, `dataset`, and `error` where the method cannot run; else
    `kl` and `first_token_kl`: KL(unmodified || method) of the next token in nats, as the mean over the first tokens
    of the unmodified model's answer and of the first alone, averaged over seeds;
    for a timed record of a method with stages, `stages` and `computed`: by step and stage, the fraction of prompt
    tokens that have keys and values in the layers after it (paper, Figure 7);
    for a timed record of the baseline, `attention`: the newest token's attention by layer (paper, Figure 2).
    """
    size = runner.batch_records
    for start in range(0, len(records), size):
        questions: list[Question | RecordFailure] = []
        for record in records[start : start + size]:
            try:
                questions.append(runner.question(runner.job.prompt(record)))
            except RecordFailure as failure:
                questions.append(failure)
        divergences = iter(_divergences(runner, [each for each in questions if isinstance(each, Question)]))
        for record, question in zip(records[start:], questions, strict=False):
            try:
                if isinstance(question, RecordFailure):
                    raise question
                if isinstance(traced := next(divergences), RecordFailure):
                    raise traced
                if runner.job.is_timed(record):
                    traced |= within_memory(question.prompt, partial(_of_timed, runner, question))
            except (RecordFailure, LazyLLMError) as failure:
                traced = {"error": one_line(str(failure))}
            write({"_id": record.id, "dataset": record.dataset, **traced})


def _divergences(runner: RecordRunner, questions: Sequence[Question]) -> list[Row | RecordFailure]:
    """Return the divergence of each question's record, or why there is none."""
    job, rows = runner.job, []
    if job.is_baseline:
        return [{"first_token_kl": 0.0, "kl": 0.0} for _ in questions]
    expected = runner.unmodified.expected(questions)
    forced = {
        (index, seed): question._replace(decode=replace(question.decode, forced=unmodified.tokens), seed=seed)
        for index, (question, unmodified) in enumerate(zip(questions, expected, strict=True))
        if isinstance(unmodified, Expected)
        for seed in range(job.method.repeats)
    }
    outcomes, logits = runner.batches.answer(job.method, [*forced.values()], job.config.trace_tokens)
    by_seed = {key: logits.get(number, outcomes[number]) for number, key in enumerate(forced)}
    for index, unmodified in enumerate(expected):
        own: list[Any] = [unmodified]
        if isinstance(unmodified, Expected):
            own = [by_seed[index, seed] for seed in range(job.method.repeats)]
        failure = next((each for each in own if isinstance(each, RecordFailure)), None)
        rows.append(failure or averaged([kl(unmodified.logits, each) for each in own]))
    return rows


def _of_timed(runner: RecordRunner, question: Question) -> Row:
    """Return what is traced of timed records alone."""
    prompt, decode, _ = question
    if runner.job.is_baseline:
        return {"attention": _attention(prompt, replace(decode, max_new_tokens=1))}
    stats = answer(runner.job.method, prompt, replace(decode, tracing=True), seed=0).stats
    return {} if stats is None or not stats.stages else _progress(stats)


def _progress(stats: Stats) -> dict[str, Any]:
    """Return, by step and stage, the fraction of prompt tokens computed so far in the layer after it."""
    so_far, by_step = [0] * len(stats.stages), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(stats.stages):
            so_far[index] += int((step[layer + 1] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return {"stages": stats.stages, "computed": by_step}


def _attention(prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    # `for_good` as a model with states asks for it; nothing is pruned here.
    for_good = lazyllm.AttentionRanking(for_good=True)
    with lazyllm.enable(decode.model, lazyllm.PruningSchedule(), ranking=for_good, record_importance=True) as lazy:
        decode(prompt.ids)
    importance = torch.stack(lazy.stats.importance).double().cpu()
    layers, tokens = importance.shape
    bins = min(_BINS, tokens)
    bin_of = torch.arange(tokens) * bins // tokens
    binned = torch.zeros(layers, bins, dtype=torch.float64).index_add_(1, bin_of, importance)
    mass = importance.sort(dim=1, descending=True).values.cumsum(1)
    counts = torch.linspace(0, tokens, _SHARES).round().long()
    mass = torch.cat([torch.zeros(layers, 1, dtype=mass.dtype), mass], dim=1)[:, counts].mean(0)
    return {
        "map": [[float(f"{value:.3g}") for value in row] for row in binned.tolist()],
        "sorted_mass": [round(value, 5) for value in mass.tolist()],
    }
