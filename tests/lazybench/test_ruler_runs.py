"""RULER-6 from the command line to the report, and its heat map of depth by length."""

import math

import numpy as np
import pytest
import yaml
from figure_checks import assert_fit_for_print
from report_runs import row, rows_of, write_run
from support import folders, one_line, rows

from lazybench.analysis.blocks import blocks
from lazybench.analysis.reading import find
from lazybench.cli.report import main
from lazybench.config import CONF
from lazybench.report.figures import depth_by_length

CALLED = "RULER-6, generated"
SETTINGS = yaml.safe_load((CONF / "data/ruler.yaml").read_text("utf-8"))
DATA = {key: SETTINGS[key] for key in ("name", "label", "source", "datasets")}
DATA |= {"root": None, "has": list(SETTINGS["datasets"])}


def test_lengths_are_run_and_reported_under_their_own_name(run, lazybench, tmp_path):
    words = ("data=ruler", "task=niah_single_1", "method=baseline", "timing.warmup=0", "data.depths=[0,100]")
    words += ("data.datasets.niah_single_1.max_new_tokens=4",)
    for tokens in (1200, 2000):
        code, out, err = run(*words, f"data.tokens={tokens}")
        assert code == 0, err
        assert f"records: {CALLED}\n" in out
    found = {}
    for folder in folders(tmp_path / "runs"):
        made = rows(folder)
        assert {line["data"] for line in made} == {CALLED}
        assert [line["_id"] for line in made] == ["0@0%", "1@100%"]
        length = max(line["prompt_tokens"] for line in made) + 4
        found[yaml.safe_load((folder / "config.yaml").read_text())["data"]["tokens"]] = length
    # A character is a token here, and so a line has 90: longer than model.limit, which is 900, and never cut.
    assert all(tokens - 92 <= length <= tokens for tokens, length in found.items())
    assert found.keys() == {1200, 2000}
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert (tmp_path / "report/depth_by_length_tiny_ruler6_generated.png").stat().st_size > 10_000
    for name in ("table1.md", "report.html"):
        assert f"on {CALLED}" in (tmp_path / "report" / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("task=all", "data.tokens=700"),
            "record 0 of niah_single_1 needs data.tokens=942 or more with this model, not 700",
        ),
        (("task=hotpotqa",), "unknown dataset 'hotpotqa'"),
        (("task=fwe", "data.depths=[101]"), "data.depths=[101.0]: each is from 0 to 100, in percent"),
        (("task=fwe", "data.root=here"), "data.root=here: the records of RULER-6 are generated"),
    ],
)
def test_what_is_wrong_is_one_line(run, words, says, tmp_path):
    code, _, err = run("data=ruler", "method=baseline", *words)
    assert says in one_line(code, err)
    assert not folders(tmp_path / "runs")


def test_they_are_listed(lazybench):
    code, out, _ = lazybench("list")
    assert code == 0
    assert (
        "  ruler6                    niah_single_1, niah_multikey_2, niah_multikey_3, vt, cwe, fwe  [data=ruler]\n"
        in out
    )


def made(root, method, tokens, scores, **changes):
    """One run of given scores, by dataset and depth; None stands for a record that failed."""
    lines = []
    for dataset, by_depth in scores.items():
        for place, (depth, score) in enumerate(by_depth):
            name = str(place) if depth is None else f"{place}@{depth:g}%"
            lines.append(row(dataset, 0, _id=name, score=score) | ({"error": "oom"} if score is None else {}))
    task = next(iter(scores)) if len(scores) == 1 else "ruler6"
    write_run(root, method, lines, task=task, digest=f"t{tokens}", data=DATA | {"tokens": tokens}, **changes)


def drawn(root):
    """What the figure of some runs shows: cells by title, lines and lengths of the axes, and what is said below."""
    (block,) = blocks(find([str(root)])[0])
    figure = depth_by_length.draw(block)
    if figure is None:
        return None
    assert_fit_for_print(figure)
    shown = [axes for axes in figure.axes if axes.images and axes.get_visible()]
    cells = {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in shown}
    ticks = [[tick.get_text() for tick in of()] for of in (shown[0].get_yticklabels, shown[0].get_xticklabels)]
    hatched = {(patch.get_x() + 0.5, patch.get_y() + 0.5) for axes in shown for patch in axes.patches}
    return cells, *ticks, hatched, " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_lengths_of_a_method_stand_in_one_panel(tmp_path):
    made(tmp_path, "baseline", 1024, {"niah_single_1": [(0, 1.0), (50, 0.5)], "cwe": [(None, 0.9)]})
    made(tmp_path, "baseline", 512, {"niah_single_1": [(0, 1.0), (0, 0.0), (50, 0.0)], "vt": [(50, 0.0), (100, 1.0)]})
    made(tmp_path, "lazyllm", 1024, {"niah_single_1": [(0, 0.25), (50, None)]}, model={"limit": 900})
    cells, lines, lengths, hatched, said = drawn(tmp_path)
    assert lines == ["0", "50", "100"]
    assert lengths == ["512", "1024"]
    assert list(cells) == ["baseline", "LazyLLM 10:0.7,20:0.5"]
    assert cells["baseline"] == pytest.approx(np.array([[50, 100], [0, 50], [100, math.nan]]), nan_ok=True)
    nothing = math.nan
    wanted = np.array([[nothing, 25], [nothing, nothing], [nothing, nothing]])
    assert cells["LazyLLM 10:0.7,20:0.5"] == pytest.approx(wanted, nan_ok=True)
    assert hatched == {(0, 1)}
    assert "1 to 2 records a cell, of niah_single_1, vt (at 512)" in said
    assert "hatched: the baseline scores 0 on every record of the cell" in said
    assert "floor" not in said
    assert f"; {CALLED}; n=1 to 5; " in said


def test_a_task_that_the_baseline_cannot_do_is_named(tmp_path):
    for tokens in (512, 1024):
        made(tmp_path, "baseline", tokens, {"niah_single_1": [(0, 1.0)], "vt": [(0, 0.0), (50, float(tokens > 512))]})
    *_, hatched, said = drawn(tmp_path)
    assert "floor: the baseline scores 0 on every record of vt (at 512)" in said
    assert hatched == {(0, 1)}


def test_other_conditions_stand_in_another_panel_and_a_missing_baseline_is_told(tmp_path):
    made(tmp_path, "lazyllm", 512, {"niah_single_1": [(0, 1.0)]})
    made(tmp_path, "lazyllm", 1024, {"niah_single_1": [(0, 1.0)]}, environment={"device": "another"})
    cells, *_, said = drawn(tmp_path)
    assert sorted(title.replace("\n", " ").split(" ", 2)[-1] for title in cells) == [
        "[device=NVIDIA A100]",
        "[device=another]",
    ]
    assert "no run of the baseline" in said


def test_many_depths_are_put_together_by_tenths(tmp_path):
    made(tmp_path, "baseline", 512, {"vt": [(depth, depth / 100) for depth in (0, 9.9, 10, *range(20, 101, 4))]})
    cells, lines, *_ = drawn(tmp_path)
    assert lines == [f"{low} to {low + 10}" for low in range(0, 100, 10)]
    assert cells["baseline"][:, 0] == pytest.approx([4.95, 10, 24, 34, 46, 54, 66, 74, 84, 96], abs=3)
    assert cells["baseline"][0, 0] == pytest.approx(4.95)
    assert cells["baseline"][9, 0] == pytest.approx(96)


def test_other_data_has_no_such_figure_and_lacks_none(tmp_path, capsys):
    write_run(tmp_path / "runs", "baseline", rows_of(["hotpotqa"]))
    assert drawn(tmp_path / "runs") is None
    made(tmp_path / "others", "baseline", 512, {"cwe": [(None, 1.0)]})
    assert drawn(tmp_path / "others") is None
    main([f"runs={tmp_path / 'others'}", f"output={tmp_path / 'out'}"])
    assert "depth_by_length" not in capsys.readouterr().out
