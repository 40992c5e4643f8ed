"""The report's tables: numbers recomputed by hand, and what stands beside them."""

import pandas as pd
import pytest
from report_runs import kl_traces, row, rows_of, timed, times_of, trial, write_run

from lazybench.analysis.blocks import group
from lazybench.analysis.equal_time import equal_time
from lazybench.analysis.labels import title_of
from lazybench.analysis.numbers import numbers
from lazybench.analysis.paired import compare
from lazybench.analysis.records import find
from lazybench.data.dataset_configs import datasets_of, load_dataset_configs, tasks
from lazybench.report import tables
from lazybench.run.summary import scores_table, summarise, times_summary

TASK = ("hotpotqa", "2wikimqa", "musique")
CONFIGS = load_dataset_configs()
EVERY = {task: datasets_of(task, CONFIGS) for task in tasks()}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def block(runs):
    def read():
        (only,) = group(*find([runs]))
        return only

    return read


@pytest.fixture
def values(block):
    """The values of the measures by method and task; those of LazyLLM on `multidoc_qa` without `whole`."""

    def read(whole=False):
        lines = numbers(block()).groupby(["method", "task"])
        every = {key: own.set_index("measure")["value"].to_dict() for key, own in lines}
        return every if whole else every.get(("lazyllm", "multidoc_qa"), {})

    return read


@pytest.fixture
def made(block):
    """The cells of the tables by their names."""

    def read():
        only = block()
        shown = tables.tables(only, numbers(only), compare(only), equal_time(only))
        return {table.name: table.cells for table in shown}

    return read


def test_a_task_is_the_mean_of_its_datasets(runs, values):
    rows = [
        row("hotpotqa", 1, score=1.0, prompt_computed=0.5, identical_tokens=0.5),
        row("hotpotqa", 2, score=0.0, prompt_computed=0.7),
        row("hotpotqa", 3, score=0.2, prompt_computed=0.9),
        *(row("musique", number, score=0.6) for number in (1, 2)),
        *(row("2wikimqa", number, score=score) for number, score in ((1, 0.3), (2, 0.5))),
    ]
    traces = [{"_id": line["_id"], "dataset": line["dataset"], "kl": int(line["_id"][-1]) / 10} for line in rows]
    lazy = "lazyllm/000000000001"
    times = [
        timed("hotpotqa", 1, {lazy: trial(1.0, 4.0)}, trial(2.0, 8.0)),
        timed("hotpotqa", 2, {lazy: trial(3.0, 6.0)}, trial(4.0, 10.0)),
        timed("musique", 1, {lazy: trial(1.0, 2.0, 2)}, trial(2.0, 9.0, 8)),
    ]
    times[0]["trials"]["unmodified"][1] = trial(4.0, 10.0)  # the mean of its two trials is 3 s and 9 s
    write_run(runs, "lazyllm", rows, traces=traces, times=times)
    measured = values()
    assert measured["score"] == pytest.approx((40 + 60 + 40) / 3)
    assert measured["score_difference"] == pytest.approx((40 + 60 + 40) / 3 - 75)
    assert measured["prompt_computed"] == pytest.approx(100 * (0.7 + 0.75 + 0.75) / 3)
    assert measured["kl"] == pytest.approx((0.6 + 0.3 + 0.3) / 7)  # over all records
    assert measured["geometric_kl"] == pytest.approx((0.1**3 * 0.2**3 * 0.3) ** (1 / 7))
    assert measured["identical_tokens"] == pytest.approx(100 * (2.5 / 3 + 2) / 3)
    assert measured["identical_answers"] == pytest.approx(100 * (2 / 3 + 2) / 3)
    # Speedups are of the datasets that were timed.
    assert measured["ttft_speedup"] == pytest.approx((7 / 4 + 2) / 2)
    assert measured["generation_speedup"] == pytest.approx((19 / 10 + 9 / 2) / 2)
    # In musique for 8 tokens 1 s and 7 steps of 1 s.
    assert measured["answer_speedup"] == pytest.approx((19 / 10 + 9 / 8) / 2)
    assert measured["decode_step_speedup"] == pytest.approx((4 / 2 + 1) / 2)


def test_the_unmodified_model_is_not_compared_with_itself(runs, values):
    write_run(runs, "baseline", rows_of(TASK))
    measured = values(whole=True)["baseline", "multidoc_qa"].keys()
    assert {"score", "unmodified_score"} <= measured
    assert not {"score_difference", "identical_answers", "identical_tokens"} & measured


def test_equal_length_needs_no_decode_step_of_an_answer_of_one_token(runs, values):
    subject = "lazyllm/000000000001"
    one_token = timed("hotpotqa", 1, {subject: trial(1.0, 1.0, 1)}, trial(2.0, 2.0, 1))
    too_short = timed("hotpotqa", 2, {subject: trial(1.0, 1.0, 1)}, trial(9.0, 18.0))
    rows = [row("hotpotqa", number) for number in (1, 2)]
    write_run(runs, "lazyllm", rows, task="hotpotqa", times=[one_token, too_short])
    measured = values()
    assert (measured["answer_speedup"], measured["generation_speedup"]) == (2, 10)


def test_the_tables_of_run_and_time_agree_with_the_report(runs, block, values):
    rows = rows_of(TASK, 5)
    for line, reached in zip(rows, [1.0, 0.5, *[0.0] * 13], strict=True):
        line["reached_limit"] = reached
    lazy = "lazyllm/000000000001"
    times = times_of(rows[::2], {lazy: 1.7, "nothing_pruned": 0.9}, noisy=True)
    write_run(runs, "lazyllm", rows, times=times)
    summary, reported = summarise(rows, CONFIGS, times=times)["tasks"]["multidoc_qa"], values()
    keys = ("score", "unmodified_score", "ttft_speedup", "answer_speedup", "decode_step_speedup")
    for key in (*keys, "ttft_speedup_over_nothing_pruned"):
        assert summary[key] == pytest.approx(reported[key], rel=1e-5), key
    assert (summary["at_limit"], summary["timed"], summary["noisy"]) == (1.5, 8, 8)
    text = scores_table(summarise(rows, CONFIGS, times=times))
    assert f"{reported['ttft_speedup']:.2f}x" in text
    assert "generation" not in text  # whole answers are at equal length
    text = times_summary(times, {lazy: "LazyLLM"}, CONFIGS)
    cells = [f"{reported[key]:.2f}x" for key in (*keys[2:], "ttft_speedup_over_nothing_pruned")]
    assert text.splitlines()[2].split() == ["LazyLLM", "8", *cells]
    assert "8 records timed, 8 noisy; at equal length" in text


def test_tables_have_the_papers_form_and_numbers(runs, made):
    names = [name for task in EVERY.values() for name in task]
    speedups = {"lazyllm/a": 2.0, "lazyllm/b": 3.0, "static_pruning/a": 1.5, "mine/a": 2.5}
    for name, digest in [("baseline", "a"), *(subject.split("/") for subject in speedups)]:
        rows = rows_of(names)
        times = times_of(rows, {f"{name}/{digest}": speedups.get(f"{name}/{digest}", 1)})
        method = {"schedule": "5:0.5,10:0.3"} if digest == "b" else {}
        write_run(runs, name, rows, task="all", digest=digest, method=method, times=times, traces=kl_traces(rows))
    cells = made()
    assert [*cells] == ["fidelity", "table1", "table2", "others", "paired"]
    table1 = cells["table1"]
    titles = [*(title_of(task, "task") for task in EVERY), "Macro-average"]
    assert [*dict.fromkeys(table1["Task"])] == titles
    code = table1[table1["Task"] == "Code completion"].set_index("Method")
    lazy = ["LazyLLM, 5:0.5,10:0.3", "LazyLLM, 10:0.7,20:0.5"]
    assert [*code.index] == ["unmodified", "static pruning", *lazy]
    assert code["First token (×)"].map(lambda cell: round(float(cell.strip("*")))).tolist() == [1, 2, 3, 2]
    # The paper states no settings.
    assert code["Paper, Llama 2 7B Chat: Score"].tolist() == ["55.18", "37.51", "53.30", "—"]
    assert code["Paper, Llama 2 7B Chat: First token (×)"].tolist() == ["1.00", "1.84", "1.94", "—"]
    table2 = cells["table2"].set_index(["Task", "Method"])
    assert table2.loc[("Code completion", lazy[0]), "Paper, Llama 2 7B Chat: Generation (×)"] == "1.01"
    assert [*dict.fromkeys(cells["others"]["Method"])] == ["unmodified", *lazy, "mine"]
    fidelity = cells["fidelity"]
    assert [*fidelity["Task"].unique()] == ["Macro-average"]
    assert {"First token (×)", "Whole answer (×)", "KL, mean (nats)"} <= {*fidelity}
    for title in ("Score", "Score less unmodified", "KL, geometric mean (nats)"):
        assert fidelity[title].str.contains("[", regex=False).tolist() == [title == "Score"] + [True] * 4


@pytest.mark.parametrize(
    ("changes", "is_shown"),
    [
        ({"model": {"name": "smollm2_135m"}}, True),
        ({"model": {"name": "smollm2_135m"}, "data": {"source": "lazybench.data.minilongbench.read"}}, True),
        ({"data": {"source": "sample"}}, False),
        ({"name": "mine"}, False),
    ],
)
def test_the_papers_numbers_stand_beside_its_methods_on_longbench(runs, made, changes, is_shown):
    write_run(runs, changes.pop("name", "lazyllm"), rows_of(TASK), **changes)
    cells = made()
    for model in ("Llama 2 7B Chat", "XGen 7B 8k Instruct"):
        assert (f"Paper, {model}: Score" in cells.get("table1", pd.DataFrame())) == is_shown


def test_records_without_references_have_no_score(runs, made):
    rows = [line | {"answers": [], "score": None, "unmodified_score": None} for line in rows_of(TASK)]
    for name in ("lazyllm", "static_pruning"):
        write_run(runs, name, rows, traces=kl_traces(rows))
    cells = made()
    assert [*cells] == ["fidelity", "table2", "paired"]
    assert not any("core" in column for table in cells.values() for column in table)
    assert cells["paired"]["Records"].tolist() == [str(len(rows))]


def test_without_a_run_of_it_the_unmodified_score_is_a_column(runs, made):
    write_run(runs, "lazyllm", rows_of(TASK))
    assert "Unmodified score" in made()["table1"]
    write_run(runs, "baseline", rows_of(TASK))
    assert "Unmodified score" not in made()["table1"]


@pytest.mark.parametrize(("other", "bold"), [(0.2, True), (0.78, False)])
def test_the_best_is_bold_if_its_interval_excludes_the_second(runs, made, other, bold):
    for name, score in {"baseline": 0.95, "lazyllm": 0.8, "static_pruning": other}.items():
        write_run(runs, name, rows_of(["hotpotqa"], 12, score=score), task="hotpotqa")
    scores = made()["table1"].set_index("Method")["Score"]
    assert scores["LazyLLM"].startswith("**") == bold
    assert not scores["unmodified"].startswith("**")


def test_means_are_over_datasets_that_most_rows_have(runs, values):
    data = {"datasets": {"a": _own("desk"), "b": _own("desk"), "c": _own("code"), "alone": _own(None)}}
    data |= {"name": "mine", "source": "my_reader.read", "available": [*"abc", "alone"]}
    for digest, names in {"1": [*"abc", "alone"], "2": [*"abc", "alone"], "3": [*"ab"]}.items():
        for name in names:
            changes = {"task": name, "digest": f"{digest}{name}", "data": data, "method": {"schedule": f"8:0.{digest}"}}
            write_run(runs, "lazyllm", rows_of([name], seed=int(digest)), **changes)
    write_run(runs, "lazyllm+", rows_of([*"abc", "alone"]), task="all", data=data)
    scores = {task: own["score"] for (name, task), own in values(whole=True).items() if name == "lazyllm+"}
    assert scores["mean_of_tasks"] == pytest.approx((scores["desk"] + scores["code"]) / 2)
    assert scores["alone"] != scores["mean_of_tasks"]


def _own(task):
    return {"prompt": "{context}", "max_new_tokens": 8, "metric": "my_metrics.exact"} | ({"task": task} if task else {})


def test_a_mean_of_a_row_that_lacks_a_dataset_is_missing(runs, values):
    for name in ("static_pruning", "random_drop"):
        write_run(runs, name, rows_of(TASK))
    write_run(runs, "lazyllm", rows_of(TASK[:2]), records_of=dict.fromkeys(TASK, 4))
    measured = values(whole=True)
    assert ("lazyllm", "multidoc_qa") not in measured
    assert "score" in measured["random_drop", "multidoc_qa"]


def test_single_stages_beside_others_are_left_to_figure_6(runs, block):
    for name, schedule in (("lazyllm", "8:0.5,20:0.5"), ("lazyllm", "8:0.6"), ("lazyllm+", "8:0.4")):
        write_run(runs, name, rows_of(TASK), digest=schedule, method={"schedule": schedule})
    assert {one.label for one in block().compared} == {"LazyLLM 8:0.5,20:0.5", "LazyLLM+ 8:0.4"}


def test_scores_by_group_are_columns(runs, made):
    datasets = {"mine": {"like": "lcc", "groups": ["easy", "hard"]}}
    rows = [row("mine", number, groups="easy" if number < 4 else "hard", score=number / 8) for number in range(8)]
    write_run(runs, "lazyllm", rows, task="mine", data={"datasets": datasets, "available": ["mine"]})
    (line,) = made()["score_by_group"].to_dict("records")
    assert (line["easy"], line["hard"]) == ("18.75", "68.75")
