"""Whole answers on real records: LazyLLM with some revivals beside full revival and the unmodified model.

For each record and configuration, `--measure kl` compares the next tokens' distributions along the unmodified model's
own answer; `--measure times` takes the times of as many new tokens as asked for, in turn in one process, nothing else
running. Writes a line a record and configuration, and prints averages with their 95% intervals over records.
"""

import argparse
import itertools
import json
import random
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import PreTrainedModel

from lazybench import config as schema
from lazybench.analysis.averages import Measure, average, undisturbed
from lazybench.calibration.harm import Candidate, Harm
from lazybench.calibration.setup import in_turns
from lazybench.config import DataConfig
from lazybench.data import Record, load_facts
from lazybench.errors import LazyBenchError
from lazybench.model.decoding import Decoder, decoder_for
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run import timing
from lazybench.run.sources import Sources
from lazybench.run.timing import UNMODIFIED, Pass, timed
from lazybench.speed.measures import STEPS
from lazyllm import Importance, LazyLLMError, PruningSchedule

CPU_SHARE = 0.9  # a pass that got less of wall time x threads was disturbed
TIMES = {"ttft_s": "TTFT", "decode_step_s": "decode step", "generation_s": "whole answer"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="LongBench's files, <dataset>.jsonl")
    parser.add_argument("--measure", choices=("kl", "times"), required=True)
    parser.add_argument("--output", type=Path, required=True, help="CSV to write; what it holds is not measured")
    parser.add_argument("--length", type=int, default=2048, help="most tokens of a prompt (2048)")
    parser.add_argument("--least", type=int, default=1, help="records with shorter prompts are left out (1)")
    parser.add_argument("--records", type=int, help="records, the datasets in turn (all)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer (16)")
    parser.add_argument("--schedules", nargs="+", default=["23%:0.6,50%:0.6"])
    parser.add_argument("--importances", nargs="+", type=json.loads, default=[{}], help='as JSON: {"queries":8}')
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    schema.register()
    with initialize_config_dir(str(schema.CONF), version_base=None):
        words = [f"model.limit={asked.length}", f"model.dtype={asked.dtype}"]
        config = OmegaConf.to_object(compose("speed", words)).model
    facts, sources = load_facts({}), Sources()
    tokenizer, data = sources.tokenizer(config), DataConfig("longbench", "longbench", str(asked.folder))
    files = [name for name in facts if (asked.folder / f"{name}.jsonl").exists()]
    records = in_turns([sources.records(name, data, config) for name in files])
    prompts = {record.key: PromptBuilder(tokenizer, config, facts[record.dataset]).build(record) for record in records}
    records = [record for record in records if prompts[record.key].ids.shape[1] >= asked.least][: asked.records]
    model = load_model(config)
    candidates = [
        Candidate(PruningSchedule.parse(schedule, model.config.num_hidden_layers), Importance(**parts))
        for schedule, parts in itertools.product(asked.schedules, asked.importances)
    ]
    settings = {"limit": asked.length, "dtype": asked.dtype, "new_tokens": asked.tokens}
    measured = resumed(asked.output, asked.measure, settings, candidates)
    known = set(zip(measured["dataset"], measured["_id"], strict=True)) if len(measured) else set()
    harm = Harm(lambda record: (prompts[record.key], decoder_for(model, prompts[record.key])), asked.tokens)
    for turn, record in enumerate(records):
        if record.key in known:
            continue
        if asked.measure == "times":
            found = times(model, candidates, prompts[record.key], asked.tokens, turn)
        else:
            found = kls(harm, candidates, record)
        about = {"dataset": record.dataset, "_id": record.id, "tokens": prompts[record.key].ids.shape[1], **settings}
        measured = pd.concat([measured, pd.DataFrame([about | row for row in found])], ignore_index=True)
        measured.to_csv(asked.output, index=False, float_format="%.6g", lineterminator="\n")
    print(table(measured).to_string(index=False))


def resumed(path: Path, measure: str, settings: dict[str, object], candidates: list[Candidate]) -> pd.DataFrame:
    """What a file holds already.

    Raises:
        LazyBenchError: it is of something else.
    """
    if not path.exists():
        return pd.DataFrame()
    measured = pd.read_csv(path)
    held = {name: list(measured[name].unique()) for name in settings}
    held["measure"] = ["kl" if "kl" in measured else "times"]
    held["candidates"] = sorted(set(zip(measured["schedule"], measured["importance"], strict=True)))
    wanted = {name: [value] for name, value in (settings | {"measure": measure}).items()}
    wanted["candidates"] = sorted({tuple(candidate.columns.values()) for candidate in candidates})
    for name, value in wanted.items():
        if held[name] != value:
            raise LazyBenchError(f"--output {path} holds {name} {held[name]}, not {value}: give another file")
    return measured


def kls(harm: Harm, candidates: list[Candidate], record: Record) -> list[dict[str, object]]:
    """Divergence along the unmodified model's answer, and tokens revived a layer and step, a row a candidate."""
    rows = []
    for candidate in candidates:
        harmed = harm.of(candidate, record)
        revived = float((harmed.rows - 1).double().mean()) if len(harmed.rows) else None
        rows.append({**candidate.columns, "kl": harmed.kl, "revived": revived})
    return rows


def times(
    model: PreTrainedModel, candidates: list[Candidate], prompt: Prompt, tokens: int, turn: int
) -> list[dict[str, object]]:
    """Times of each candidate and of the unmodified model, all in a random order, a row a candidate."""
    decode = Decoder(model, tokens)
    methods = {UNMODIFIED.name: UNMODIFIED} | {candidate.name: candidate.method for candidate in candidates}
    order = list(methods)
    random.Random(turn).shuffle(order)
    passes = {
        name: timing.undisturbed(partial(timed, methods[name], prompt, decode, 0), model.device, CPU_SHARE)
        for name in order
    }
    rows = []
    for candidate in candidates:
        own, unmodified = passes[candidate.name], passes[UNMODIFIED.name]
        columns = seconds(own) | {f"unmodified_{column}": value for column, value in seconds(unmodified).items()}
        kept = own.output.stats.kv_bytes[0]
        # What is stored after prefilling over what the first layer, before which nothing is pruned, takes in every one.
        prompt_kv = float(kept.sum() / (kept[0] * len(kept)))
        disturbed = own.disturbed or unmodified.disturbed
        rows.append({**candidate.columns, **columns, "prompt_kv": prompt_kv, "disturbed": int(disturbed)})
    return rows


def seconds(of: Pass) -> dict[str, float | None]:
    """A pass's times by column."""
    steps = {f"steps_from_{first}_s": of.mean_step_s(first, last) for first, last in STEPS}
    return {column: getattr(of, column) for column in TIMES} | steps


def table(measured: pd.DataFrame) -> pd.DataFrame:
    """A row a schedule and importance: averages over records with their intervals.

    KLs are also divided by those of the first importance with the same schedule, that of full revival if it came first.
    """
    rows = []
    for schedule, of_schedule in measured.groupby("schedule", sort=False):
        first = of_schedule["importance"].iloc[0]
        for importance, of in of_schedule.groupby("importance", sort=False):
            if "kl" in of:
                full = of_schedule.loc[of_schedule["importance"] == first, ["dataset", "_id", "kl"]]
                of = of.merge(full.rename(columns={"kl": "full"}), on=["dataset", "_id"])
                measures = [
                    Measure("kl", "KL", "kl", long_tailed=True),
                    Measure("ratio", "over full revival", "kl", "full", long_tailed=True),
                    Measure("revived", "revived", "revived"),
                ]
            else:
                of, measures = undisturbed(of), speedups()
            row = {"schedule": schedule, "importance": importance, "n": len(of)}
            rows.append(row | {measure.title: shown(of.dropna(subset=[measure.top]), measure) for measure in measures})
    return pd.DataFrame(rows)


def speedups() -> list[Measure]:
    """What times show: speedups over the unmodified model, and the share of the prompt's keys and values."""
    steps = {f"steps_from_{first}_s": f"steps from {first}" for first, _ in STEPS}
    return [
        *(Measure(column, what, f"unmodified_{column}", column) for column, what in (TIMES | steps).items()),
        Measure("prompt_kv", "prompt KV", "prompt_kv"),
    ]


def shown(of: pd.DataFrame, measure: Measure) -> str:
    """The average as text with its interval, or with the range over records where they are too few for that."""
    found = average([[of]], measure)
    if found is None:
        return "-"
    if found.low is not None:
        return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
    each = of[measure.top] / (of[measure.bottom] if measure.bottom else 1)
    return f"{found.value:.3f} [{each.min():.3f} to {each.max():.3f}]"


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    try:
        main()
    except (LazyBenchError, LazyLLMError) as error:
        print(f"generations.py: {error}", file=sys.stderr)
        sys.exit(2)
