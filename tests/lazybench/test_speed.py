"""`lazybench speed` and models with random weights."""

import re

import pandas as pd
import pytest
import torch


@pytest.fixture
def speed(lazybench, tiny_model, tmp_path):
    """Call `lazybench speed` on the tiny model; returns (exit code, the CSV or None, stderr)."""

    def call(*words: str):
        table = tmp_path / "speed.csv"
        settings = [f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", f"output={table}"]
        settings += [] if any(word.startswith("method") for word in words) else ["method.schedule=[1:0.5,2:0.5]"]
        settings += [] if any(word.startswith("lengths") for word in words) else ["lengths=[64,100]"]
        # Other work on this machine is no part of these tests.
        cpu = [] if any(word.startswith("cpu_share") for word in words) else ["cpu_share=0"]
        code, _, err = lazybench("speed", *settings, "new_tokens=4", "repeats=2", *cpu, *words)
        return code, pd.read_csv(table) if table.exists() else None, err

    return call


def test_each_length_has_a_row_of_consistent_ratios(speed, tmp_path):
    code, table, err = speed()
    assert code == 0, err
    assert table["tokens"].tolist() == [64, 100]
    assert set(table["setting"]) == {"1:0.5,2:0.5"}
    for _, row in table.iterrows():
        for name in (
            "ttft_speedup",
            "efficiency",
            "decode_step_speedup",
            "generation_speedup",
            "ttft_speedup_over_keep_1",
            "decode_step_speedup_over_keep_1",
            "keep_1_generation_speedup",
            "decode_step_1_8_speedup",
        ):
            assert 0 < row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        for name in ("ttft_s", "method_ttft_s"):
            assert row[f"{name}_low"] <= row[f"{name}_p50"] <= row[f"{name}_p90"] <= row[f"{name}_p99"]
            assert row[name] == row[f"{name}_p50"]
        assert row["retaken"] == row["disturbed"] == 0
        assert row["generation_s"] > row["ttft_s"] > 0
        # All three decode steps are among the first eight.
        assert row["decode_step_1_8_speedup"] == pytest.approx(row["decode_step_speedup"], rel=1e-3)
        assert 0 < row["method_memory_mb"] < 10
        assert 0 < row["unmodified_matrix_share"] < 1
    assert {path.name for path in tmp_path.glob("speed.*")} == {"speed.csv", "speed.png", "speed.pdf"}


@pytest.mark.parametrize("method", ["random_drop", "prompt_compression", "fastkv", "specprefill", "snapkv"])
@pytest.mark.slow
def test_methods_of_each_kind_can_be_timed(speed, method):
    settings = ["method.layer=1"] if method == "fastkv" else []
    code, table, err = speed(f"method={method}", *settings, "lengths=[600]")
    assert code == 0, err
    assert table["method"].tolist() == [method]
    assert ("layer=1" in str(table["setting"].iloc[0])) == bool(settings)
    assert ("efficiency" in table) == (method in ("random_drop", "fastkv"))  # which say what they compute
    if method == "snapkv":
        assert table["method_prompt_kv_mb"].iloc[0] == pytest.approx(0.3 * table["prompt_kv_mb"].iloc[0], rel=0.1)


def test_a_shape_keeps_its_name_whatever_its_tokenizer(lazybench, tiny_model, tmp_path):
    table, sizes = tmp_path / "speed.csv", ("hidden_size=32", "intermediate_size=48", "num_hidden_layers=4")
    shape = (*sizes, "num_attention_heads=4", "num_key_value_heads=2", "vocab_size=64")
    words = ["model=llama2_7b_random", *(f"model.outline.{size}" for size in shape), f"model.path={tiny_model}"]
    measured = ["lengths=[64]", "new_tokens=2", "repeats=1", "cpu_share=0", "method.schedule=2:0.5"]
    code, _, err = lazybench("speed", *words, *measured, f"output={table}")
    assert code == 0, err
    assert pd.read_csv(table)["model"].tolist() == ["llama2_7b_random"]


@pytest.mark.slow
def test_a_profile_names_the_operations_on_a_text_of_ones_own(speed, tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 20)
    code, _, err = speed(
        f"text={tmp_path / 'text.txt'}", f"profile={tmp_path / 'deep' / 'profile.txt'}", "lengths=[64]"
    )
    assert code == 0, err
    written = (tmp_path / "deep" / "profile.txt").read_text()
    assert all(title in written for title in ("unmodified, 1 new tokens", "method, 4 new tokens", "aten::"))


def test_what_keys_and_values_take(speed):
    code, table, err = speed("lengths=[900]", "repeats=1")
    assert code == 0, err
    (row,) = table.to_dict("records")
    per_token = 128e-6  # MB a layer
    assert row["prompt_kv_mb"] == pytest.approx(3600 * per_token, rel=1e-4)
    # 450 and 225 tokens go on behind layers 1 and 2; every buffer has room for some more.
    assert 2475 * per_token <= row["method_prompt_kv_mb"] <= (2475 + 4 * 128.5) * per_token
    # Of so few layers the peak is in the first, which both compute whole.
    assert 0 < row["method_memory_mb"] < 1.01 * row["memory_mb"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lengths=[5000]"], "4096"),
        (["lengths=[]"], "lengths=[]"),
        (["text=nowhere.txt"], "nowhere.txt"),
        (["profile=README.md/deeper/profile.txt"], "README.md"),
        (["model.shape={model_type: llama}"], "+model.shape="),
        (["+model.shape={hidden_size: 8}"], "model.shape"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(speed, words, said):
    code, table, err = speed(*words)
    assert code == 2
    assert table is None
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_repeats_that_other_work_disturbed_are_left_out(speed, monkeypatch):
    monkeypatch.setattr("lazybench.model.decoding.time.process_time", lambda: 0.0)
    code, table, err = speed("cpu_share=0.9", "lengths=[64]")
    assert table is None
    assert code == 2
    assert "disturbed each of the 2 repeats" in err.splitlines()[-1]


def test_the_hosts_time_of_each_engine_and_batch(lazybench, monkeypatch):
    for name, value in {"LAYERS": 4, "TOKENS": 20, "WARMUP": 1, "STEPS": 2, "SEQUENCES": (1, 3)}.items():
        monkeypatch.setattr(f"lazybench.speed.host.{name}", value)
    threads = torch.get_num_threads()
    code, out, err = lazybench("speed", "host=true")
    assert code == 0, err
    assert torch.get_num_threads() == threads
    rows = [re.split(r"  +", line) for line in out.splitlines()[-8:]]
    engines = ["unmodified", "nothing pruned", "stages that keep all", "default"]
    assert [row[:2] for row in rows] == [[sequences, engine] for sequences in "13" for engine in engines]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    assert rows[0][3] == rows[4][3] == "1.00"
