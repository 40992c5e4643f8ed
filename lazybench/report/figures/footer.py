"""What a figure rests on, in one small line: model, precision, data, records, prompt lengths and device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.labels import data_title, model_title


def about(
    model: str, weights: Collection[str], dtypes: Collection[str], devices: Collection[str], others: Iterable[str] = ()
) -> str:
    """The line, without what is not known.

    Args:
        model: the model's name.
        weights: how its files hold the weights, as `model.loading.weights_format` gives it.
        dtypes: what it computes in.
        devices: what it ran on.
        others: data, records and prompt lengths.
    """
    said = _either(text.removeprefix("GGUF ").removesuffix(", dequantised") for text in weights)
    within = _either(dtypes)
    if said and said != within:
        within = f"{said} weights" + (f", in {within}" if within else "")
    parts = [model_title(model) + (f" ({within})" if within else ""), *others, _either(devices)]
    return "; ".join(part for part in parts if part)


def of_rows(block: Block, rows: Sequence[Row], records: Sequence[int] = ()) -> str:
    """The line of a figure that shows these rows of a block.

    Args:
        block: the runs of one model and data.
        rows: what the figure shows of it.
        records: how many records of each row it shows; empty for all that the method could run.
    """
    runs = [run for row in rows for run in row.runs]
    weights, dtypes, devices = (
        {str(run.environment[key]) for run in runs if run.environment.get(key)}
        for key in ("weights_format", "dtype", "device")
    )
    data = "generated records, not LongBench" if block.generated else data_title(block.called)
    alike = ["dataset", "_id", "prompt_tokens"]  # a generated record has one name at all lengths
    of = [pd.concat([ran(run.records) for run in row.runs]).drop_duplicates(alike) for row in rows]
    every = pd.concat(of).drop_duplicates(alike)
    others = [data, f"n={span(records or map(len, of))}", prompts(every["prompt_tokens"])]
    return about(block.model, weights, dtypes, devices, others)


def prompts(tokens: Iterable[float]) -> str:
    """The lengths of prompts; empty where none is known."""
    known = pd.Series([*tokens], dtype=float).dropna()
    if known.empty:
        return ""
    return f"prompts {known.median():,.0f} tokens (median; max {known.max():,.0f})"


def span(numbers: Iterable[int]) -> str:
    """One number where all are the same, else the least and the most."""
    ordered = sorted(numbers)
    return " to ".join(dict.fromkeys(f"{number:,}" for number in (ordered[0], ordered[-1])))


def _either(texts: Iterable[str]) -> str:
    return " or ".join(sorted(set(texts)))
