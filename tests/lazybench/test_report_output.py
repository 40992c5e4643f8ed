"""What the report writes: a page that loads nothing, LaTeX that fits, records that give the same report again."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from report_runs import attention_traces, row, rows_of, times_of, write_everything, write_run

from lazybench.analysis.records import find
from lazybench.cli.report import main
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_whole_report_comes_from_its_records_again(tmp_path):
    write_everything(tmp_path / "runs", records=2)
    report = tmp_path / "report"
    assert main([f"runs={tmp_path / 'runs'}", f"output={report}"]) == 0
    made = files(report)
    assert {"report.html", "report.md", "intervals.csv", "paired.csv", "records.csv", "runs.json"} <= made.keys()
    for number in (1, 2, 5, 6, 7):
        assert any(name.startswith(f"figure{number}_") for name in made)
    # The runs once more as folders change nothing: each counts once.
    assert main([f"runs={report},{tmp_path / 'runs'}", f"output={tmp_path / 'again'}"]) == 0
    assert files(tmp_path / "again") == made
    assert main([f"runs={tmp_path / 'again'}", f"output={tmp_path / 'again'}"]) == 0
    assert files(tmp_path / "again") == made
    assert not any(b"/data/somewhere" in content for content in made.values())


def test_the_records_are_one_tidy_table_that_keeps_every_text(tmp_path, report):
    odd = ["", "NA", "nan", "1.50", ' "a", b\r\nc\rd\n', "é\u2028", "0012", " "]
    rows = [row("hotpotqa", number, prediction=text) for number, text in enumerate(odd)]
    times = times_of(rows, {"lazyllm/1": 2.0})
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", digest="1", times=times[:5])
    folder = report()
    table = pd.read_csv(folder / "records.csv")
    assert len(table) == len(rows)
    assert table["unmodified_ttft_s"].count() == 5
    assert (table["label"] == "LazyLLM 10:0.7,20:0.5").all()
    (run,), read = find([folder])
    assert run.records["prediction"].tolist() == odd
    assert len(read) == 5
    before = files(folder)
    assert files(report(f"runs={folder}")) == before


def test_the_page_is_whole_and_loads_nothing(tmp_path, report):
    for name in ("baseline", "lazyllm", "static_pruning"):
        write_run(tmp_path / "runs", name, rows_of(TASK))
    command = [
        "run",
        "--config-dir",
        "/home/me/conf",
        "data.root=/data/LB",
        'hydra.searchpath=["file:///home/me/found"]',
    ]
    settings = {"schedule": "<script>alert(1)</script>"}
    environment = {"command": command, "appearance": {"label": "odd|_&"}}
    write_run(tmp_path / "runs", "odd", rows_of(TASK), method=settings, environment=environment)
    folder = report()
    text = (folder / "report.html").read_text("utf-8")
    assert not re.search(r"<(link|iframe|object|embed|base|script)|(src|href|srcset|action)=|@import|url\(", text)
    for wanted in ("Table 1.", "bfloat16, prompts up to 3,500 tokens", "22.43"):
        assert wanted in text
    assert "python -m lazybench run --config-dir FOLDER/conf data.root=FOLDER/LB" in text
    assert not any(b"/home/me" in content for content in files(folder).values())
    assert r"odd\|_&" in (folder / "report.md").read_text("utf-8")
    assert r"odd$|$\_\&" in (folder / "others.tex").read_text("utf-8")


@pytest.fixture
def latex(tmp_path, report):
    """LaTeX of all tables of all methods at two strengths, with names that hold every odd sign."""
    write_everything(tmp_path / "runs", records=1)
    for position in range(2):
        odd = {"keep": f"{position}0%_{{b}}&$c", "scope": "<e>|f|[g]*~--i\\j"}
        write_run(tmp_path / "runs", "odd", rows_of(TASK, 3), digest=f"{position}", method=odd)
    return {path.name: path.read_text("utf-8") for path in sorted(report().glob("*.tex"))}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
def test_latex_compiles_and_no_table_is_wider_or_longer_than_a_page_of_two_columns(latex, tmp_path):
    head = (
        "\\documentclass[twocolumn]{article}\\usepackage[margin=1in]{geometry}\\usepackage{booktabs}\\begin{document}\n"
    )
    (tmp_path / "all.tex").write_text(head + "\n\n".join(latex.values()) + "\n\\end{document}\n", "ascii")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.search(r"Missing character|Overfull \\hbox|Float too large", done.stdout), done.stdout


def test_traces_are_kept_as_means(tmp_path):
    rows = rows_of(TASK, 1)
    traces = attention_traces(rows, bins=200)[:2] + attention_traces(rows, bins=60)[2:]  # of a short prompt
    write_run(tmp_path / "runs", "baseline", rows, traces=traces)
    rows = [row("hotpotqa", number) for number in range(3)]
    traces = [
        {"_id": one["_id"], "dataset": "hotpotqa", "kl": 0.1, "stages": [10], "computed": computed}
        for one, computed in zip(rows, ([[0.5], [0.6], [0.7]], [[0.3]], [[0.9]]), strict=True)
    ]
    traces[2]["stages"] = [7]  # other stages, as folds may have
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", traces=traces)
    kept = {run.method: run.traces for run in find([tmp_path / "runs"])[0]}
    assert kept["baseline"]["attention"]["records"] == 3
    assert all(sum(layer) == pytest.approx(1, abs=0.02) for layer in kept["baseline"]["attention"]["map"])
    # A generation that has ended keeps its last value.
    assert kept["lazyllm"]["computed"]["mean"] == [[0.4, 0.45, 0.5]]
    assert (kept["lazyllm"]["layers"], kept["lazyllm"]["computed"]["records"]) == ([10], 2)


def test_a_report_replaces_a_report_and_nothing_else(tmp_path, report, monkeypatch):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    folder = report()
    for name in ("figure9_old.png", "table1.md", "score_by_length.csv"):
        (folder / name).write_bytes(b"")
    assert "table1.md" not in files(report())
    before = files(folder)
    with monkeypatch.context() as patch:
        patch.setattr("lazybench.report.write._commands", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            report()
    assert files(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "runs"]
    (folder / "mine.txt").write_text("keep")
    with pytest.raises(LazyBenchError, match=r"holds mine\.txt, which no report wrote"):
        report()
