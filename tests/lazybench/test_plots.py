"""The plots of calibrations and speeds, and the look they share with the figures."""

from __future__ import annotations

import pandas as pd
import pytest
from figure_checks import assert_fit_for_print, drawn, whole
from matplotlib.colors import to_hex

from lazybench.calibration import frontier
from lazybench.report.figures import style
from lazybench.speed import plot


def test_ticks_without_room_for_a_name_stay_unnamed():
    with style.styled():
        figure = style.canvas(style.COLUMN, 2)
        axes = figure.subplots()
        axes.plot(range(100), range(100))
        style.ticks_at(axes, range(100))
        assert_fit_for_print(figure)
    assert sorted([*axes.get_xticks(), *axes.get_xticks(minor=True)]) == list(range(100))


def saved(monkeypatch, module):
    """The figures that a module saves from now on."""
    met = []
    monkeypatch.setattr(module.style, "save", lambda figure, stem: met.append(figure) or [])
    return met


@pytest.mark.parametrize("least", [0.05, 1e-5, None])
def test_a_frontier_draws_every_kind_of_its_table(least, monkeypatch, tmp_path):
    kinds = ["static pruning", frontier.KEEPS, frontier.CALIBRATED]
    rows = [
        {"half": "cross", "speedup": speedup, "kind": kind, "kl": 0.1, "kl_low": least, "kl_high": 0.2, "records": 98}
        for kind in kinds
        for speedup in (1.5, 2)
    ]
    tried = pd.DataFrame({"speedup": [1.5, 2], "kl": [0.2, 0.3], "complete": [True, False]})
    figures = saved(monkeypatch, frontier)
    frontier.plot(pd.DataFrame(rows), tried, "Model; LongBench; prompts 9 tokens", tmp_path / "frontier")
    assert_fit_for_print(figures[0])
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()][1:] == [
        frontier.CALIBRATED,
        frontier.KEEPS,
        "static pruning",
    ]
    footer = "Model; LongBench; prompts 9 tokens; lines: n=98 records held out"
    assert (footer if least is None else f"{footer}, 95% intervals") in whole(figures[0])
    assert ("intervals" in whole(figures[0])) == (least is not None)
    assert [text for text, _, _ in drawn(figures[0]) if text in ("1.5", "2")] == ["1.5", "2"]
    assert len(figures[0].axes[0].lines[0].get_xdata()) == 1  # what was not measured in full is left out


def test_a_speed_plot_names_the_method_and_what_it_rests_on(monkeypatch, tmp_path):
    columns = {"model": "smollm2_135m", "method": "prompt_compression", "setting": "ratio=0.5"}
    columns |= {"repeats": 3, "weights": "bfloat16"}
    columns |= {"dtype": "bfloat16", "device": "NVIDIA A100", "tokens": [1024, 2048, 65536]}
    for name, seconds in (("ttft_s", 2.0), ("method_ttft_s", 1.0)):
        columns |= {name: seconds, f"{name}_low": 0.9 * seconds, f"{name}_high": 1.2 * seconds}
    figures = saved(monkeypatch, plot)
    plot.save(pd.DataFrame(columns).assign(ideal_speedup=2.5), tmp_path / "speed.csv")
    assert_fit_for_print(figures[0])
    (legend,) = figures[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["unmodified", "Selective Context ratio=0.5", "time of the work that is left"]
    assert "SmolLM2-135M-Instruct (bfloat16); median and range of n=3 repeats; NVIDIA A100" in whole(figures[0])


def test_the_paper_has_a_colour_a_method_and_others_take_what_is_left():
    names = ["lazyllm", "mine", "random_drop", "yours", "lazyllm calibrated"]
    methods = {name: (name.partition(" ")[0], None) for name in names} | {"odd": ("odd", "no colour")}
    looks = style.method_lines(methods)
    assert looks["random_drop"] == style.method_lines({"random_drop": ("random_drop", None)})["random_drop"]
    assert len({to_hex(look["color"]) for look in looks.values()}) == len(methods)
    many = style.method_lines({f"m{place}": (f"m{place}", None) for place in range(70)})
    assert len({(look["color"], look["marker"]) for look in many.values()}) == 70
    assert len({(look["color"], look["linestyle"]) for look in list(many.values())[:28]}) == 28
