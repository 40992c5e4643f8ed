"""Figures for a paper: their size and type, whose texts never overlap, and what they say of the numbers they show."""

from __future__ import annotations

import json

import numpy as np
import pytest
from figure_checks import assert_fit_for_print, drawn, whole
from report_runs import attention_traces, row, rows_of, stage_traces, write_everything, write_run

from lazybench.analysis.averages import SCORE, TTFT
from lazybench.analysis.blocks import blocks
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.reading import find
from lazybench.data.facts import datasets_of, load_facts
from lazybench.report.figures import FIGURES, figure1, figure2, figure5, figure6, figure7, style
from lazybench.report.write import write

TASK = ("hotpotqa", "2wikimqa", "musique")
TITLES = {
    "random_drop": "random drop",
    "static_pruning": "static pruning",
    "prompt_compression": "Selective Context",
    "prompt_compression_record": "Selective Context, whole record",
    "lazyllm": "LazyLLM",
    "lazyllm+": "LazyLLM+",
    "gemfilter": "GemFilter",
    "fastkv": "FastKV",
}
LONG = "a_method_with_a_very_long_name_that_goes_on_and_on"


PAPERS = [module for module in FIGURES if module.NEEDS is not None]  # of data that these runs have


def read(*roots):
    """The one block of some runs."""
    found, said = find([*map(str, roots)])
    assert said == []
    (block,) = blocks(found)
    return block


def crowd(root):
    """Runs of nine methods, one with a long name and one with signs in it, at several strengths, on six tasks."""
    write_everything(root, records=2)
    names = datasets_of("all", load_facts())
    for method in ("gemfilter", "fastkv", "lazyllm+", LONG, "cash$_back$"):
        for place, keep in enumerate((0.7, 0.3)):
            rows = rows_of(names, 2, 1.2 + 0.5 * place, 0.45 - 0.05 * place, seed=50 + place)
            settings = {"keep": keep, "layer": 13}
            if method == "lazyllm+":
                settings = {"schedule": f"13%:{keep},27%:{keep},50%:{keep}", "importance": {"queries": 8, "first": 4}}
            write_run(root, method, rows, task="all", digest=f"e{place}", method=settings)


def several_conditions(root):
    """The same method under two conditions, which stand in every name."""
    names = datasets_of("all", load_facts())
    for device in ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"):
        for place in (0, 1):
            rows = rows_of(names, 2, 1.5 + place, seed=place)
            of = {"task": "all", "digest": f"{device[7:11]}{place}", "environment": {"device": device}}
            if not place:
                write_run(root, "baseline", rows, traces=attention_traces(rows[:3]), **of)
            traces = stage_traces(rows[:3], [5, 10, 20], [0.8, 0.6, 0.4])
            schedule = {"schedule": f"5:0.{8 - place},10:0.7,20:0.5"}
            write_run(root, "lazyllm", rows, method=schedule, traces=traces, **of)
            write_run(
                root,
                "lazyllm",
                rows,
                method={"schedule": f"{10 + place}:0.7"},
                **of | {"digest": f"f{device[7]}{place}"},
            )


@pytest.mark.parametrize("runs", [crowd, several_conditions])
def test_figures_fit_a_column_or_a_page_and_no_texts_overlap(runs, tmp_path):
    runs(tmp_path)
    block = read(tmp_path)
    with style.styled():
        for module in PAPERS:
            figure = module.draw(block)
            assert_fit_for_print(figure)


def test_each_figure_says_n_prompt_length_model_and_device(tmp_path):
    write_everything(tmp_path, records=2)
    for lines in tmp_path.rglob("predictions.jsonl"):
        of = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
        of = [line | {"prompt_tokens": 3000 + 10 * place} for place, line in enumerate(of)]
        lines.write_text("".join(json.dumps(line) + "\n" for line in of), "utf-8")
    for environment in tmp_path.rglob("environment.json"):
        of = json.loads(environment.read_text("utf-8")) | {"weights_format": "GGUF Q4_1, 4-bit, dequantised"}
        environment.write_text(json.dumps(of), "utf-8")
    block = read(tmp_path)
    with style.styled():
        for module in PAPERS:
            said = whole(module.draw(block))
            records = 4 if module is figure2 else 32  # those that were traced
            for text in (
                f"; n={records};",
                "prompts 3,155 tokens (median; max 3,310)",
                "Llama 2 7B Chat",
                "NVIDIA A100",
            ):
                assert text in said, module.__name__
            assert "(Q4_1, 4-bit weights, in bfloat16)" in said


def test_figure_1_counts_the_records_that_were_timed(tmp_path):
    rows = rows_of(TASK, 4)
    untimed = dict.fromkeys(("ttft_s", "generation_s", "decode_step_s"))
    rows = [row if place % 3 == 0 else row | untimed for place, row in enumerate(rows)]
    write_run(tmp_path, "baseline", rows)
    with style.styled():
        said = whole(figure1.draw(read(tmp_path)))
    assert "; n=4;" in said


def test_readers_names_stand_in_figures(tmp_path):
    for method in (*TITLES, LONG, "cash$_back$"):
        for place in (0, 1):
            write_run(tmp_path, method, rows_of(TASK, 2, 1 + place), digest=f"{place}", method={"strength": place})
    with style.styled():
        said = whole(figure5.draw(read(tmp_path)))
    for name in TITLES.values():
        assert f"{name}:" in said or f"{name}," in said
    assert "a method with a very long name" in said
    assert "cash$ back$" in said
    for name in (*TITLES, LONG):
        assert name not in said


def test_figure_1_has_the_papers_own_numbers_whatever_the_model(tmp_path):
    write_run(tmp_path, "baseline", rows_of(TASK), model={"name": "mine"})
    with style.styled():
        texts = [text for text, _, _ in drawn(figure1.draw(read(tmp_path)))]
    assert {"23%", "21×"} <= set(texts)
    assert "paper: Llama 2 7B, LongBench, A100" in " ".join(texts)


def test_figure_5_has_intervals_both_ways_one_scale_and_names_its_strengths(tmp_path):
    names = datasets_of("all", load_facts())
    for place, keep in enumerate((0.3, 0.7)):
        rows = rows_of(names, 6, seed=place)
        generator = np.random.default_rng(place)
        for line in rows:
            line["ttft_s"] = line["baseline_ttft_s"] / float(generator.normal(3 - 2 * keep, 0.1))
        write_run(tmp_path, "static_pruning", rows, task="all", digest=f"{place}", method={"keep": keep})
    block = read(tmp_path)
    with style.styled():
        figure = figure5.draw(block)
        said = whole(figure)
    assert "static pruning, layer 4: keep 0.7, 0.3" in said  # from the least speedup to the most
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == 6
    assert len({axes.get_xlim() + axes.get_ylim() for axes in panels}) == 1
    for axes, (task, members) in zip(panels, block.tasks().items(), strict=True):
        drawn_bars = [bar.get_segments()[0] for one in axes.containers for bar in one.lines[2]]
        expected = []
        for of in sorted(block.rows, key=lambda of: -of.runs[0].settings["method"]["keep"]):
            score, speedup = (cell({task: part_of(of, members)}, what).estimate for what in (SCORE, TTFT[0]))
            expected.append([[speedup.low, score.value], [speedup.high, score.value]])
            expected.append([[speedup.value, score.low], [speedup.value, score.high]])
        assert np.allclose(drawn_bars, expected)


@pytest.mark.parametrize("mark", ["", "%"])
def test_figure_6_has_ticks_where_the_data_are(mark, tmp_path):
    for layer in (3, 7, 26):
        write_run(tmp_path, "lazyllm", rows_of(TASK), digest=f"{layer}", method={"schedule": f"{layer}{mark}:0.5"})
    with style.styled():
        axes = figure6.draw(read(tmp_path)).axes[0]
    assert list(axes.get_xticks()) == [3, 7, 26]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["3", "7", "26"]


ENDS = (9, 7, 7, 4, 2, 2, 2, 1)  # steps of each record's generation


@pytest.fixture
def ending(tmp_path):
    """The block of a run whose records end one after the other."""
    rows = [row("hotpotqa", place, new_tokens=steps) for place, steps in enumerate(ENDS)]
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", traces=stage_traces(rows))
    return read(tmp_path / "runs")


def strip(figure):
    """What Figure 7's strip shows: the number of records by step."""
    upper, lower = figure.axes[:2]
    (area,) = lower.collections
    outline = area.get_paths()[0].vertices
    last = int(upper.lines[1].get_xdata()[-1])
    # Steps are drawn as wide as they are, so a step's middle has its height.
    return [int(max(y for x, y in outline if abs(x - step) <= 0.5)) for step in range(last + 1)]


def test_figure_7_ends_where_a_quarter_still_generate_and_counts_them(ending):
    counts = [sum(steps > step for steps in ENDS) for step in range(max(ENDS))]
    assert ending.runs[0].traces["computed"]["living"] == counts
    with style.styled():
        figure = figure7.draw(ending)
        said = whole(figure)
    upper, lower = figure.axes[:2]
    assert [int(line.get_xdata()[-1]) for line in upper.lines[1:]] == [
        6,
        6,
    ]  # of eight records three generate, then one
    heights = strip(figure)
    assert len(heights) == 7
    assert heights[-1] == counts[6] == 3
    assert heights[0] == len(ENDS)
    assert lower.get_xlim() == upper.get_xlim()
    assert "10th to 90th percentile of records" in said
    assert "LazyLLM 10:0.7,20:0.5, n=8" in said


def test_figure_7_of_records_from_before_they_were_counted_is_the_same(ending, tmp_path):
    write(tmp_path / "out", [ending], [])
    for path in (tmp_path / "out/records").rglob("*.json"):
        about = json.loads(path.read_text("utf-8"))
        del about["traces"]["computed"]["living"]
        path.write_text(json.dumps(about), "utf-8")
    with style.styled():
        old, new = (figure7.draw(block) for block in (read(tmp_path / "out/records"), ending))
    assert strip(old) == strip(new)
    for one, other in zip(old.axes[0].lines, new.axes[0].lines, strict=True):
        assert np.allclose(one.get_xydata(), other.get_xydata())
