"""Figures for a paper: what they show of the numbers, and their size."""

from itertools import product

import numpy as np
import pytest
from report_runs import kl_traces, row, rows_of, stage_traces, times_of, write_run, write_times

from lazybench.analysis.blocks import group
from lazybench.analysis.numbers import numbers, overall, wide
from lazybench.analysis.records import find
from lazybench.data.dataset_configs import datasets_of, load_dataset_configs
from lazybench.report.figures import style
from lazybench.report.figures.drawings import figure1, figure5, figure6, figure7, line_styles, speed_against_kl

TASK = ("hotpotqa", "2wikimqa", "musique")
ALL = datasets_of("all", load_dataset_configs())


def draw(figure, root):
    blocks = group(*find([root]))
    values = [numbers(block) for block in blocks]
    styles = line_styles(blocks)
    with style.styled():
        return figure(blocks, values, styles) if figure is speed_against_kl else figure(blocks[0], values[0], styles)


def legend(figure):
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


def write_methods(root, names=ALL, records=6, **changes):
    """Write two methods, one of them at two strengths, and a timing run."""
    settings = {
        "lazyllm/a": {"schedule": "10:0.5"},
        "static_pruning/a": {"keep": 0.3},
        "static_pruning/b": {"keep": 0.7},
    }
    for number, (subject, method) in enumerate(settings.items()):
        name, digest = subject.split("/")
        rows = rows_of(names, records, seed=number)
        traces = kl_traces(rows, 0.01 * (number + 1), number)
        write_run(root, name, rows, task="all", digest=digest, method=method, traces=traces, **changes)
    write_run(root, "baseline", rows_of(names, records), task="all", **changes)
    speedups = {subject: 2.0 + number for number, subject in enumerate(settings)}
    write_times(root, times_of(rows, speedups), model=changes.get("model", {}).get("name", "llama2_7b"))


def test_speed_stands_against_kl_in_a_panel_per_model_with_a_line_per_method(tmp_path):
    for model in ("llama2_7b", "qwen3_4b"):
        write_methods(tmp_path, model={"name": model})
    figure = draw(speed_against_kl, tmp_path)
    assert [axes.get_title() for axes in figure.axes] == ["Llama 2 7B Chat", "Qwen3 4B"]
    assert legend(figure) == ["static pruning", "LazyLLM"]
    assert figure.get_suptitle() == ""
    points = wide(overall(numbers(group(*find([tmp_path]))[0])), ["answer_speedup", "geometric_kl"])
    for axes in figure.axes:
        drawn = np.concatenate([bars.lines[0].get_xydata() for bars in axes.containers])
        assert [len(bars.lines[0].get_xydata()) for bars in axes.containers] == [2, 1]
        assert np.allclose(drawn, points[["answer_speedup", "geometric_kl"]])


def test_figure_5_has_the_mean_of_the_tasks_and_the_three_largest_with_intervals(tmp_path):
    write_methods(tmp_path)
    figure = draw(figure5, tmp_path)
    assert legend(figure) == ["unmodified", "static pruning", "LazyLLM"]
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert titles == [
        "Macro-average, n=96",
        "Single-document QA, n=18",
        "Multi-document QA, n=18",
        "Summarization, n=18",
    ]
    lines = wide(numbers(group(*find([tmp_path]))[0]), ["ttft_speedup", "score_difference"]).sort_values("ttft_speedup")
    for axes, task in zip(figure.axes, ("mean_of_tasks", "single_doc_qa", "multidoc_qa", "summarization"), strict=True):
        points = lines[(lines["task"] == task) & (lines["line"] == "static pruning")]
        across, up = (np.array(bars.get_segments()) for bars in axes.containers[0].lines[2])  # (points, ends, 2)
        assert np.allclose(across[:, :, 0], points[["ttft_speedup_low", "ttft_speedup_high"]])
        assert np.allclose(up[:, :, 1], points[["score_difference_low", "score_difference_high"]])
    width, height = figure.get_size_inches()
    assert (width, height < 9) == (style.COLUMN, True)


def test_figure_1_counts_the_records_that_were_timed_and_has_the_papers_own_numbers(tmp_path):
    rows = rows_of(TASK)
    write_run(tmp_path, "lazyllm", rows, digest="1", times=times_of(rows[::3], {"lazyllm/1": 2.0}))
    (axes,) = draw(figure1, tmp_path).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["Multi-document QA, n=4", "paper: Llama 2 7B, A100"]
    assert axes.texts[-1].get_text() == "23%, 21×"


@pytest.mark.parametrize("mark", ["", "%"])
def test_figure_6_has_a_line_a_keep_and_ticks_where_the_data_are(mark, tmp_path):
    for layer, keep in product((3, 7, 26), (0.5, 0.3)):
        rows, settings = rows_of(TASK, seed=layer), {"schedule": f"{layer}{mark}:{keep}"}
        write_run(tmp_path, "lazyllm", rows, digest=f"{layer}-{keep}", method=settings, traces=kl_traces(rows, keep))
    figure = draw(figure6, tmp_path)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["3", "7", "26"]
    assert legend(figure) == ["keep 0.5", "keep 0.3"]
    first, second = (container.lines[0].get_ydata().mean() for container in figure.axes[0].containers)
    assert first > second


def test_figure_7_ends_where_half_still_generate(tmp_path):
    ends = (9, 7, 7, 7, 7, 2, 2, 1)  # steps of each record's generation
    rows = [row("hotpotqa", number, new_tokens=steps) for number, steps in enumerate(ends)]
    write_run(tmp_path, "lazyllm", rows, task="hotpotqa", traces=stage_traces(rows))
    (axes,) = draw(figure7, tmp_path).axes
    assert [line.get_xdata()[-1] for line in axes.lines[1:]] == [6, 6]  # one of eight generates on
    assert axes.get_title().replace("\n", " ") == "LazyLLM 10:0.7, 20:0.5, n=5 to 8"
