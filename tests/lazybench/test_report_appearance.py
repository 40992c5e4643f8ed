"""A method brings its label and colour: the run's environment has them, rows, legends and lines show them."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from report_runs import rows_of, write_run

from lazybench.analysis.blocks import blocks
from lazybench.analysis.reading import find
from lazybench.report.figures import figure5
from lazybench.report.write import write

TASK = ("hotpotqa", "2wikimqa", "musique")


@pytest.fixture
def add(tmp_path):
    """Write runs of a method at two strengths."""

    def write_runs(name: str, appearance: object = None, seed: int = 0) -> None:
        environment = {} if appearance is None else {"appearance": appearance}
        for strength in (1, 2):
            rows = rows_of(TASK, 2, 1 + strength, seed=seed)
            method = {"strength": strength}
            write_run(tmp_path / "runs", name, rows, digest=str(strength), method=method, environment=environment)

    return write_runs


@pytest.fixture
def block(tmp_path):
    def read(place: str = "runs"):
        found, said = find([str(tmp_path / place)])
        assert said == []
        (only,) = blocks(found)
        return only

    return read


def lines(block) -> dict[str, str]:
    """The methods in Figure 5's legend and the colours of their lines."""
    (legend,) = figure5.draw(block).legends
    names = [text.get_text().rpartition(": ")[0] for text in legend.get_texts()]
    return dict(zip(names, [to_hex(line.get_color()) for line in legend.get_lines()], strict=True))


def test_rows_and_legends_have_the_methods_label_and_lines_its_colour(add, block):
    add("ends", {"label": "Ends only", "colour": "#123456"})
    assert [row.label for row in block().rows] == ["Ends only strength=1", "Ends only strength=2"]
    assert {row.method for row in block().rows} == {"ends"}
    assert lines(block()) == {"Ends only": "#123456"}


def test_the_records_of_a_report_keep_them(add, block, tmp_path):
    add("ends", {"label": "Ends only", "colour": "tab:red"})
    write(tmp_path / "out", [block()], [])
    assert "| Ends only strength=1 |" in (tmp_path / "out/table1.md").read_text("utf-8")
    assert lines(block("out/records")) == lines(block()) == {"Ends only": to_hex("tab:red")}


def test_methods_without_colours_get_different_ones(add, block):
    add("ends", {"label": "Ends only"})
    add("middle")
    add("lazyllm")
    colours = lines(block())
    assert set(colours) == {"Ends only", "middle", "LazyLLM, 10:0.7,20:0.5"}
    assert len(set(colours.values())) == 3


@pytest.mark.parametrize("appearance", ["red", {}, {"label": 1, "colour": "no colour"}, {"label": " ", "colour": None}])
def test_what_says_neither_is_passed_over(add, block, appearance):
    add("ends")
    before = lines(block())
    add("plain", appearance)
    assert [row.label for row in block().rows][2:] == ["plain strength=1", "plain strength=2"]
    assert lines(block()).keys() == {*before, "plain"}
