"""`lazybench speed` and models with random weights."""

from itertools import count
from types import SimpleNamespace

import pandas as pd
import pytest


@pytest.fixture
def speed(lazybench, tiny_model, tmp_path):
    """Call `lazybench speed` on the tiny model; returns (exit code, the CSV or None, stderr)."""

    def call(*words: str):
        table = tmp_path / "speed.csv"
        settings = {"model.path": tiny_model, "model.name": "tiny", "model.chat": "null", "output": table}
        settings |= {"lengths": "[64,100]", "new_tokens": 4, "repeats": 2}
        if not any(word.startswith("method=") for word in words):
            settings |= {"method.schedule": "[1:0.5,2:0.5]"}
        settings |= dict(word.split("=", 1) for word in words)
        code, _, err = lazybench("speed", *(f"{key}={value}" for key, value in settings.items()))
        return code, pd.read_csv(table) if table.exists() else None, err

    return call


def test_each_length_has_a_row_of_consistent_ratios(speed, tmp_path):
    code, table, err = speed()
    assert code == 0, err
    assert table["tokens"].tolist() == [64, 100]
    assert set(table["setting"]) == {"1:0.5,2:0.5"}
    parts = ("ttft", "decode_step", "generation")
    names = [*(f"{part}_speedup{end}" for part in parts for end in ("", "_over_nothing_pruned"))]
    names += ["ttft_s", "method_ttft_s"]
    for _, row in table.iterrows():
        assert all(0 < row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] for name in names)
        assert row["generation_s"] > row["ttft_s"] > 0
    assert {path.name for path in tmp_path.glob("speed.*")} == {"speed.csv", "speed.png", "speed.pdf"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lengths=[5000]", "4096"),
        ("output=README.md/deeper/speed.csv", "README.md"),
        ("model.shape={model_type: llama}", "+model.shape."),
    ],
)
def test_bad_input_ends_in_one_line(speed, word, message):
    code, table, err = speed(word)
    assert code == 2
    assert table is None
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(("power", "noisy"), [(1, 0), (2, 2)])
def test_repeats_in_which_the_clock_drifts_are_counted(speed, monkeypatch, power, noisy):
    reads = count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(reads) ** power))
    monkeypatch.setattr("lazybench.model.decoding.time", clock)
    monkeypatch.setattr("lazybench.cli.speed.speed_by_length", lambda *_: [])
    code, table, err = speed("lengths=[64]")
    assert code == 0, err
    (row,) = table.to_dict("records")
    assert row["noisy"] == noisy
    assert (row["ttft_s"] == row["decode_step_s"] == 1) == (noisy == 0)
