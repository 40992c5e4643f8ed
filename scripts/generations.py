"""Whole answers on real records: LazyLLM with some revivals beside full revival and the unmodified model.

For each record and configuration, `--measure kl` compares the next tokens' distributions along the unmodified model's
own answer; `--measure times` takes the times of as many new tokens as asked for, in turn in one process, nothing else
running. Writes a line a record and configuration, and prints means or medians with their 95% intervals over records.
"""

import argparse
import csv
import itertools
import json
import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import PreTrainedModel

from lazybench import config as schema
from lazybench.calibration.harm import Candidate, Harm
from lazybench.config import DataConfig
from lazybench.data import load_facts
from lazybench.methods.lazyllm import EQ1, LazyLLM
from lazybench.model.decoding import Decoder, decoder_for
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.sources import Sources
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazybench.speed.measures import STEPS, steps_column
from lazyllm import Importance, PruningSchedule, few_rows

RESAMPLES = 10_000
SAME_LINEAR = "unmodified, the engine's linear layers"
CPU_SHARE = 0.9  # a pass that got less of wall time x threads was disturbed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="LongBench's files, <dataset>.jsonl")
    parser.add_argument("--measure", choices=("kl", "times"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="CSV to write; what it holds already is not measured")
    parser.add_argument("--length", type=int, default=2048, help="most tokens of a prompt (2048)")
    parser.add_argument("--least", type=int, default=1, help="records with shorter prompts are left out (1)")
    parser.add_argument("--records", type=int, help="records, the datasets in turn (all)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer (16)")
    parser.add_argument("--schedules", nargs="+", default=["33%:0.7,67%:0.5"])
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
    turns = itertools.zip_longest(*(sources.records(name, data, config) for name in files))
    records = [record for turn in turns for record in turn if record is not None]
    prompts = {record.key: PromptBuilder(tokenizer, config, facts[record.dataset]).build(record) for record in records}
    records = [record for record in records if prompts[record.key].ids.shape[1] >= asked.least][: asked.records]
    model = load_model(config)
    layers = model.config.num_hidden_layers
    candidates = [
        Candidate(PruningSchedule.parse(schedule, layers), Importance(**parts))
        for schedule, parts in itertools.product(asked.schedules, asked.importances)
    ]
    rows = list(csv.DictReader(asked.out.open())) if asked.out.exists() else []
    known = {(row["dataset"], row["_id"]) for row in rows}
    harm = Harm(model, lambda record: (prompts[record.key], decoder_for(model, prompts[record.key])), asked.tokens)
    for record in records:
        if (record.dataset, record.id) in known:
            continue
        about = {"dataset": record.dataset, "_id": record.id, "tokens": prompts[record.key].ids.shape[1]}
        if asked.measure == "kl":
            found = []
            for candidate in candidates:
                harmed = harm.of(candidate, record)
                revived = float((harmed.rows - 1).double().mean()) if len(harmed.rows) else ""
                found.append({**candidate.columns, "kl": harmed.kl, "revived": revived})
        else:
            found = times(model, candidates, prompts[record.key], asked.tokens, len(rows))
        rows += [about | row for row in found]
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[-1])
            writer.writeheader()
            writer.writerows(rows)
    show(rows)


def times(
    model: PreTrainedModel, candidates: list[Candidate], prompt: Prompt, tokens: int, seed: int
) -> list[dict[str, object]]:
    """Speedups over the unmodified model, and over it with the engine's way to compute few rows, a row a candidate."""
    decode, config = Decoder(model, tokens), model.config.get_text_config()

    def unmodified(same_linear: bool) -> Pass:
        with few_rows.fast(model) if same_linear else nullcontext():
            return timed(UNMODIFIED, prompt, decode, 0)

    takes = {name: partial(unmodified, name == SAME_LINEAR) for name in ("unmodified", SAME_LINEAR)}
    for candidate in candidates:
        method = LazyLLM("lazyllm", 1, candidate.schedule.spec, candidate.importance.changed or EQ1)
        takes[candidate.name] = partial(timed, method, prompt, decode, 0)
    order = list(takes)
    random.Random(seed).shuffle(order)
    passes = {name: undisturbed(takes[name], model.device, CPU_SHARE) for name in order}
    of_a_token = (
        2 * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads) * model.dtype.itemsize
    )
    whole_kv = prompt.ids.shape[1] * of_a_token * config.num_hidden_layers
    rows = []
    for candidate in candidates:
        row: dict[str, object] = dict(candidate.columns)
        of = passes[candidate.name]
        for base, over in (("unmodified", ""), (SAME_LINEAR, "_over_same_linear")):
            for what in ("ttft", "decode_step", "generation"):
                row[f"{what}_speedup{over}"] = getattr(passes[base], f"{what}_s") / getattr(of, f"{what}_s")
        for first, last in STEPS:
            steps = [done.mean_step_s(first, last) for done in (passes["unmodified"], of)]
            row[steps_column(first, last)] = steps[0] / steps[1] if None not in steps else ""
        row["prompt_kv"] = float(of.output.stats.kv_bytes[0].sum()) / whole_kv
        row["disturbed"] = any(passes[name].disturbed for name in ("unmodified", SAME_LINEAR, candidate.name))
        rows.append(row)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """Print each candidate's numbers; KLs also over those of the first importance with the same schedule."""
    rows = [row for row in rows if str(row.get("disturbed")) != "True"]
    by: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in rows:
        by.setdefault((str(row["schedule"]), str(row["importance"])), []).append(row)
    for (schedule, importance), of in by.items():
        print(f"{schedule} {importance}: n={len(of)}")
        if "kl" in of[0]:
            kl = np.array([float(row["kl"]) for row in of])
            first = next(other for (spec, _), other in by.items() if spec == schedule)
            full = np.array([float(row["kl"]) for row in first])
            revived = fmean(float(row["revived"]) for row in of if row["revived"] != "")
            print(f"  KL {kl.mean():.4f}, {revived:.1f} revived a layer and step; over full revival {ratio(kl, full)}")
            continue
        for name in list(of[0])[5:-1]:
            values = np.array([float(row[name]) for row in of if row[name] != ""])
            if len(values):
                print(f"  {name} {spread(values)}")


def ratio(values: np.ndarray, base: np.ndarray) -> str:
    """The ratio of means with its 95% interval, bootstrapped over records."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1) / base[drawn].mean(axis=1), (0.025, 0.975))
    return f"{values.mean() / base.mean():.3f} ({low:.3f} to {high:.3f})"


def spread(values: np.ndarray) -> str:
    """The mean with its 95% interval, bootstrapped over records."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return f"{values.mean():.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
