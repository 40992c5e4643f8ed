"""Figures for a paper: what they show of the numbers, and their size."""

import json
from itertools import product

import numpy as np
import pytest
from report_runs import row, rows_of, stage_traces, write_everything, write_run

from lazybench.analysis.grouping import group
from lazybench.analysis.run_files import find
from lazybench.data.facts import datasets_of, load_facts
from lazybench.report.figures import style
from lazybench.report.figures.drawings import (
    FIGURES,
    figure1,
    figure5,
    figure6,
    figure7,
    speed_against_kl,
)
from lazybench.report.tables import numbers
from lazybench.report.write import write

TASK = ("hotpotqa", "2wikimqa", "musique")
ALL = datasets_of("all", load_facts())


def read(*roots):
    """Return the one block of some runs."""
    runs, warnings = find([*map(str, roots)])
    assert warnings == []
    (block,) = group(runs)
    return block


def draw(figure, *roots):
    with style.styled():
        return figure(read(*roots))


def legend(figure):
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


@pytest.mark.slow
def test_the_papers_figures_are_as_wide_as_a_column_and_have_model_data_and_device_in_the_heading(tmp_path):
    write_everything(tmp_path / "runs", records=2)
    papers = [drawing for drawing in FIGURES if drawing.__name__.startswith("figure")]
    assert len(papers) == 5
    for drawing in papers:
        figure = draw(drawing, tmp_path / "runs")
        width, height = figure.get_size_inches()
        assert (width, height < 9) == (style.COLUMN, True)
        heading = figure.get_suptitle().replace("\n", " ")
        for text in ("Llama 2 7B Chat on LongBench; n=", "prompts 100 tokens (median; max", "NVIDIA A100"):
            assert text in heading, drawing.__name__
    style.save(figure, tmp_path / "figure")
    assert figure.get_suptitle() == ""  # in the PDF, for a paper
    assert {path.suffix for path in tmp_path.glob("figure.*")} == {".png", ".pdf"}


def test_figure_1_counts_the_records_that_were_timed_and_has_the_papers_own_numbers(tmp_path):
    untimed = dict.fromkeys(("ttft_s", "generation_s", "decode_step_s"))
    rows = [line if index % 3 == 0 else line | untimed for index, line in enumerate(rows_of(TASK, 4))]
    write_run(tmp_path, "baseline", rows, model={"name": "mine"})
    figure = draw(figure1, tmp_path)
    assert "; n=4;" in figure.get_suptitle().replace("\n", " ")
    (axes,) = figure.axes
    assert axes.get_yticklabels()[-1].get_text() == "paper: Llama 2 7B, A100"
    assert axes.texts[-1].get_text() == "23%, 21×"


def test_figure_5_has_score_differences_with_intervals_both_ways_of_the_four_largest_tasks(tmp_path):
    write_run(tmp_path, "baseline", rows_of(ALL, 6, seed=2), task="all")
    for number, keep in enumerate((0.3, 0.7)):
        rows = rows_of(ALL, 6, seed=number)
        generator = np.random.default_rng(number)
        for line in rows:
            line["ttft_s"] = line["baseline_ttft_s"] / float(generator.normal(3 - 2 * keep, 0.1))
        write_run(tmp_path, "static_pruning", rows, task="all", digest=f"{number}", method={"keep": keep})
    figure = draw(figure5, tmp_path)
    assert legend(figure) == ["baseline", "static pruning"]
    lines = numbers(read(tmp_path)).query("method != 'baseline' and records == 18").sort_values("ttft_speedup")
    tasks = ("single_doc_qa", "multidoc_qa", "summarization", "fewshot")
    for axes, task in zip(figure.axes, tasks, strict=True):
        points = lines[lines["task"] == task]
        (line,) = axes.containers
        across, up = (np.array(bars.get_segments()) for bars in line.lines[2])  # (points, ends, 2)
        assert np.allclose(across[:, :, 0], points[["ttft_speedup_low", "ttft_speedup_high"]])
        assert np.allclose(up[:, :, 1], points[["score_difference_low", "score_difference_high"]])
        assert np.allclose(up[:, 0, 0], points["ttft_speedup"])
        assert np.allclose(across[:, 0, 1], points["score_difference"])


def test_speed_stands_against_the_geometric_mean_of_kl(tmp_path):
    kl_means = {"static_pruning": 0.04, "lazyllm": 0.01}  # in the order of the tables
    for index, (method, kl) in enumerate(kl_means.items()):
        rows = rows_of(TASK, 4, 2.0 + index)
        kls = [kl * (4 if index % 2 else 0.25) for index in range(len(rows))]
        traces = [{key: line[key] for key in ("_id", "dataset")} for line in rows]
        traces = [line | {"first_token_kl": kl, "kl": kl} for line, kl in zip(traces, kls, strict=True)]
        write_run(tmp_path, method, rows, traces=traces)
    write_run(tmp_path, "random_drop", rows_of(TASK, 4, 2.0))  # without KL
    write_run(tmp_path, "fastkv", rows, traces=traces, task="hotpotqa")  # not of all datasets
    figure = draw(speed_against_kl, tmp_path)
    first, answer = figure.axes
    for axes in (first, answer):
        drawn = {bars.get_label(): bars.lines[0].get_ydata()[0] for bars in axes.containers}
        assert list(drawn.values()) == pytest.approx(list(kl_means.values()))
    speedups = [bars.lines[0].get_xdata()[0] for bars in first.containers]
    assert speedups == pytest.approx([2, 3])
    assert legend(figure) == [*drawn]


@pytest.mark.parametrize("mark", ["", "%"])
def test_figure_6_has_a_line_a_keep_and_ticks_where_the_data_are(mark, tmp_path):
    write_run(tmp_path, "baseline", [row(name, number, score=0.4) for name in TASK for number in range(4)])
    for layer, keep in product((3, 7, 26), (0.5, 0.3)):
        rows, settings = rows_of(TASK, score=keep, seed=layer), {"schedule": f"{layer}{mark}:{keep}"}
        write_run(tmp_path, "lazyllm", rows, digest=f"{layer}-{keep}", method=settings)
    figure = draw(figure6, tmp_path)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["3", "7", "26"]
    assert legend(figure) == ["baseline", "keep 0.5", "keep 0.3"]
    means = [container.lines[0].get_ydata().mean() for container in figure.axes[0].containers]
    assert means == pytest.approx([10, -10], abs=8)


@pytest.mark.slow
def test_figure_7_ends_where_half_still_generate_from_runs_and_from_what_a_report_kept(tmp_path):
    ends = (9, 7, 7, 7, 7, 2, 2, 1)  # steps of each record's generation
    rows = [row("hotpotqa", number, new_tokens=steps) for number, steps in enumerate(ends)]
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", traces=stage_traces(rows))
    write(tmp_path / "out", [read(tmp_path / "runs")], [])
    for path in (tmp_path / "out/records").rglob("*.json"):
        content = json.loads(path.read_text("utf-8"))
        assert content["traces"]["computed"]["living"] == [sum(end > step for end in ends) for step in range(9)]
    new, kept = (draw(figure7, tmp_path / folder) for folder in ("runs", "out/records"))
    for figure in (new, kept):
        (axes,) = figure.axes
        assert [line.get_xdata()[-1] for line in axes.lines[1:]] == [6, 6]  # one of eight generates on
        assert axes.get_title().replace("\n", " ") == "LazyLLM 10:0.7, 20:0.5, n=5 to 8"
    for one, other in zip(new.axes[0].lines, kept.axes[0].lines, strict=True):
        assert np.allclose(one.get_xydata(), other.get_xydata())
