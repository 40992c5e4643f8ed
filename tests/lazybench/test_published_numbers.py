"""What is published: the READMEs' tables are their files', and the files follow from the records beside them."""

from __future__ import annotations

import csv
import json
import re
import runpy
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from scipy.stats import wilcoxon

from lazybench.analysis.labels import setting_of, title_of
from lazybench.analysis.paired import holm
from lazybench.calibration import frontier
from lazybench.calibration.folder import read_records
from lazybench.calibration.frontier import CALIBRATED, DEPTH, KEEPS, STATIC
from lazybench.cli.report import main
from lazybench.data import load_facts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
REPORT = RESULTS / "equal_speed"
RULER = RESULTS / "ruler"
FIGURE6 = RESULTS / "figure6"
CALIBRATION = RESULTS / "calibration_smollm2_135m"
METHODS = {
    "random drop": "random_drop",
    "static pruning": "static_pruning",
    "GemFilter": "gemfilter",
    "FastKV": "fastkv",
    "LazyLLM": "lazyllm",
    "`lazyllm+`": "lazyllm+",
    "calibrated": "lazyllm+_speedup_*",
}
# Methods that no strength brings to a speed.
UNMATCHED = {"unmodified": "baseline", "Selective Context": "Selective Context"}
SECOND = {
    "unmodified": "baseline",
    "static pruning": "static_pruning_3x",
    "GemFilter": "gemfilter_3x",
    "FastKV": "fastkv_3x",
    "`lazyllm+`, nothing revived": "lazyllm+_3x_unrevived",
    "`lazyllm+`": "lazyllm+_3x",
}
TASKS = {
    "single-document QA": "single_doc_qa",
    "multi-document QA": "multidoc_qa",
    "summarization": "summarization",
    "few-shot learning": "fewshot",
    "synthetic": "synthetic",
    "code completion": "code",
}
MEANS = {
    "score": "score",
    "TTFT": "ttft_speedup",
    "decode step": "decode_step_speedup",
    "whole answer": "generation_speedup_equal_length",
    "own answer": "generation_speedup",
    "% of prompt tokens computed": "prompt_computed",
    "KL": "kl",
    "KL of the first token": "first_token_kl",
    "identical tokens (%)": "identical_tokens",
}
SPEED = {
    "TTFT speedup": "ttft_speedup",
    "ideal": "ideal_speedup",
    "efficiency": "efficiency",
    "TTFT over keep = 1": "ttft_speedup_over_keep_1",
    "decode step speedup": "decode_step_speedup",
    "decode step over keep = 1": "decode_step_speedup_over_keep_1",
    "steps 1-8": "decode_step_1_8_speedup",
    "steps 9-32": "decode_step_9_32_speedup",
    "steps 33-": "decode_step_33_on_speedup",
    "generation speedup": "generation_speedup",
}


def tables(heading: str, readme: str = "results/README.md") -> list[list[dict[str, str]]]:
    """A README's tables below a heading, each a list of rows by column; of columns of one name the first counts."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^##|\Z)", (ROOT / readme).read_text("utf-8"), re.S | re.M)
    found = []
    for text in re.findall(r"(?:^\|.*\n)+", section, re.M):
        header, _, *rows = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines())
        found.append([dict(reversed([*zip(header, row, strict=True)])) for row in rows])
    assert all(found)
    return found


def numbers(cell: str) -> list[float]:
    """The numbers of a cell, in order."""
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


def shown(cell: str, values: list[float]) -> None:
    """Assert that a cell shows `values`, each rounded as it is written."""
    written = re.findall(r"[-+]?\d+(?:\.\d+)?", cell)
    assert len(written) == len(values), (cell, values)
    for text, value in zip(written, values, strict=True):
        digits = len(text.partition(".")[2])
        assert float(text) == pytest.approx(round(value, digits), abs=10**-digits * 0.51), (cell, values)


def shown_p(cell: str, value: float) -> None:
    """Assert that a cell shows a p-value, or that it is small."""
    if cell == "< 0.001":
        assert value < 0.001
    else:
        shown(cell, [value])


@cache
def measured() -> dict[tuple[str, str], dict[str, str]]:
    """All numbers of the report's tables by task and label."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in ("table1", "table2", "fidelity"):
        with (REPORT / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault((row["task"], row["label"]), {}).update(row)
    return found


def matched(title: str) -> dict:
    """The settings of a method by its title in a README, such as `static pruning, 3x` or `FastKV, 3x, pooling 15`."""
    name, *words = title.replace(" ", "_").split(",_")
    called = "_".join([METHODS[name.replace("_", " ")], *words])
    (path,) = (RESULTS / "matched/method").glob(f"{called}.yaml")
    return yaml.safe_load(path.read_text("utf-8"))


def label_of(title: str) -> str:
    """The label of a method in the report, by its name and speed in a README."""
    if title in UNMATCHED:
        (label,) = {label for _, label in measured() if label.partition(" scope=")[0] == UNMATCHED[title]}
        return label
    settings = matched(title)
    return f"{title_of(settings['name'])} {setting_of(settings['name'], settings)}"


def test_methods_at_equal_speed_are_the_reports():
    means, by_task, _ = tables("Equal speed")
    report = measured()
    assert {label_of(row["method"]) for row in means} == {label for task, label in report if task == "mean_of_tasks"}
    for row in means:
        of = report["mean_of_tasks", label_of(row["method"])]
        for title in row.keys() - {"method", "pruned"}:
            values = [of.get(MEANS[title] + end) for end in ("", "_low", "_high")]
            shown(row[title], [float(value) for value in values if value])
    assert [row["task"] for row in by_task] == list(TASKS)
    for row in by_task:
        for title in row.keys() - {"task", "records"}:
            of = report[TASKS[row["task"]], label_of(title)]
            shown(row[title], [float(of["score"])])
            assert row["records"] == of["records"]


def test_the_readmes_own_table_is_the_reports():
    (methods,) = tables("LazyLLM and LazyBench", "README.md")
    report = measured()
    for row in methods:
        for title in row.keys() - {"method"}:
            measure, _, speed = title.partition(", ")
            if row[title] != "-":
                label = label_of(row["method"] if row["method"] in UNMATCHED else f"{row['method']}, {speed}")
                shown(row[title], [float(report["mean_of_tasks", label][MEANS[measure]])])


def test_what_is_said_of_two_methods_at_equal_speed_is_the_reports():
    *_, said = tables("Equal speed")
    report = {(row.first, row.second): row for row in pd.read_csv(REPORT / "paired.csv").itertuples()}
    report |= {(second, first): turned(row) for (first, second), row in report.items()}
    pairs = {(label_of(row["method"]), label_of(row["against"])): row for row in said}
    ours = {pair for pair in report if pair[0].startswith("LazyLLM+ ")}
    assert sorted(tuple(sorted(pair)) for pair in pairs) == sorted({tuple(sorted(pair)) for pair in ours})
    for pair, row in pairs.items():
        of = report[pair]
        shown(row["KL, of the other's"], [of.kl_ratio])
        assert numbers(row["lower KL on"]) == [of.records_first_lower_kl, of.kl_records]
        shown_p(row["p"], of.kl_p_holm)
        shown(row["score difference"], [of.score_difference, of.score_difference_low, of.score_difference_high])


def turned(row):
    """A pair of methods, the other one first."""
    return row._replace(
        kl_ratio=1 / row.kl_ratio,
        records_first_lower_kl=row.kl_records - row.records_equal_kl - row.records_first_lower_kl,
        score_difference=-row.score_difference,
        score_difference_low=-row.score_difference_high,
        score_difference_high=-row.score_difference_low,
    )


def test_second_questions_are_their_files():
    script = runpy.run_path(str(ROOT / "scripts/second_turn.py"))
    means, said = tables("Second questions")
    files = {
        title: pd.read_csv(RESULTS / f"second_turn/{TASKS[title]}.csv") for title in {row["task"] for row in means}
    }
    assert len(means) == len(files) * len(SECOND)
    for row in means:
        of = script["table"](files[row["task"]]).astype(str).set_index("method").loc[SECOND[row["method"]]]
        of = of.rename({"seconds to the second answer's first token": "seconds to the first token"})
        for title in row.keys() - {"task", "method"}:
            shown(row[title], numbers(of[title]))
    kl = pd.concat(files.values()).pivot(index=["dataset", "_id"], columns="method", values="kl")
    own = kl[SECOND["`lazyllm+`"]]
    assert len(said) == len(SECOND) - 2
    apart = {row["against"]: own - kl[SECOND[row["against"]]] for row in said}
    adjusted = holm([float(wilcoxon(of, zero_method="zsplit").pvalue) for of in apart.values()])
    for row, p in zip(said, adjusted, strict=True):
        of = apart[row["against"]]
        shown(row["KL, of the other's"], [own.mean() / kl[SECOND[row["against"]]].mean()])
        assert numbers(row["lower KL on"]) == [(of < 0).sum(), len(of)]
        shown_p(row["p"], p)


def test_retrieval_is_what_its_records_say():
    def key(tokens: int, settings: dict) -> tuple:
        ranking = json.dumps([settings.get("importance"), settings.get("pooling")], sort_keys=True)
        return tokens, settings["name"], settings.get("schedule", settings.get("keep")), ranking

    found = {}
    for path in (RULER / "records").rglob("*.json"):
        settings = json.loads(path.read_text("utf-8"))["settings"]
        scores = 100 * pd.read_csv(path.with_suffix(".csv")).groupby("dataset")["score"].mean()
        found[key(settings["data"]["tokens"], settings["method"])] = scores.to_dict() | {"mean": scores.mean()}
    (rows,) = tables("Retrieval by depth and length")
    for row in rows:
        settings = {"name": "baseline"} if row["method"] == "unmodified" else matched(row["method"])
        scores = found.pop(key(int(row["tokens"].replace(",", "")), settings))
        cells = {title.strip("`"): cell for title, cell in row.items()}
        assert cells.keys() - {"tokens", "method"} == scores.keys()
        for title, score in scores.items():
            shown(cells[title], [score])
    assert not found


@pytest.mark.parametrize(("heading", "name"), [("Speed", "speed_cpu.csv"), ("The shape of a 7B model", "speed_7b.csv")])
def test_a_speed_table_is_its_file(heading, name):
    (rows,) = tables(heading)
    file = pd.read_csv(RESULTS / name)
    columns = {title: column for title, column in SPEED.items() if column in file}
    assert [numbers(row["prompt"].replace(",", "")) for row in rows] == [[tokens] for tokens in file["tokens"]]
    for row, (_, of) in zip(rows, file.iterrows(), strict=True):
        assert row.keys() == {"prompt", "new tokens", *columns, "memory reduction"}
        assert numbers(row["new tokens"]) == [of["new_tokens"]]
        for title, column in columns.items():
            shown(row[title], [of[column + end] for end in ("", "_low", "_high")])
        shown(row["memory reduction"], [of["memory_mb"] / of["method_memory_mb"]])


def test_what_choosing_costs_is_its_file():
    (rows,) = tables("What choosing tokens costs")
    file = pd.read_csv(RESULTS / "selection.csv")
    by_schedule = dict(iter(file.groupby("schedule", sort=False)))
    assert [row["schedule"].strip("`") for row in rows] == list(by_schedule)
    for row, of in zip(rows, by_schedule.values(), strict=True):
        assert len(of) == 20
        shown(row["% of prompt computed"], [100 * of["prompt_computed"].mean()])
        cost, speedup = of["select"] / of["whole"], of["whole"] / (of["select"] + of["shorter"])
        for title, ratio in (("choosing, of the whole", cost), ("TTFT speedup", speedup)):
            (cell,) = (cell for name, cell in row.items() if name.startswith(title))
            shown(cell, [ratio.median(), ratio.min(), ratio.max()])


def test_calibrations_in_a_readme_are_their_files():
    (rows,) = tables("Calibrated schedules")
    found = pd.read_csv(CALIBRATION / "frontier.csv")
    found = found[found["half"] == "cross"].to_dict("records")
    kinds = {"`lazyllm+`, calibrated": CALIBRATED, "static pruning, keep scaled": STATIC}
    kinds |= {"default schedule, keeps scaled": KEEPS, "default schedule, depth scaled": DEPTH}
    for row, of in zip(rows, found, strict=True):
        assert numbers(row["ideal speedup"]) == [of["speedup"]]
        assert kinds[row["schedule"]] == of["kind"]
        assert of["schedule"].split(" | ") == 2 * [row["on 30 layers, both halves"].strip("`")]
        shown(row["with what is revived"], [of["speedup_with_revivals"]])
        shown(row["KL"], [of["kl"]])


def test_the_reports_tables_follow_from_its_records(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    assert main([f"runs={REPORT / 'records'}", f"output={tmp_path / 'again'}"]) == 0
    for name in ("table1", "table2", "fidelity"):
        for suffix in ("csv", "md", "tex"):
            file = f"{name}.{suffix}"
            same((tmp_path / "again" / file).read_text("utf-8"), (REPORT / file).read_text("utf-8"))


def same(found: str, expected: str) -> None:
    """Assert that two texts are the same but for their numbers' last digits: machines sum in different orders."""
    number = r"(\d+(?:\.\d+)?)"
    for place, (one, other) in enumerate(zip(re.split(number, found), re.split(number, expected), strict=True)):
        if place % 2:
            digits = min(len(text.partition(".")[2]) for text in (one, other))
            assert float(one) == pytest.approx(float(other), abs=1.01 * 10**-digits if digits else 0)
        else:
            assert one == other


def test_the_scores_by_depth_and_keep_are_those_of_figure_6s_records():
    (rows,) = tables("Where to prune, and how much")
    facts = load_facts()
    scores: dict[str, dict[str, float]] = {}
    for path in sorted((FIGURE6 / "records").rglob("*.json")):
        schedule = json.loads(path.read_text("utf-8"))["settings"]["method"].get("schedule", "unmodified")
        found = pd.read_csv(path.with_suffix(".csv"))
        assert found.groupby("dataset")["score"].count().eq(2).all()
        scores.setdefault(schedule, {}).update(100 * found.groupby("dataset")["score"].mean())
    means = {}
    for schedule, by_dataset in scores.items():
        by_task = pd.Series(by_dataset).groupby(lambda name: facts[name].task).mean()
        assert set(by_task.index) == set(TASKS.values()) - {"summarization"}
        means[schedule] = by_task.mean()
    for row in rows:
        depth = row.pop("one stage after").strip("`")
        shown(row.pop("unmodified"), [means["unmodified"]])
        for title, cell in row.items():
            shown(cell, [means.pop(f"{depth}:{title.removeprefix('keep ')}")])
    assert means.keys() == {"unmodified"}


def test_a_calibrations_table_follows_from_its_records():
    found = frontier.table(read_records(CALIBRATION / "records_kl.csv"))
    text = found.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    same(text, (CALIBRATION / "frontier.csv").read_text("utf-8"))


@pytest.mark.parametrize("report", [REPORT, RULER, FIGURE6])
def test_one_engine_made_all_of_a_report(report):
    commits = {
        line.strip() for path in (report / "records").rglob("*.json") for line in path.open() if '"commit"' in line
    }
    assert len(commits) == 1
    assert "+" not in commits.pop()


def test_whole_answers_are_their_files():
    script = runpy.run_path(str(ROOT / "scripts/generations.py"))
    kinds = ("times_{}.csv", "kl_{}_*.csv")
    for rows, kind in zip(tables("Whole answers"), kinds, strict=True):
        expected = []
        for tokens in (2048, 3500):
            for file in sorted((RESULTS / "generations").glob(kind.format(tokens))):
                found = script["table"](pd.read_csv(file)).astype(str)
                expected += found.assign(prompt=f"{tokens:,}").to_dict("records")
        for row, of in zip(rows, expected, strict=True):
            assert row["prompt"] == of["prompt"]
            assert row["on 30 layers"] == f"`{of['schedule']}`"
            assert numbers(row["bonus"]) == [float(bonus) for bonus in re.findall(r"bonus:([.\d]+)", of["importance"])]
            for title in row.keys() - {"prompt", "on 30 layers", "bonus"}:
                shown(row[title], numbers(of[title]))


def test_the_default_schedules_tables_are_their_files():
    script, place = runpy.run_path(str(ROOT / "scripts/generations.py")), RESULTS / "default_schedule"
    for rows, kind in zip(tables("The default schedule"), ("eq1_2x", "plus_3x"), strict=True):
        kl, times = (
            script["table"](pd.read_csv(place / f"{what}_{kind}.csv")).astype(str).set_index("schedule")
            for what in ("kl", "times")
        )
        assert [row["on 30 layers"].strip("`") for row in rows] == list(kl.index)
        for row in rows:
            of = row["on 30 layers"].strip("`")
            for title in ("n", "KL", "revived"):
                shown(row[title], numbers(kl.loc[of, title]))
            shown(row["TTFT"], numbers(times.loc[of, "TTFT"]))


def test_memory_by_layer_is_its_file():
    (section,) = re.findall(r"^\*\*Memory.*?\n\n", (RESULTS / "README.md").read_text("utf-8"), re.S | re.M)
    file = pd.read_csv(RESULTS / "generations" / "memory_3500.csv")
    whole, pruned = (file[file["pass"] == name] for name in ("unmodified", "method"))
    kv = [of[of["step"] == 0]["kv_mb"] for of in (pruned, whole)]
    share, peak = kv[0].sum() / kv[1].sum(), pruned["peak_mb"].max() / whole["peak_mb"].max()
    last = kv[0].iloc[-1] / kv[1].iloc[-1]
    assert [f"{share:.0%}", f"{last:.0%}", f"{peak:.0%}"] == re.findall(r"\d+%", re.sub("`.*?`", "", section))
