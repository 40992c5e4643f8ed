"""Figures for a paper: what they show of the numbers, and their size."""

from itertools import product

import numpy as np
import pytest
from report_runs import kl_traces, row, rows_of, stage_traces, times_of, write_run, write_times

from lazybench.analysis.blocks import group
from lazybench.analysis.numbers import numbers, overall, wide
from lazybench.analysis.records import find
from lazybench.report.figures import style
from lazybench.report.figures.drawings import FIGURES, figure1, figure5, figure6, figure7, speed_against_kl

TASK = ("hotpotqa", "2wikimqa", "musique")
ALL = ("hotpotqa", "2wikimqa", "lcc", "trec")  # of three tasks


def measured(root):
    """Return the blocks of the runs in `root`, and their numbers."""
    blocks = group(*find([root]))
    return blocks, [numbers(block) for block in blocks]


def draw(figure, blocks, values):
    """Draw a figure of the first block, or of all; return it with the count for its caption, or None."""
    styles = style.method_styles(row.method for block in blocks for row in block.rows)
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
    write_methods(tmp_path, ("hotpotqa", "lcc"))
    write_methods(tmp_path, TASK[:1], model={"name": "qwen3_4b"})
    write_run(tmp_path, "baseline", rows_of(TASK), model={"name": "untimed"})
    blocks, values = measured(tmp_path)
    figure, counts = draw(speed_against_kl, blocks, values)
    assert [axes.get_title() for axes in figure.axes] == ["Llama 2 7B Chat", "Qwen3 4B"]
    assert legend(figure) == ["static pruning", "LazyLLM", "unmodified"]
    assert [text.rpartition(": ")[2] for text in counts.split("; ")] == [
        f"KL over {count} records, times over {count}" for count in (12, 6)
    ]
    for axes, own in zip(figure.axes, values, strict=False):
        points = wide(overall(own), ["answer_speedup", "geometric_kl"]).sort_values(["method", "answer_speedup"])
        drawn = np.concatenate([bars.lines[0].get_xydata() for bars in axes.containers])
        assert [len(bars.lines[0].get_xydata()) for bars in axes.containers] == [1, 2]
        assert np.allclose(drawn, points[["answer_speedup", "geometric_kl"]])
        assert [line.get_markersize() for line in axes.lines if line.get_marker() == "D"] == [3, 5.5]
    assert figure.get_size_inches()[0] == style.PAGE


def test_lines_of_methods_differ_and_are_the_same_in_every_report():
    methods = ["fastkv", "lazyllm", "lazyllm_no_revival", "lazyllm+", "lazyllm+_no_revival", "mine", "yours"]
    every = style.method_styles(methods)
    looks = {(every[name]["color"], every[name]["marker"], every[name].get("linestyle")) for name in methods}
    assert len(looks) == len(methods)
    for method in ("lazyllm", "lazyllm+"):
        open_one = every[f"{method}_no_revival"]
        assert style.method_styles([method])[method] == every[method]
        assert every[method].items() <= open_one.items()
        assert open_one["markerfacecolor"] == "white"


def test_figure_5_has_the_macro_average_and_all_tasks_with_intervals(tmp_path):
    write_methods(tmp_path)
    blocks, values = measured(tmp_path)
    figure, counts = draw(figure5, blocks, values)
    assert legend(figure) == ["static pruning", "LazyLLM", "unmodified"]
    assert counts.startswith("Macro-average 24, Multi-document QA 12, Few-shot learning 6, ")
    lines = wide(values[0], ["ttft_speedup", "score_difference"]).sort_values("ttft_speedup")
    titles = [axes.get_title() for axes in figure.axes]
    assert (titles[0], {*titles}) == ("Macro-average", {*lines["title"]})
    for axes in figure.axes:
        points = lines[(lines["title"] == axes.get_title()) & (lines["line"] == "static pruning")]
        (up,) = (np.array(bars.get_segments()) for bars in axes.containers[1].lines[2])  # (points, ends, 2)
        assert np.allclose(up[:, 0, 0], points["ttft_speedup"])
        assert np.allclose(up[:, :, 1], points[["score_difference_low", "score_difference_high"]])


def test_a_figure_without_something_to_see_is_not_made(tmp_path):
    rows = [row(name, number, unmodified_score=0.5) for name in TASK for number in range(6)]
    for keep, digest in ((0.3, "a"), (0.7, "b")):
        write_run(tmp_path, "static_pruning", rows, digest=digest, method={"keep": keep})
    constant = [trace | {"computed": trace["computed"][:1] * 4} for trace in stage_traces(rows)]
    write_run(tmp_path, "lazyllm", rows, method={"schedule": "10:0.5"}, traces=constant)
    blocks, values = measured(tmp_path)
    figures = (speed_against_kl, *FIGURES)
    assert [draw(figure, blocks, values) for figure in figures] == [None] * len(figures)
    write_times(tmp_path, times_of(rows, {"static_pruning/a": 2.0, "static_pruning/b": 3.0}))
    blocks, values = measured(tmp_path)
    made = {figure.__name__ for figure in figures if draw(figure, blocks, values)}
    assert made == {"figure1"}  # scores are equal, LazyLLM has one layer and revives nothing


def test_figure_1_counts_the_records_that_were_timed_and_has_the_papers_own_numbers(tmp_path):
    rows = rows_of(TASK)
    write_run(tmp_path, "lazyllm", rows, digest="1", times=times_of(rows[::3], {"lazyllm/1": 2.0}))
    (axes,) = draw(figure1, *measured(tmp_path))[0].axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["Multi-document QA, n=4", "paper: Llama 2 7B, A100"]
    assert axes.texts[-1].get_text() == "23%, 21×"


@pytest.mark.parametrize("mark", ["", "%"])
def test_figure_6_has_a_line_a_keep_and_ticks_where_the_data_are(mark, tmp_path):
    for layer, keep in product((3, 7, 26), (0.5, 0.3)):
        rows, settings = rows_of(TASK, seed=layer), {"schedule": f"{layer}{mark}:{keep}"}
        write_run(tmp_path, "lazyllm", rows, digest=f"{layer}-{keep}", method=settings, traces=kl_traces(rows, keep))
    figure, _ = draw(figure6, group(*find([tmp_path])), [None])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["3", "7", "26"]
    assert legend(figure) == ["keep 0.5", "keep 0.3"]
    first, second = (container.lines[0].get_ydata().mean() for container in figure.axes[0].containers)
    assert first > second


def test_figure_7_ends_where_half_still_generate(tmp_path):
    ends = (9, 7, 7, 7, 7, 2, 2, 1)  # steps of each record's generation
    rows = [row("hotpotqa", number, new_tokens=steps) for number, steps in enumerate(ends)]
    write_run(tmp_path, "lazyllm", rows, task="hotpotqa", traces=stage_traces(rows))
    single = {"schedule": "10:0.5"}  # of Figure 6 only
    write_run(tmp_path, "lazyllm", rows, digest="2", task="hotpotqa", method=single, traces=stage_traces(rows))
    figure, counts = draw(figure7, *measured(tmp_path))
    (axes,) = figure.axes
    assert [line.get_xdata()[-1] for line in axes.lines[1:]] == [6, 6]  # one of eight generates on
    assert axes.get_title() == "LazyLLM, 10:0.7, 20:0.5"
    assert counts == "LazyLLM, 10:0.7,20:0.5 8 records, 5 at the last step"
