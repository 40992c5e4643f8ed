"""The report's tables: numbers recomputed by hand, cells that say why they are empty, and what must not be mixed."""

import csv
import json
from statistics import fmean

import pytest
from marks import slow
from report_runs import failed, row, rows_of, stage_traces, write_run

from lazybench.analysis.labels import METHODS, title_of
from lazybench.data.facts import datasets_of, load_facts, tasks
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")
LAZY = "LazyLLM 10:0.7,20:0.5"
EVERY = {task: datasets_of(task, load_facts()) for task in tasks()}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def made(report):
    """Make a report and read its CSV files by name."""

    def make(*words):
        folder = report(*words)
        names = ("table1", "table2", "fidelity")
        return {name: list(csv.DictReader((folder / f"{name}.csv").open(encoding="utf-8"))) for name in names}

    return make


def line(table, label=LAZY, task="multidoc_qa"):
    (row,) = [row for row in table if (row["label"], row["task"]) == (label, task)]
    return row


def cells(text):
    """The first table of a Markdown text: rows of cells, with its task in each row."""
    lines = [line.strip("| ").split(" | ") for line in text.split("\n\n| ")[1].split("\n\n")[0].split("\n")]
    rows = [[cell.strip() for cell in line] for line in lines if ":---" not in line[0]]
    for own, above in zip(rows[1:], rows, strict=False):
        own[:] = [above[0], *own] if len(own) < len(rows[0]) else own
    return rows


def values(one, *keys):
    return [float(one[key]) for key in keys]


def test_a_task_is_the_mean_of_its_datasets(runs, made):
    steps = {"decode_step_s": 0.5, "baseline_decode_step_s": 1.0, "keep_1_decode_step_s": 0.75}
    first = {"score": 1.0, "ttft_s": 1.0, "baseline_ttft_s": 2.0, "prompt_computed": 0.5, "identical_tokens": 0.5}
    second = {"score": 0.0, "ttft_s": 3.0, "baseline_ttft_s": 4.0, "prompt_computed": 0.7}
    rows = [
        row("hotpotqa", 1, **first, **steps),
        row("hotpotqa", 2, **second, **steps),
        row("hotpotqa", 3, score=0.2, ttft_s=2.0, baseline_ttft_s=6.0, prompt_computed=0.9, **steps),
        row("musique", 1, score=0.6, generation_s=2.0, baseline_generation_s=6.0, new_tokens=2, baseline_new_tokens=8),
        row("musique", 2, score=0.6, generation_s=4.0, baseline_generation_s=6.0, new_tokens=4, baseline_new_tokens=8),
        row("2wikimqa", 1, score=0.3),
        row("2wikimqa", 2, score=0.5),
    ]
    traces = [{"_id": f"{name}-{number}", "dataset": name, "kl": number / 10} for name in TASK for number in (1, 2, 3)]
    write_run(runs, "lazyllm", rows, traces=traces)
    tables = made()
    one = line(tables["table1"])
    assert values(one, "score", "ttft_speedup") == pytest.approx([(40 + 60 + 40) / 3, (12 / 6 + 2 + 2) / 3], rel=1e-5)
    assert values(one, "ttft_s") == pytest.approx([(2 + 1 + 1) / 3], rel=1e-5)
    assert values(one, "datasets", "datasets_of_task", "records", "failed", "score_records") == [3, 3, 7, 0, 7]
    assert (one["score_paper"], one["ttft_speedup_paper"]) == ("22.31", "2.34")
    two = line(tables["table2"])
    # Decode steps are 1/3 s but in hotpotqa, and in musique (2 - 1) / 1 and (4 - 1) / 3 s, the baseline's (6 - 2) / 7.
    expected = [100 * (0.7 + 0.75 + 0.75) / 3, (12 / 6 + 1.5 + 1.5) / 3, (2 + 4 / 7 + 1) / 3]
    expected += [(5 / 6 + 2.5 / 2 + 2.5 / 2) / 3, (1.5 + (1 + 1 / 3) / 2 + 1) / 3]
    keys = ("prompt_computed", "generation_speedup", "decode_step_speedup")
    keys += ("generation_speedup_over_keep_1", "decode_step_speedup_over_keep_1")
    # For 4 tokens TTFT and 3 steps; in musique for 8, twice 1 + 7 s in place of the baseline's 12.
    keys += ("generation_speedup_equal_length",)
    expected += [(9 / 10.5 + 12 / 16 + 1.5) / 3]
    assert values(two, *keys) == pytest.approx(expected, rel=1e-5)
    assert (two["prompt_computed_paper"], two["generation_speedup_paper"]) == ("63.94", "1.56")
    three = line(tables["fidelity"])
    expected = [(0.2 + 0.15 + 0.15) / 3, 100 * (2.5 / 3 + 2) / 3, 100 * (2 / 3 + 2) / 3]
    assert values(three, "kl", "identical_tokens", "identical_answers") == pytest.approx(expected, rel=1e-5)


def test_equal_length_needs_no_decode_step_of_an_answer_of_one_token(runs, made):
    one_token = row("hotpotqa", 1, baseline_new_tokens=1, baseline_generation_s=2.0, new_tokens=1, generation_s=1.0)
    too_short = row("hotpotqa", 2, new_tokens=1, generation_s=1.0)
    write_run(runs, "lazyllm", [one_token, too_short], task="hotpotqa")
    two = line(made()["table2"])
    assert values(two, "generation_speedup_equal_length") == [2.0]
    assert two["generation_speedup_equal_length_note"] == "1 of 2 records"


def test_seeds_count_as_one_record_each(runs, made):
    def seeds(*shares):
        return [{"prediction": "answer", "score": 0, "new_tokens": 4, "identical_tokens": share} for share in shares]

    identical = ((1, (0, 0, 0)), (1, (1, 0.75, 0)), (2, (0.5, 0, 0)))
    rows = [row("hotpotqa", number, repeats=seeds(*shares)) for number, shares in identical]
    write_run(runs, "random_drop", rows, task="hotpotqa")
    answers = line(made()["fidelity"], "random drop keep=0.5")
    assert values(answers, "records", "identical_answers") == pytest.approx([2, 100 / 6], rel=1e-5)


def test_missing_numbers_have_a_reason_and_unfinished_runs_no_row(runs, made, tmp_path):
    write_run(runs, "baseline", rows_of(TASK))
    rows = rows_of(TASK)
    write_run(runs, "lazyllm", rows[:2], finished=False, records_of=dict.fromkeys(TASK, 4))
    write_run(runs, "static_pruning", [failed(*one["_id"].split("-")) for one in rows])
    untimed = dict.fromkeys(("baseline_ttft_s", "baseline_generation_s", "baseline_prediction", "identical_tokens"))
    write_run(runs, "prompt_compression", [row("hotpotqa", number, **untimed) for number in range(3)], task="hotpotqa")
    tables = made()
    one = line(tables["table1"])
    assert (one["score"], one["score_note"], one["records"]) == ("", "unfinished: 2 of 12", "2")
    one = line(tables["table1"], "static pruning layer=4 keep=0.5")
    assert (one["score_note"], one["failed"]) == ("failed: 12 of 12", "12")
    one = line(tables["table1"], "prompt compression ratio=0.5")
    assert (one["ttft_speedup_note"], one["score"], one["datasets"]) == ("not timed", "50", "1")
    one = line(tables["fidelity"], "prompt compression ratio=0.5")
    assert (one["kl_note"], one["identical_answers_note"]) == ("not traced", "not paired")
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    assert [row[1] for row in cells(text)] == ["Method", "Baseline", "Prompt Compression"]
    for note in (
        "unfinished: 2 of 12 (LazyLLM)",
        "failed: 12 of 12 (Static Token Pruning)",
        "1 of 3 datasets (Prompt Compression)",
        "TTFT speedup (×): not timed (Prompt Compression)",
        "Prompt Compression: ratio=0.5",
    ):
        assert note in text


def test_failed_and_disturbed_records_are_counted_and_told(runs, made, tmp_path):
    rows = [row("hotpotqa", 1, score=0.4, retaken=3), row("hotpotqa", 2, score=0.8, baseline_ttft_s=None)]
    rows += [row("hotpotqa", 3, score=0, disturbed=True, retaken=3, baseline_ttft_s=90.0)]
    rows += [failed("hotpotqa", 4, "empty prompt")]
    write_run(runs, "lazyllm", rows, task="hotpotqa")
    one = line(made()["table1"])
    assert values(one, "score", "records", "failed", "disturbed", "score_records") == pytest.approx([40, 4, 1, 1, 3])
    assert values(one, "ttft_speedup", "ttft_speedup_records") == [2, 1]
    page = (tmp_path / "report/table1.md").read_text("utf-8")
    for note in ("timed: 1 of 3 records", "1 of 3 datasets", "1 of 4 records failed", "1 of 4 records disturbed"):
        assert f"- {note}\n" in page


def test_runs_that_must_not_be_compared_are_separate_rows_with_a_warning(runs, made, tmp_path):
    write_run(runs, "baseline", rows_of(TASK))
    write_run(runs, "lazyllm", rows_of(TASK), digest="a")
    rows = rows_of(TASK, seed=1)
    rows[0]["baseline_prediction"] = rows[-1]["baseline_prediction"] = "something else"
    write_run(runs, "static_pruning", rows)
    write_run(runs, "lazyllm", rows_of(TASK, seed=1), digest="b", environment={"dtype": "float32"})
    write_run(runs, "lazyllm", rows_of(TASK, 2), digest="c", data={"limit": 2})
    write_run(runs, "lazyllm", rows_of(["hotpotqa"], seed=2), task="hotpotqa", digest="d")
    labels = {one["label"] for one in made()["table1"] if one["label"].startswith("LazyLLM 10")}
    assert labels == {f"{LAZY} #a", f"{LAZY} #d", f"{LAZY} [dtype=float32]", f"{LAZY} [data.limit=2]"}
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    for warning in (
        "the runs differ in dtype (bfloat16; float32): kept as separate rows, not to be compared with each other; rows "
        "that do not name it have bfloat16",
        "the runs have different records of 2wikimqa, musique: 4 a dataset (baseline, ",
        f"{LAZY} #d: another run with this label has other code",
        "beside static pruning layer=4 keep=0.5 differ from those of baseline on 2 of 12",
    ):
        assert warning in text


@pytest.mark.parametrize(
    ("changes", "is_column", "is_own"),
    [
        ({"model": {"name": "smollm2_135m"}}, True, False),
        slow({"data": {"source": "sample"}}, False, False),
        slow({"name": "mine"}, False, False),
        slow({"datasets": TASK[:2]}, True, False),
        ({}, True, True),
    ],
    ids=["model", "generated", "method", "part of a task", "the paper's"],
)
def test_the_papers_values_stand_beside_its_methods_on_longbench(runs, made, tmp_path, changes, is_column, is_own):
    rest = {key: value for key, value in changes.items() if key not in ("name", "datasets")}
    for dataset in changes.get("datasets", TASK):
        write_run(runs, changes.get("name", "lazyllm"), rows_of([dataset]), task=dataset, digest=dataset, **rest)
    made()
    for file, expected in {"table1.md": is_column, "table1.csv": is_own, "report.html": is_column}.items():
        assert ("22.31" in (tmp_path / "report" / file).read_text("utf-8")) == expected, file


@pytest.mark.slow
def test_tables_have_the_papers_form_with_models_side_by_side(runs, made, tmp_path):
    names = [name for task in EVERY.values() for name in task]
    for model in ("llama2_7b", "smollm2_135m"):
        for name in reversed(METHODS):
            settings = {"keep": 0.56} if name == "random_drop" else {}
            write_run(runs, name, rows_of(names), task="all", digest=model, model={"name": model}, method=settings)
    rows = rows_of(EVERY["code"], speedup=3.0, score=0.2)
    second = {"schedule": "5:0.5,10:0.3"}
    write_run(runs, "lazyllm", rows, task="code", digest="b", model={"name": "llama2_7b"}, method=second)
    matched = {"budget": "3x", "folds": [{"method": {"name": "random_drop", "keep": 0.3}, "records": []}]}
    for name, method in {"lazyllm+": {"schedule": "8:0.4"}, "mine": {}, "random_drop": matched}.items():
        write_run(runs, name, rows_of(names), task="all", model={"name": "smollm2_135m"}, method=method)
    write_run(runs, "random_drop", rows_of(names), task="all", model={"name": "llama2_7b"}, method=matched)
    write_run(runs, "baseline", rows_of(names), task="all", data={"name": "other"})
    made()
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    header, *table = cells(text)
    models = ("Llama 2 7B Chat", "SmolLM2-135M-Instruct", "Llama 2 7B, paper")
    assert header == [
        "Task",
        "Method",
        *(f"{model}: {title}" for model in models for title in ("Score", "TTFT speedup (×)")),
    ]
    titles = [*(title_of(task, "task") for task in EVERY), "Macro-average"]
    assert list(dict.fromkeys(row[0] for row in table)) == titles
    # Beside the matched row the other one, of different settings in other models, needs no setting in its name.
    paper = ["Baseline", "Random Token Drop", "Random Token Drop, 3x", "Static Token Pruning", "Prompt Compression"]
    code = [row for row in table if row[0] == "Code completion"]
    assert [row[1] for row in code] == [*paper, "LazyLLM, 10:0.7,20:0.5", "LazyLLM, 5:0.5,10:0.3", "LazyLLM"]
    by_name = {row[1]: row[2:] for row in code}
    assert by_name["Baseline"][1::2] == ["1.00"] * 3
    assert by_name["Baseline"][4:] == ["55.18", "1.00"]
    assert by_name["LazyLLM, 10:0.7,20:0.5"][2:] == ["—", "—", "53.30", "1.94"]
    assert by_name["LazyLLM, 5:0.5,10:0.3"][1:] == ["**3.00**", "—", "—", "—", "—"]
    # Only one of its tasks was run.
    assert ["Macro-average", "LazyLLM, 5:0.5,10:0.3", *["—"] * 6] in table
    assert "- SmolLM2-135M-Instruct: n=" in text
    assert "LazyLLM: 10:0.7,20:0.5" in text
    others = [part for part in text.split("### ") if part.startswith("Table 1. Score and TTFT speedup. Other methods")]
    assert [row[1] for row in cells(others[0])][1:5] == [
        "Baseline",
        "LazyLLM, 10:0.7,20:0.5",
        "LazyLLM, 5:0.5,10:0.3",
        "LazyLLM",
    ]
    assert [row[1] for row in cells(others[0])][5:7] == ["LazyLLM+", "mine"]
    assert "## Llama 2 7B Chat on other\n" in text
    table2 = cells((tmp_path / "report/table2.md").read_text("utf-8"))
    assert [row[-2:] for row in table2 if row[:2] == ["Code completion", "LazyLLM, 10:0.7,20:0.5"]] == [
        ["68.57", "1.01"]
    ]


@pytest.mark.parametrize(("other", "bold"), [(0.2, True), (0.78, False)])
def test_the_best_is_bold_if_its_interval_excludes_the_second(runs, made, tmp_path, other, bold):
    for name, score in {"baseline": 0.95, "lazyllm": 0.8, "static_pruning": other}.items():
        write_run(runs, name, rows_of(["hotpotqa"], 12, score=score), task="hotpotqa")
    one = line(made()["table1"])
    assert float(one["score_low"]) < float(one["score"])
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    scores = {row[1]: row[2] for row in cells(text)}
    assert scores["LazyLLM"].startswith("**") == ("- bold: " in text) == bold
    assert not scores["Baseline"].startswith("**")
    number = scores["LazyLLM"].strip("*")
    assert (f"\\textbf{{{number}}}" in (tmp_path / "report/table1.tex").read_text("utf-8")) == bold
    assert (f"<strong>{number}</strong>" in (tmp_path / "report/report.html").read_text("utf-8")) == bold
    with (tmp_path / "report/intervals.csv").open(encoding="utf-8") as file:
        (own,) = [row for row in csv.DictReader(file) if (row["method"], row["measure"]) == ("lazyllm", "Score")]
    assert values(own, "value", "low", "high") == values(one, "score", "score_low", "score_high")


def test_tasks_are_those_of_the_users_data(runs, made):
    mine = {"prompt": "{context}", "max_new_tokens": 8, "metric": "my_metrics.exact"}
    facts = {"a": mine | {"task": "desk"}, "b": mine | {"task": "desk", "metric": "rouge"}}
    facts |= {"c": mine | {"task": "code"}, "alone": mine}
    data = {"name": "mine", "source": "my_reader.read", "datasets": facts, "has": [*facts]}
    write_run(runs, "lazyllm", rows_of(list(facts)), task="all", data=data)
    table = made()["table1"]
    sizes = {one["task"]: (one["datasets"], one["datasets_of_task"]) for one in table}
    assert sizes == {"desk": ("2", "2"), "code": ("1", "1"), "alone": ("1", "1"), "mean_of_tasks": ("3", "3")}
    mean = fmean(values(line(table, task=task), "score")[0] for task in ("desk", "code"))
    assert values(line(table, task="mean_of_tasks"), "score") == [pytest.approx(mean, rel=1e-5)]


def test_the_summary_of_the_run_itself_agrees(runs, made):
    from lazybench.run.summary import summarise

    rows = json.loads(json.dumps(rows_of(TASK, 5, 1.7)))
    for one in rows:
        if one["dataset"] == "musique":  # which was not timed
            one.update({key: None for key in one if key.endswith("_s")})
    write_run(runs, "lazyllm", rows)
    summary = summarise(rows, load_facts())["tasks"]["multidoc_qa"]
    tables = made()
    keys = ("score", "ttft_speedup", "ttft_speedup_over_keep_1", "generation_speedup", "decode_step_speedup")
    reported = values(line(tables["table1"]) | line(tables["table2"]), *keys)
    assert reported == pytest.approx([summary[key] for key in keys], rel=1e-5)


def test_datasets_that_were_not_timed_are_left_out_of_times_alone(runs, made):
    times = ("ttft_s", "generation_s")
    untimed = dict.fromkeys(engine + time for engine in ("", "baseline_", "keep_1_") for time in times)
    rows = [row("hotpotqa", 0, ttft_s=1.0), row("hotpotqa", 1, **untimed), row("2wikimqa", 0, ttft_s=0.5)]
    write_run(runs, "lazyllm", [*rows, row("musique", 0, **untimed, score=0.2)])
    one = line(made()["table1"])
    assert values(one, "ttft_speedup", "score") == [pytest.approx((2 + 4) / 2), pytest.approx(40)]
    assert (one["ttft_speedup_note"], one["score_note"]) == ("2 of 4 records, 2 of 3 datasets", "")


def test_a_disturbed_pass_with_nothing_pruned_counts_in_no_speedup(runs, made):
    baseline = {"new_tokens": 2, "ttft_s": 1.0, "generation_s": 2.0, "keep_1_ttft_s": 1.5, "keep_1_generation_s": 3.0}
    disturbed = {**baseline, "keep_1_ttft_s": 9.0, "disturbed": True}
    lines = [row("hotpotqa", 0, **baseline), row("hotpotqa", 1, **disturbed)]
    write_run(runs, "baseline", lines, task="hotpotqa")
    times = {"keep_1_ttft_s": None, "keep_1_generation_s": None, "ttft_s": 1.0, "baseline_ttft_s": 2.0}
    rows = [row("hotpotqa", number, **times) for number in range(2)]
    write_run(runs, "lazyllm", rows, task="hotpotqa", environment={"on_engine": True})
    one = next(one for one in made()["table1"] if one["method"] == "lazyllm")
    assert (one["ttft_speedup"], one["ttft_speedup_over_keep_1"]) == ("2", "3")


def test_a_dataset_is_finished_once_the_run_with_most_records_of_it_is(runs, made):
    write_run(runs, "baseline", [row("hotpotqa", 0)], task="hotpotqa", data={"limit": 1})
    rows = [row("hotpotqa", number) for number in range(2)]
    write_run(runs, "baseline", rows, task="hotpotqa", digest="2", finished=False, records_of={"hotpotqa": 4})
    write_run(runs, "lazyllm", rows_of(["hotpotqa"]), task="hotpotqa")
    assert line(made()["table1"], "baseline")["score_note"] == "unfinished: 2 of 4"


def test_only_lazyllms_single_stages_beside_others_of_its_own_are_left_to_figure_6(runs, made):
    for name, schedule in (("lazyllm", "8:0.5,20:0.5"), ("lazyllm", "8:0.6"), ("lazyllm+", "8:0.4")):
        write_run(runs, name, rows_of(TASK), digest=schedule, method={"schedule": schedule})
    labels = {one["label"] for one in made()["table1"]}
    assert labels == {"baseline", "LazyLLM 8:0.5,20:0.5", "LazyLLM+ 8:0.4"}


def test_where_every_method_scores_0_nothing_is_shown(runs, made, tmp_path):
    scores = {"score": 0.0, "baseline_score": 0.0}
    zero = [row(name, number, **scores) for name in EVERY["synthetic"] for number in range(8)]
    write_run(runs, "lazyllm", zero, task="synthetic")
    write_run(runs, "random_drop", [row("hotpotqa", number, score=0.0) for number in range(8)], task="hotpotqa")
    write_run(runs, "static_pruning", [row("hotpotqa", number, score=1.0) for number in range(8)], task="hotpotqa")
    table = made()["table1"]
    one = line(table, task="synthetic")
    assert (one["score"], one["score_low"], one["score_note"]) == ("0", "", "floor")
    assert line(table, "random drop keep=0.5")["score_note"] == ""
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    assert "floor: every method scores 0 on every record of passage_count, passage_retrieval_en" in text


def test_a_paired_run_gives_the_baselines_score_where_no_run_does(runs, made, tmp_path):
    write_run(runs, "lazyllm", [one | {"score": 0.5} for one in rows_of(TASK)])
    write_run(runs, "baseline", rows_of(EVERY["code"]), task="code")
    assert values(line(made()["table1"]), "score_difference") == [-25]
    text = (tmp_path / "report/table1.md").read_text("utf-8")
    assert ["Multi-document QA", "Baseline", "75.00", "1.00"] in [row[:4] for row in cells(text)]
    assert not any("nan" in path.read_text("utf-8") for path in (tmp_path / "report").glob("*.md"))


@pytest.mark.parametrize("name", ["unfinished", "failed"])
def test_a_report_of_no_numbers_says_why(runs, made, tmp_path, name):
    if name == "failed":
        write_run(runs, "lazyllm", [failed("hotpotqa", 1)], task="hotpotqa")
    else:
        write_run(runs, "lazyllm", rows_of(TASK)[:2], finished=False, records_of=dict.fromkeys(TASK, 4))
    assert line(made()["table1"])["score"] == ""
    assert f"{name}: " in (tmp_path / "report/table1.md").read_text("utf-8")


def test_times_are_those_of_runs_that_were_timed_apart(tmp_path, runs, made):
    answered = [row(name, number, score=0.4) for name in TASK for number in (1, 2)]
    write_run(runs, "lazyllm", answered, traces=stage_traces(answered))
    timed = tmp_path / "timed"
    quiet = {"device": "a quiet machine", "threads": 8}
    faster = [row(name, 1, score=0.9, baseline_ttft_s=5.0) for name in TASK]
    write_run(timed, "lazyllm", faster, environment=quiet, finished=False)
    one = line(made(f"times={timed}")["table1"])
    assert values(one, "score", "ttft_speedup") == [40, 5]
    runs.rename(tmp_path / "answered")
    (tmp_path / "report/records").rename(runs)
    for words in ((), (f"times={runs}",)):  # of its own records, whose times have a machine of their own
        assert line(made(*words)["table1"]) == one
        assert "times are from other runs: commit abc" in (tmp_path / "report/table1.md").read_text("utf-8")


def test_a_record_that_was_timed_twice_is_refused(tmp_path, runs, made):
    timed, rows = tmp_path / "timed", [row(name, 1) for name in TASK]
    write_run(runs, "lazyllm", rows)
    for digest in ("0", "1"):
        write_run(timed, "lazyllm", rows, digest=digest)
    with pytest.raises(LazyBenchError, match="was timed twice"):
        made(f"times={timed}")
