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
    names += ["ttft_s", "method_ttft_s", "ideal_speedup"]
    for _, row in table.iterrows():
        assert all(0 < row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] for name in names)
        assert row["generation_s"] > row["ttft_s"] > 0
        assert 0 < row["method_memory_mb"] < 10
    assert {path.name for path in tmp_path.glob("speed.*")} == {"speed.csv", "speed.png", "speed.pdf"}


@pytest.mark.parametrize("method", ["random_drop", "prompt_compression", "fastkv"])
@pytest.mark.slow
def test_methods_of_each_kind_can_be_timed(speed, method):
    settings = ["method.layer=1"] if method == "fastkv" else []
    code, table, err = speed(f"method={method}", *settings, "lengths=[600]")
    assert code == 0, err
    assert table["method"].tolist() == [method]
    assert ("layer=1" in str(table["setting"].iloc[0])) == bool(settings)
    assert ("ideal_speedup" in table) == (method in ("random_drop", "fastkv"))  # which say what they compute


@pytest.mark.slow
def test_a_shape_keeps_its_name_whatever_its_tokenizer(lazybench, tiny_model, tmp_path):
    table, sizes = tmp_path / "speed.csv", ("hidden_size=32", "intermediate_size=48", "num_hidden_layers=4")
    shape = (*sizes, "num_attention_heads=4", "num_key_value_heads=2", "vocab_size=64")
    words = ["model=llama2_7b_random", *(f"model.outline.{size}" for size in shape), f"model.path={tiny_model}"]
    measured = ["lengths=[64]", "new_tokens=2", "repeats=1", "method.schedule=2:0.5"]
    code, _, err = lazybench("speed", *words, *measured, f"output={table}")
    assert code == 0, err
    assert pd.read_csv(table)["model"].tolist() == ["llama2_7b_random"]


def test_the_kv_cache_after_prefill(speed):
    code, table, err = speed("lengths=[900]", "repeats=1")
    assert code == 0, err
    (row,) = table.to_dict("records")
    per_token = 128e-6  # MB a layer
    assert row["prompt_kv_mb"] == pytest.approx(3600 * per_token, rel=1e-4)
    # Layers 1 and 2 keep 450 and 225 tokens; every buffer has some spare room.
    assert 2475 * per_token <= row["method_prompt_kv_mb"] <= (2475 + 4 * 128.5) * per_token
    # With so few layers the peak is in the first one, which is never pruned. Slots of two groups take 8 bytes a token.
    assert 0 < row["method_memory_mb"] < 1.02 * row["memory_mb"]


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
    code, table, err = speed("lengths=[64]")
    assert code == 0, err
    (row,) = table.to_dict("records")
    assert row["noisy"] == noisy
    assert (row["ttft_s"] == row["decode_step_s"] == 1) == (noisy == 0)
