"""What the report writes: a page that loads nothing, LaTeX that fits, records that give the same report again."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_runs import attention_traces, row, rows_of, write_everything, write_run

from lazybench.cli.report import main
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")
ROOT = Path(__file__).parents[2]
TABLES = ("table1", "table2", "fidelity")


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_whole_report_comes_from_its_records_again(tmp_path):
    write_everything(tmp_path / "runs", records=2)
    report, records = tmp_path / "report", tmp_path / "report/records"
    assert main([f"runs={tmp_path / 'runs'}", f"output={report}"]) == 0
    # The runs once more as folders change nothing: each counts once.
    assert main([f"runs={records},{tmp_path / 'runs'}", f"output={tmp_path / 'again'}"]) == 0
    assert files(tmp_path / "again") == files(report)
    for name, content in files(records).items():
        assert b"answer 1" not in content, name
        assert b"/data/somewhere" not in content, name
    shown, _, folded = (report / "report.html").read_text("utf-8").partition("<details>")
    assert re.findall("<h3>(Table .)|<figcaption>(Figure .)", shown) == [("Table 1", ""), ("", "Figure 5")]
    assert re.findall("<figcaption>(Figure .)", folded) == ["Figure 7", "Figure 1", "Figure 2", "Figure 6"]
    assert shown.count("<img") + folded.count('src="data:image/png;base64,') == 5


@pytest.mark.slow
def test_committed_results_read_and_give_the_committed_numbers(report):
    results = ROOT / "results/tuned"
    folder = report(f"runs={results / 'records'}")
    for name in (*TABLES, "paired"):
        made, kept = ((path / f"{name}.csv").read_text("utf-8") for path in (folder, results))
        # Machines sum in different orders: a last digit may differ.
        pairs = zip(re.split(r"[,\n]", made), re.split(r"[,\n]", kept), strict=True)
        assert all(one == other or float(one) == pytest.approx(float(other), rel=2e-5) for one, other in pairs)


def test_the_page_is_whole_and_loads_nothing(tmp_path, report):
    for name in ("baseline", "lazyllm", "static_pruning"):
        write_run(tmp_path / "runs", name, rows_of(TASK))
    write_run(tmp_path / "runs", "random_drop", rows_of(TASK)[:7], finished=False, records_of=dict.fromkeys(TASK, 4))
    text = (report() / "report.html").read_text("utf-8")
    assert "keep=0.5</strong>: Multi-document QA, 7 of 12 records, unfinished" in text.partition("</table>")[2]
    assert "random" not in text.partition("</table>")[0]
    assert not re.search(r"<(link|iframe|object|embed|base|script)|(src|href|srcset|action)=|@import|url\(", text)
    for wanted in ("Table 1.", "Table 2.", "Paired", "NVIDIA A100", "schedule: 10:0.7,20:0.5", "22.43"):
        assert wanted in text


def test_what_settings_say_is_text_everywhere(tmp_path, report):
    settings = {"schedule": "<script>alert(1)</script>"}
    write_run(tmp_path / "runs", "odd", rows_of(TASK), method=settings, environment={"appearance": {"label": "odd|_&"}})
    folder = report()
    assert "<script" not in (folder / "report.html").read_text("utf-8")
    assert r"odd\|_&" in (folder / "table1.md").read_text("utf-8")
    assert r"odd$|$\_\&" in (folder / "table1.tex").read_text("utf-8")


def test_a_run_shows_its_own_command_without_folders(tmp_path, report):
    command = ["run", "--config-dir", "/home/me/conf", "method=mine", "data.root=/data/LB", "speedups=[2,3]"]
    command.append('hydra.searchpath=["file:///home/me/found"]')
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK), environment={"command": command})
    text = (report() / "report.html").read_text("utf-8")
    shown = "run --config-dir FOLDER/conf method=mine data.root=FOLDER/LB &#39;speedups=[2,3]&#39;"
    assert f"python -m lazybench {shown}" in text
    assert "/home/me" not in text


@pytest.fixture
def latex(tmp_path, report):
    """LaTeX of all tables, of methods whose settings hold every odd sign."""
    for position in range(4):
        odd = {"keep": f"{position}0% of_a {{b}} & $c", "scope": "<e> |f| [g] * ~ --i \\j"}
        look = {"appearance": {"label": "[odd]"}}
        write_run(tmp_path / "runs", "odd", rows_of(TASK, 3), digest=f"{position}", method=odd, environment=look)
    folder = report()
    return {name: (folder / f"{name}.tex").read_text("utf-8") for name in (*TABLES, "paired")}


def test_a_table_is_one_float_with_whole_rows(latex):
    for text in latex.values():
        for mark in (r"\begin{table*}", r"\end{table*}", r"\caption{", r"\label{", r"\toprule", r"\bottomrule"):
            assert text.count(mark) == 1, mark
        columns = re.search(r"begin\{tabular\}\{(llr+)\}", text)[1]
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(columns) - 1}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
def test_tables_compile(latex, tmp_path):
    head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "all.tex").write_text(head + "\n".join(latex.values()) + "\n\\end{document}\n", "ascii")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout


def test_traces_are_kept_as_means(tmp_path, report):
    rows = rows_of(TASK, 1)
    traces = attention_traces(rows, bins=200)[:2] + attention_traces(rows, bins=60)[2:]  # of a short prompt
    write_run(tmp_path / "runs", "baseline", rows, traces=traces)
    rows = [row("hotpotqa", number) for number in range(2)]
    traces = [
        {"_id": one["_id"], "dataset": "hotpotqa", "first_token_kl": 0.1, "stages": [10], "computed": computed}
        for one, computed in zip(rows, ([[0.5], [0.6], [0.7]], [[0.3]]), strict=True)
    ]
    traces.append(traces[0] | {"_id": "hotpotqa-2", "stages": [7]})  # of other stages, as folds may have
    write_run(tmp_path / "runs", "lazyllm", [*rows, row("hotpotqa", 2)], task="hotpotqa", traces=traces)
    paths = {path.parts[-2]: path for path in (report() / "records").rglob("*.json")}
    kept = {method: json.loads(path.read_text("utf-8"))["traces"] for method, path in paths.items()}
    assert kept["baseline"]["attention"]["records"] == 3
    assert all(sum(layer) == pytest.approx(1, abs=0.02) for layer in kept["baseline"]["attention"]["map"])
    # A generation that has ended keeps its last value.
    assert kept["lazyllm"]["computed"]["mean"] == [[0.4, 0.45, 0.5]]
    assert (kept["lazyllm"]["layers"], kept["lazyllm"]["computed"]["records"]) == ([10], 2)


def test_a_report_replaces_a_report_and_nothing_else(tmp_path, report, monkeypatch):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    folder = report()
    (folder / "figure9_old.png").write_bytes(b"")
    report()
    assert not (folder / "figure9_old.png").exists()
    before = files(folder)
    with monkeypatch.context() as patch:
        patch.setattr("lazybench.report.write._page", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            report()
    assert files(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "runs"]
    (folder / "mine.txt").write_text("keep")
    with pytest.raises(LazyBenchError, match=r"holds mine\.txt, which no report wrote"):
        report()
