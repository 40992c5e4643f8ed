"""The report's LaTeX tables can be taken as they are: they compile, fit a page, and print what the report says."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import failed, rows_of, write_run

from lazybench.cli.report import main
from lazybench.data.facts import english
from lazybench.report.latex import escaped

NAMES = ("table1", "table2", "fidelity")
SETTINGS = {"keep": "50% of_a {b} & $c", "scope": "<e> |f| [g] * ~ --i \\j"}
# Letter paper with margins of an inch, in two columns: the narrower ones of what conferences ask for.
DOCUMENT = r"""\documentclass[twocolumn,10pt]{article}
\usepackage[letterpaper,margin=1in]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of all of LongBench with intervals, seeds, notes and a method whose settings hold every odd sign."""
    root = tmp_path_factory.mktemp("latex")
    names = english()
    for place, name in enumerate(("baseline", "random_drop", "static_pruning", "prompt_compression", "lazyllm")):
        rows = rows_of(names, 8, 1 + place / 3, seed=place)
        for row in rows if name == "random_drop" else ():
            row["repeats"] = [row | {"score": row["score"] * factor} for factor in (0.8, 1)]
        rows[3] = failed("narrativeqa", 3)
        rows[40]["disturbed"] = True
        write_run(root / "runs", name, rows, task="all")
    write_run(root / "runs", "odd_method", rows_of(names[:3], 6), task="single_doc_qa", method=SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lazybench.report.figures.FIGURES", ())
        assert main([f"runs={root / 'runs'}", f"output={root / 'report'}"]) == 0
    return {name: (root / f"report/{name}.tex").read_text("utf-8") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_whole(tables, name):
    text = re.sub("^%.*\n", "", tables[name], flags=re.MULTILINE)
    assert re.search("^% Needs .usepackage{booktabs}", tables[name], re.MULTILINE)
    opened = re.findall(r"\\(begin|end)\{(table\*|tabular)\}", text)
    assert opened == [("begin", "table*"), ("begin", "tabular"), ("end", "tabular"), ("end", "table*")] * (
        len(opened) // 4
    )
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\caption{") == len(opened) // 4
    for part in text.split(r"\begin{tabular}")[1:]:
        columns = re.match(r"\{(lr+)\}", part)[1]
        rows = [line for line in part.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        # A further line of a method's label has no other cells.
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} - {0} == {len(columns) - 1}
    assert text.isascii()
    assert all(text.count(rf"\{rule}") == len(labels) for rule in ("toprule", "bottomrule"))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
@pytest.mark.parametrize("name", NAMES)
def test_a_table_compiles_and_fits_the_page(tables, name, tmp_path):
    (tmp_path / "all.tex").write_text(DOCUMENT % tables[name], "utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.search("Overfull|too large|Missing character|Font Warning", done.stdout), done.stdout[-2000:]
    if shutil.which("pdftotext"):
        said = subprocess.run(["pdftotext", "all.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True)
        printed = re.sub(r"\s", "", said.stdout)
        for part in ("50%", "{b}&$c", "<e>|f|[g]*", r"--i\j"):
            assert part in printed


@given(st.text('ab -_%#&${}\\~^`<>|"[]*×±≤≥→−—–…', max_size=12))
def test_a_text_is_escaped_sign_by_sign(text):
    made = escaped(text)
    assert made.isascii()
    assert "--" not in made  # else LaTeX makes a dash of two hyphens
    assert made.count("-") == len(re.findall("[-−]", text))
    without = re.sub(r"\\text\w+\{\}|\\ldots\{\}|\$\\?[a-z-]+\$|\{[\[*]\}|-\{\}|\\[_%#&${}]", "", made)
    assert not set(without) & set('\\_%#&${}~^`<>|"[*')
