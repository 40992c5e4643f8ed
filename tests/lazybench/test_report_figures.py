"""Figures for a paper: their size and type, whose texts never overlap, and what they show of the numbers."""

import json
from itertools import combinations, product
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex
from report_runs import attention_traces, row, rows_of, stage_traces, write_everything, write_run

from lazybench.analysis.averages import SCORE, TTFT, cell
from lazybench.analysis.blocks import blocks
from lazybench.analysis.reading import find
from lazybench.calibration.frontier import CALIBRATED, KEEPS
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts
from lazybench.report.figures import speedups
from lazybench.report.figures.drawings import (
    FIGURES,
    depth_by_length,
    figure1,
    figure5,
    figure6,
    figure7,
    speed_against_harm,
)
from lazybench.report.figures.style import COLUMN, method_lines, save, styled
from lazybench.report.write import write

TASK = ("hotpotqa", "2wikimqa", "musique")
ALL = datasets_of("all", load_facts())
PAPERS = [of for of in FIGURES if of.needs is not None and of.name != "speed_against_harm"]  # which these runs have


def read(*roots):
    """The one block of some runs."""
    found, said = find([*map(str, roots)])
    assert said == []
    (block,) = blocks(found)
    return block


def draw(figure, *roots):
    with styled():
        return figure(read(*roots))


def drawn(figure):
    """The texts of a figure as the renderer gets them: text, size in points, and box in inches from the top left."""
    met = []
    draw_text = RendererAgg.draw_text

    def record(renderer, gc, x, y, text, prop, angle, *rest, **more):
        draw_text(renderer, gc, x, y, text, prop, angle, *rest, **more)
        width, height, descent = renderer.get_text_width_height_descent(text, prop, False)
        box = (x - height + descent, y - width, x + descent, y) if angle else (x, y - height + descent, x + width, y)
        met.append((text, prop.get_size_in_points(), [end / figure.dpi for end in box]))

    with styled(), mock.patch.object(RendererAgg, "draw_text", record):
        FigureCanvasAgg(figure).draw()
    return met


def assert_fit_for_print(figure):
    """Assert that a figure is as wide as a column, its type large enough and nowhere overlapping; returns its texts."""
    texts = drawn(figure)
    width, height = figure.get_size_inches()
    assert (width, height < 9) == (COLUMN, True)
    for text, size, (left, top, right, bottom) in texts:
        assert size >= 6, text
        assert min(left, top, width - right, height - bottom) >= -0.01, text
    for (one, _, a), (other, _, b) in combinations(texts, 2):
        assert max(b[0] - a[2], a[0] - b[2], b[1] - a[3], a[1] - b[3]) > -0.02, (one, other)
    return " ".join(text for text, _, _ in texts)


def legend(figure):
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


def crowd(root):
    """Runs of eight methods, one with a long name and one with signs in it, at several strengths, on six tasks."""
    write_everything(root, records=2)
    for method in ("gemfilter", "lazyllm+", "a_method_with_a_very_long_name_that_goes_on_and_on", "cash$_back$"):
        for place, keep in enumerate((0.7, 0.3)):
            rows = rows_of(ALL, 2, 1.2 + 0.5 * place, 0.45 - 0.05 * place, seed=50 + place)
            settings = {"keep": keep, "layer": 13}
            if method == "lazyllm+":
                settings = {"schedule": f"13%:{keep},27%:{keep},50%:{keep}", "importance": {"queries": 8, "first": 4}}
            write_run(root, method, rows, task="all", digest=f"e{place}", method=settings)


def several_conditions(root):
    """The same methods under two conditions, which stand in every name."""
    for device in ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"):
        rows = rows_of(ALL, 2, 1.5)
        for place, schedule in enumerate(("5:0.8,10:0.7,20:0.5", "5:0.7,10:0.7,20:0.5", "10:0.7", "11:0.7")):
            of = {"task": "all", "environment": {"device": device}, "digest": f"{device[7]}{place}"}
            traces = stage_traces(rows[:3], [5, 10, 20], [0.8, 0.6, 0.4]) if place < 2 else ()
            write_run(root, "lazyllm", rows, method={"schedule": schedule}, traces=traces, **of)
        write_run(root, "baseline", rows, traces=attention_traces(rows[:3]), **of)


@pytest.mark.parametrize("runs", [crowd, several_conditions])
def test_figures_fit_a_column_no_texts_overlap_and_each_says_what_it_rests_on(runs, tmp_path):
    runs(tmp_path)
    for of in PAPERS:
        figure = draw(of.draw, tmp_path)
        said = assert_fit_for_print(figure)
        for text in ("Llama 2 7B Chat (bfloat16); LongBench; n=", "prompts 100 tokens (median; max", "NVIDIA A100"):
            assert text in said, of.name


def test_a_figure_as_pdf_for_a_paper_has_no_heading(tmp_path):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    with styled():
        figure = draw(figure1, tmp_path / "runs")
        save(figure, tmp_path / "figure")
    assert "NVIDIA" not in assert_fit_for_print(figure)


def test_figure_1_counts_the_records_that_were_timed_and_has_the_papers_own_numbers(tmp_path):
    untimed = dict.fromkeys(("ttft_s", "generation_s", "decode_step_s"))
    rows = [row if place % 3 == 0 else row | untimed for place, row in enumerate(rows_of(TASK, 4))]
    write_run(tmp_path, "baseline", rows, model={"name": "mine"})
    said = assert_fit_for_print(draw(figure1, tmp_path))
    assert "; n=4;" in said
    assert "23%, 21×" in said
    assert "paper: Llama 2 7B, A100" in said


def test_figure_5_has_each_methods_points_with_intervals_both_ways(tmp_path):
    for place, keep in enumerate((0.3, 0.7)):
        rows = rows_of(ALL, 6, seed=place)
        generator = np.random.default_rng(place)
        for line in rows:
            line["ttft_s"] = line["baseline_ttft_s"] / float(generator.normal(3 - 2 * keep, 0.1))
        write_run(tmp_path, "static_pruning", rows, task="all", digest=f"{place}", method={"keep": keep})
    block, figure = read(tmp_path), draw(figure5, tmp_path)
    assert legend(figure) == ["static pruning"]
    assert len(figure.axes) == 6
    for axes, (task, members) in zip(figure.axes, block.tasks().items(), strict=True):
        (line,) = axes.containers
        across, up = (bars.get_segments() for bars in line.lines[2])
        for place, of in enumerate(sorted(block.rows, key=lambda of: -of.runs[0].settings["method"]["keep"])):
            score, speedup = (cell(of, {task: members}, what).estimate for what in (SCORE, TTFT[0]))
            assert np.allclose(across[place], [[speedup.low, score.value], [speedup.high, score.value]])
            assert np.allclose(up[place], [[speedup.value, score.low], [speedup.value, score.high]])


def test_speed_stands_against_the_geometric_mean_of_harm(tmp_path):
    harms = {"static_pruning": 0.04, "lazyllm": 0.01}  # in the order of the tables
    for place, (method, harm) in enumerate(harms.items()):
        rows = rows_of(TASK, 4, 2.0 + place)
        kls = [harm * (4 if index % 2 else 0.25) for index in range(len(rows))]
        traces = [{key: line[key] for key in ("_id", "dataset")} for line in rows]
        traces = [line | {"first_token_kl": kl, "kl": kl} for line, kl in zip(traces, kls, strict=True)]
        write_run(tmp_path, method, rows, traces=traces)
    write_run(tmp_path, "random_drop", rows_of(TASK, 4, 2.0))  # without KL
    figure = draw(speed_against_harm, tmp_path)
    assert_fit_for_print(figure)
    first, answer = figure.axes
    for axes in (first, answer):
        found = {bars.get_label(): bars.lines[0].get_ydata()[0] for bars in axes.containers}
        assert list(found.values()) == pytest.approx(list(harms.values()))
    speedups = [bars.lines[0].get_xdata()[0] for bars in first.containers]
    assert speedups == pytest.approx([2, 3])
    assert legend(figure) == [*found]


@pytest.mark.parametrize("mark", ["", "%"])
def test_figure_6_has_a_line_a_keep_and_ticks_where_the_data_are(mark, tmp_path):
    for layer, keep in product((3, 7, 26), (0.5, 0.3)):
        rows, settings = rows_of(TASK, score=keep, seed=layer), {"schedule": f"{layer}{mark}:{keep}"}
        write_run(tmp_path, "lazyllm", rows, digest=f"{layer}-{keep}", method=settings)
    figure = draw(figure6, tmp_path)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["3", "7", "26"]
    assert legend(figure) == ["keep 0.5", "keep 0.3"]
    means = [container.lines[0].get_ydata().mean() for container in figure.axes[0].containers]
    assert means == pytest.approx([50, 30], abs=8)


def test_figure_7_ends_where_half_still_generate_from_runs_and_from_what_a_report_kept(tmp_path):
    ends = (9, 7, 7, 7, 7, 2, 2, 1)  # steps of each record's generation
    rows = [row("hotpotqa", place, new_tokens=steps) for place, steps in enumerate(ends)]
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", traces=stage_traces(rows))
    write(tmp_path / "out", [read(tmp_path / "runs")], [])
    for path in (tmp_path / "out/records").rglob("*.json"):
        about = json.loads(path.read_text("utf-8"))
        assert about["traces"]["computed"]["living"] == [sum(end > step for end in ends) for step in range(9)]
    new, kept = (draw(figure7, tmp_path / place) for place in ("runs", "out/records"))
    for figure in (new, kept):
        (axes,) = figure.axes
        assert [line.get_xdata()[-1] for line in axes.lines[1:]] == [6, 6]  # one of eight generates on
        assert axes.get_title().replace("\n", " ") == "LazyLLM 10:0.7, 20:0.5 n=8 to 5"
    for one, other in zip(new.axes[0].lines, kept.axes[0].lines, strict=True):
        assert np.allclose(one.get_xydata(), other.get_xydata())


def test_figure_7_leaves_out_a_method_whose_runs_prune_behind_different_layers(tmp_path):
    for task, layers in (("hotpotqa", (10, 20)), ("qasper", (5, 20))):
        rows = [row(task, place, new_tokens=4) for place in range(3)]
        write_run(tmp_path, "lazyllm", rows, task=task, digest=task, traces=stage_traces(rows, layers))
    assert draw(figure7, tmp_path) is None


def test_depth_by_length_has_tasks_that_show_something_and_the_mildest_strength_first(tmp_path):
    settings = yaml.safe_load((CONF / "data/ruler.yaml").read_text("utf-8"))
    data = {key: settings[key] for key in ("name", "label", "source", "datasets")} | {"root": None}

    def made(name, tokens, scores, computed=1.0, digest="", **changes):
        lines = [
            row(dataset, 0, _id=f"{place}@{depth}%", score=score, prompt_computed=computed)
            for dataset, by_depth in scores.items()
            for place, (depth, score) in enumerate(by_depth)
        ]
        of = data | {"tokens": tokens, "has": list(settings["datasets"])}
        write_run(tmp_path, name, lines, task="ruler6", digest=f"t{tokens}{digest}", data=of, **changes)

    made("baseline", 1024, {"niah_single_1": [(0, 1.0), (50, 0.5)], "vt": [(50, 0.0)]})
    made("baseline", 512, {"niah_single_1": [(0, 1.0), (0, 0.0), (100, 0.5)]})
    for keep in (0.3, 0.7):
        scores = {"niah_single_1": [(0, keep / 2), (50, keep)], "vt": [(50, 1.0)]}
        made("static_pruning", 1024, scores, keep, f"{keep}", method={"keep": keep})
    figure, task = draw(depth_by_length, tmp_path), "niah_single_1"
    assert_fit_for_print(figure)
    left, right = figure.axes
    labels = [text.get_text().replace("\n", " ") for text in left.get_yticklabels()]
    assert labels == ["baseline", "static pruning layer=4 keep=0.7", "static pruning layer=4 keep=0.3"]
    assert (left.get_title(), right.get_title()) == (f"{task}\n512 tokens", f"{task}\n1,024 tokens")
    assert [text.get_text() for text in left.get_xticklabels()] == ["0", "50", "100"]
    cells = [np.ma.filled(axes.images[0].get_array(), -1).tolist() for axes in (left, right)]
    assert cells[0] == [[50, -1, 50], [-1] * 3, [-1] * 3]
    assert np.allclose(cells[1], [[100, 50, -1], [35, 70, -1], [15, 30, -1]])
    write_run(tmp_path / "others", "baseline", rows_of(["hotpotqa"]))
    assert draw(depth_by_length, tmp_path / "others") is None


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved from now on."""
    met = []
    monkeypatch.setattr(speedups, "save", lambda figure, stem: met.append(figure) or [])
    return met


@pytest.mark.parametrize("least", [0.05, None])
def test_a_frontier_draws_every_kind_of_its_table(least, figures, tmp_path):
    of = {"half": "cross", "kl": 0.1, "kl_low": least, "kl_high": 0.2, "records": 98}
    rows = [of | {"kind": kind, "speedup": at} for kind in (CALIBRATED, KEEPS, "other") for at in (1.5, 2)]
    tried = pd.DataFrame({"speedup": [1.5, 2], "kl": [0.2, 0.3], "complete": [True, False]})
    speedups.frontier(pd.DataFrame(rows), tried, "Model; LongBench", tmp_path / "frontier")
    said = assert_fit_for_print(figures[0])
    assert legend(figures[0])[1:] == [CALIBRATED, KEEPS, "other"]
    assert "Model; LongBench; lines: n=98 records held out" in said
    assert ("intervals" in said) == (least is not None)
    assert len(figures[0].axes[0].lines[0].get_xdata()) == 1  # what was not measured in full is left out


def test_a_speed_plot_has_speedups_of_the_first_token_and_of_the_answer(figures, tmp_path):
    columns = {"model": "smollm2_135m", "method": "prompt_compression", "setting": "ratio=0.5", "repeats": 3}
    columns |= {"weights": "GGUF Q4_1, 4-bit, dequantised", "dtype": "bfloat16", "device": "NVIDIA A100"}
    columns |= {"new_tokens": 64, "tokens": [1024, 2048, 65536]}
    for name, times in (("ttft_speedup", 2.0), ("generation_speedup", 1.5)):
        columns |= {name: times, f"{name}_low": 0.9 * times, f"{name}_high": 1.2 * times}
    speedups.speed(pd.DataFrame(columns).assign(ideal_speedup=2.5), tmp_path / "speed")
    said = assert_fit_for_print(figures[0])
    assert set(legend(figures[0])) == {"first token", "answer of 64 tokens", "first token, by the work that is left"}
    assert "Selective Context ratio=0.5" in said
    assert "SmolLM2-135M-Instruct (Q4_1, 4-bit weights, in bfloat16);" in said


def test_the_paper_has_a_colour_a_method_and_others_take_what_is_left():
    names = ["lazyllm", "mine", "random_drop", "yours", "lazyllm calibrated"]
    methods = {name: (name.partition(" ")[0], None) for name in names} | {"odd": ("odd", "no colour")}
    looks = method_lines(methods)
    assert looks["random_drop"] == method_lines({"random_drop": ("random_drop", None)})["random_drop"]
    assert len({to_hex(look["color"]) for look in looks.values()}) == len(methods)


@pytest.mark.parametrize(
    ("appearance", "label", "colour"),
    [
        ({"label": "Ends only", "colour": "#123456"}, "Ends only", "#123456"),
        ({"label": 1, "colour": "no colour"}, "ends", None),
        ("red", "ends", None),
    ],
)
def test_a_method_brings_its_label_and_colour_and_the_records_of_a_report_keep_them(
    appearance, label, colour, tmp_path
):
    for strength in (1, 2):
        of = {"digest": str(strength), "method": {"strength": strength}, "environment": {"appearance": appearance}}
        write_run(tmp_path / "runs", "ends", rows_of(TASK, 2, 1 + strength), **of)
    write(tmp_path / "out", [read(tmp_path / "runs")], [])
    for place in ("runs", "out/records"):
        figure = draw(figure5, tmp_path / place)
        assert legend(figure) == [label]
        assert colour in (None, to_hex(figure.axes[0].containers[0].lines[0].get_color()))
