"""Which runs make a block, a row, or neither; and whose times a block has."""

import json

import pytest
from report_runs import failed, kl_traces, row, rows_of, times_of, trial, write_run, write_times

from lazybench.analysis.blocks import group
from lazybench.analysis.records import find
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")
LAZY = "LazyLLM 10:0.7,20:0.5"


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def blocks(runs):
    return lambda: group(*find([runs]))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"environment": {"dtype": "float32"}}, "float32"),
        ({"environment": {"weights_format": "GGUF Q4_K_M"}}, "GGUF Q4_K_M"),
        ({"environment": {"generation_config": {"repetition_penalty": 1.1}}}, "repetition_penalty=1.1"),
        ({"environment": {"attention": "eager"}}, "attention=eager"),
        ({"model": {"limit": 1000}}, "prompts up to 1,000 tokens"),
        ({"model": {"template": {"enable_thinking": False}}}, "template enable_thinking=False"),
        ({"data": {"limit": 2}}, "data.limit=2"),
        ({"records": "0" * 64}, "records of multidoc_qa=12 (00000000)"),
        ({"method": {"_target_": "mine.Mine"}}, "class of lazyllm=Mine"),
    ],
)
def test_other_conditions_make_another_block_with_its_own_heading(runs, blocks, changes, shown):
    for name in ("baseline", "lazyllm"):
        write_run(runs, name, rows_of(TASK))
    write_run(runs, "lazyllm", rows_of(TASK, seed=1), digest="2", **changes)
    both = blocks()
    assert sorted(len(block.rows) for block in both) == [1, 2]
    other = next(block for block in both if len(block.rows) == 1)
    assert shown in other.conditions
    assert len({block.conditions for block in both}) == len({block.stem for block in both}) == 2
    assert all(row.label in ("unmodified", LAZY) for block in both for row in block.rows)


def test_neither_device_nor_commit_nor_versions_part_runs(runs, blocks):
    write_run(runs, "baseline", rows_of(TASK))
    rows = [line | {"device": "another", "commit": "def", "date": "2026-12-01"} for line in rows_of(TASK)]
    write_run(runs, "lazyllm", rows, environment={"versions": {"torch": "3.0"}})
    (block,) = blocks()
    assert [row.name for row in block.rows] == ["unmodified", "LazyLLM"]


def test_the_same_row_with_different_answers_is_refused_with_both_folders(runs, blocks, report, capsys):
    rows = rows_of(TASK)
    folders = [write_run(runs, "lazyllm", rows), write_run(runs, "lazyllm", rows[:4], digest="2", task="hotpotqa")]
    (block,) = blocks()  # the same answers are one row
    assert [len(row.records) for row in block.rows] == [12]
    lines = [json.dumps(line | {"prediction": "other"}) + "\n" for line in rows[:1]]
    (folders[1] / "predictions.jsonl").write_text("".join(lines))
    with pytest.raises(LazyBenchError) as error:
        report()
    assert all(str(folder) in str(error.value) for folder in folders)
    assert "hotpotqa-0" in str(error.value)
    assert "\n" not in str(error.value)


def test_runs_on_different_datasets_are_one_row_and_an_answer_replaces_a_failure(runs, blocks):
    write_run(runs, "lazyllm", rows_of(TASK[:1]), task=TASK[0])
    expected = {TASK[1]: 4, TASK[2]: 1}
    write_run(runs, "lazyllm", [*rows_of(TASK[1:2]), failed(TASK[2], 0)], digest="2", records_of=expected)
    write_run(runs, "lazyllm", [row(TASK[2], 0)], digest="3", task=TASK[2], traces=kl_traces([row(TASK[2], 0)]))
    (block,) = blocks()
    (only,) = block.rows
    assert len(only.runs) == 3
    assert (only.records["error"] == "").all()
    assert only.records["kl"].notna().sum() == 1


def speedups(block):
    """By name of the rows, the mean speedup of their timed records; None for a row without times."""
    means = {}
    for one in block.rows:
        timed = one.records.dropna(subset="ttft_s")
        means[one.name] = round((timed["unmodified_ttft_s"] / timed["ttft_s"]).mean()) if len(timed) else None
    return means


@pytest.fixture
def timed_apart(runs):
    """Two methods, each timed by its own run on a device of its own."""
    rows = rows_of(TASK)
    write_run(runs, "baseline", rows)
    for number, name in enumerate(("lazyllm", "static_pruning")):
        times = times_of(rows, {f"{name}/1": 2.0 + number}, device=f"device {number}")
        write_run(runs, name, rows, digest="1", times=times)
    return rows


def test_times_of_several_devices_are_in_no_column(timed_apart, runs, blocks):
    (block,) = blocks()
    assert speedups(block) == {"unmodified": None, "static pruning": None, "LazyLLM": None}
    assert block.notes()[0].startswith("No speedups")
    for name in ("lazyllm", "static_pruning"):
        file = runs / "llama2_7b/longbench" / name / "1/times.jsonl"
        file.write_text(file.read_text().replace("device 0", "device 1"))
    (block,) = blocks()
    assert speedups(block) == {"unmodified": 1, "static pruning": 3, "LazyLLM": 2}
    assert "each run's own (2026-11-29) on device 1, 1 thread; 12 records, 0 noisy" in block.notes()[0]


def test_the_newest_timing_run_that_times_most_rows_gives_all_times(timed_apart, runs, blocks):
    both = {"lazyllm/1": 4.0, "static_pruning/1": 5.0}
    write_times(runs, times_of(timed_apart, {"lazyllm/1": 9.0}, date="2026-12-09"), digest="part")
    (block,) = blocks()
    assert set(speedups(block).values()) == {None}  # one of two is not most
    write_times(runs, times_of(timed_apart, both, date="2026-12-01"), digest="b")
    newer = {name: speedup + 2 for name, speedup in both.items()}
    write_times(runs, times_of(timed_apart[:8], newer, date="2026-12-02", noisy=True), digest="a")
    mixed = times_of(timed_apart, both, date="2026-12-03")
    write_times(runs, [mixed[0] | {"device": "another"}, *mixed[1:]], digest="mixed")
    (block,) = blocks()
    assert speedups(block) == {"unmodified": 1, "static pruning": 7, "LazyLLM": 6}
    assert (
        "one timing run (2026-12-02) on NVIDIA A100, 1 thread; 8 records, 8 noisy; at equal length" in block.notes()[0]
    )


def test_how_much_first_tokens_vary_is_measured_at_equal_length(runs, blocks):
    rows = rows_of(TASK)
    for digest, noise in {"even": 0.0, "noisy": 0.2}.items():
        times = times_of(rows, {f"lazyllm/{digest}": 2.0})
        for number, line in enumerate(times):
            tokens = line["prompt_tokens"]
            seconds = (tokens / 1000 + (tokens / 1000) ** 2) * (1 + noise * (-1) ** number)
            line["trials"]["unmodified"] = [trial(seconds, 2 * seconds)] * 2
        write_run(runs, "lazyllm", rows, digest=digest, times=times, model={"name": digest})
    even, noisy = (block.notes()[0] for block in blocks())
    assert "varies by 0.0%" in even
    assert 15 < float(noisy.partition("varies by ")[2].partition("%")[0]) < 30


def test_at_most_five_notes_list_missing_numbers_and_settings(runs, blocks):
    write_run(runs, "baseline", rows_of(TASK))
    write_run(runs, "lazyllm", [*rows_of(TASK)[:-1], failed("musique", 3)])
    write_run(runs, "random_drop", rows_of(TASK)[:7], records_of=dict.fromkeys(TASK, 4))
    write_run(runs, "static_pruning", rows_of([*TASK, "lcc"]), task="all", records_of=dict.fromkeys([*TASK, "lcc"], 4))
    fold = {"method": {"name": "gemfilter", "layer": 3}, "records": ["a"]}
    write_run(runs, "gemfilter", rows_of(TASK), method={"speedup": "2x", "folds": [fold]})
    (block,) = blocks()
    notes = "\n".join(block.notes())
    assert len(block.notes()) <= 5
    for text in (
        "LazyLLM (1 failed)",
        "random drop (7 of 12 records, without 2wikimqa, musique)",
        "In no table, as most methods lack them: lcc",
        "static pruning: layer=4 keep=0.5",
        "GemFilter, 2x: layer=3; found on 1 records",
    ):
        assert text in notes


@pytest.mark.parametrize("damage", ["{", "model: {}", ""])
def test_a_run_that_cannot_be_read_is_named(runs, blocks, damage):
    folder = write_run(runs, "lazyllm", rows_of(TASK))
    (folder / "config.yaml").write_text(damage)
    with pytest.raises(LazyBenchError, match=f"{folder} cannot be read, move it away: "):
        blocks()
