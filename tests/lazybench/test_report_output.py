"""What the report writes: one page that loads nothing, figures, records that give the same report again."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest
from report_runs import attention_traces, row, rows_of, stage_traces, write_everything, write_run

from lazybench.analysis.reading import find
from lazybench.cli.report import main
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")
FIGURES = ("figure1", "figure2", "figure5", "figure6", "figure7")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The report of a model with runs for all tables and figures."""
    root = tmp_path_factory.mktemp("everything")
    write_everything(root / "runs", records=2)
    assert main([f"runs={root / 'runs'}", f"output={root / 'report'}"]) == 0
    return root


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_figure_is_drawn(everything):
    for name in FIGURES:
        stem = everything / f"report/{name}_llama2_7b_longbench"
        image = matplotlib.image.imread(f"{stem}.png")[..., :3]
        assert min(image.shape[:2]) > 400
        assert image.std() > 0.05
        assert len({tuple(pixel) for pixel in image[::7, ::7].reshape(-1, 3)}) > 5
        assert Path(f"{stem}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_records_give_the_same_report_again(everything, tmp_path):
    records = everything / "report/records"
    # The runs once more as folders change nothing: each counts once.
    assert main([f"runs={records},{everything / 'runs'}", f"output={tmp_path / 'again'}"]) == 0
    assert files(tmp_path / "again") == files(everything / "report")


def test_records_are_the_same_as_their_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK, 20))
    main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"])
    runs, said = find([str(tmp_path / "out/records"), str(tmp_path / "runs")])
    assert len(runs) == 1
    assert said == []


def test_records_hold_no_texts_and_no_folders_of_a_machine(everything):
    for name, content in files(everything / "report/records").items():
        assert b"answer 1" not in content, name
        assert b"/data/somewhere" not in content, name


class Loads(HTMLParser):
    """Collects all that a page would fetch, and the tags that are left open."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags, self.texts = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        keys = ("src", "href", "srcset", "data", "action", "poster", "background")
        self.fetched += [value for key, value in attributes if key in keys]

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_loads_nothing(everything):
    page = (everything / "report/report.html").read_text("utf-8")
    loads = Loads()
    loads.feed(page)
    assert len(loads.fetched) == len(FIGURES)
    assert all(value.startswith("data:image/png;base64,") for value in loads.fetched)
    assert page.count("<script") == 1  # the filter's, which stands in the page
    assert not {"link", "iframe", "object", "embed", "base"} & set(loads.tags)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert 'name="viewport"' in page
    said = " ".join(loads.texts)
    for text in ("Table 1.", "Table 2.", "Fidelity", "NVIDIA A100", "schedule: 10:0.7,20:0.5", "25.79"):
        assert text in said


def test_what_settings_say_is_text_on_the_page(tmp_path):
    settings = {"schedule": "<script>alert(1)</script>"}
    environment = {"appearance": {"label": "odd|_&"}}
    write_run(tmp_path / "runs", "odd", rows_of(TASK), method=settings, environment=environment)
    main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"])
    assert "<script" not in (tmp_path / "out/report.html").read_text("utf-8")
    assert r"odd\|_&" in (tmp_path / "out/table1.md").read_text("utf-8")
    assert r"odd\textbar{}\_\&" in (tmp_path / "out/table1.tex").read_text("utf-8")


def test_figures_without_runs_are_told(tmp_path, capsys):
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK))
    main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"])
    assert not list((tmp_path / "out").glob("figure*"))
    told = capsys.readouterr().out
    assert all(name in told for name in FIGURES)
    assert "method=lazyllm task=all trace=true" in told


def test_a_short_prompt_comes_with_fewer_bins(tmp_path):
    rows = rows_of(TASK, 1)
    traces = attention_traces(rows, bins=200)[:2] + attention_traces(rows, bins=60)[2:]
    write_run(tmp_path / "runs", "baseline", rows, traces=traces)
    main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"])
    (about,) = (tmp_path / "out/records").rglob("*.json")
    attention = json.loads(about.read_text("utf-8"))["traces"]["attention"]
    assert attention["records"] == 3
    assert all(sum(layer) == pytest.approx(1, abs=0.02) for layer in attention["map"])


def test_a_generation_that_has_ended_keeps_its_last_value(tmp_path):
    rows = [row("hotpotqa", number) for number in range(2)]
    traces = [
        {"_id": one["_id"], "dataset": "hotpotqa", "first_token_kl": 0.1, "stages": [10], "computed": computed}
        for one, computed in zip(rows, ([[0.5], [0.6], [0.7]], [[0.3]]), strict=True)
    ]
    write_run(tmp_path / "runs", "lazyllm", rows, task="hotpotqa", traces=traces)
    main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"])
    (about,) = (tmp_path / "out/records").rglob("*.json")
    assert json.loads(about.read_text("utf-8"))["traces"]["computed"]["mean"] == [[0.4, 0.45, 0.5]]


def test_a_report_replaces_a_report_and_nothing_else(tmp_path):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    words = [f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"]
    main(words)
    (tmp_path / "out/figure9_old.png").write_bytes(b"")
    main(words)
    assert not (tmp_path / "out/figure9_old.png").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]
    (tmp_path / "out/mine.txt").write_text("keep")
    with pytest.raises(LazyBenchError, match=r"holds mine\.txt, which no report wrote"):
        main(words)
    with pytest.raises(LazyBenchError, match="choose another folder"):
        main([words[0], f"output={tmp_path}"])


def test_an_error_leaves_the_earlier_report_as_it_was(tmp_path, monkeypatch):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    words = [f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"]
    main(words)
    before = files(tmp_path / "out")
    monkeypatch.setattr("lazybench.report.write.page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(words)
    assert files(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run=x"], "unknown setting 'run': did you mean 'runs'"),
        (["results"], "'results' is not key=value"),
        (["output="], "argument --output: empty, give a folder"),
        (["runs=nowhere"], "runs=nowhere: no such folder"),
        (["runs=."], "runs=.: no runs there"),
    ],
)
def test_bad_words(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LazyBenchError, match=message.replace(".", r"\.")):
        main(words)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_named(tmp_path):
    folder = write_run(tmp_path / "runs", "lazyllm", rows_of(TASK), traces=stage_traces(rows_of(TASK)))
    words = [f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'out'}"]
    predictions = folder / "predictions.jsonl"
    whole = predictions.read_text("utf-8")
    predictions.write_text(whole + '{"_id": "cut', "utf-8")
    assert main(words) == 0
    predictions.write_text("no\n" + whole, "utf-8")
    with pytest.raises(LazyBenchError, match=r"predictions\.jsonl:1 is not a record"):
        main(words)
    predictions.write_text(json.dumps(row("hotpotqa", 1) | {"ttft_s": "fast"}) + "\n", "utf-8")
    with pytest.raises(LazyBenchError, match="'ttft_s' must be a number or null"):
        main(words)
    (folder / "config.yaml").write_text("[", "utf-8")
    with pytest.raises(LazyBenchError, match=r"config\.yaml is damaged"):
        main(words)
    (compact,) = (tmp_path / "out/records").rglob("*.csv")
    compact.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(LazyBenchError, match="the columns must be"):
        main([f"runs={tmp_path / 'out/records'}", f"output={tmp_path / 'other'}"])


def test_help_and_imports(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert "runs=FOLDER" in said
    assert "results/runs" in said
    modules = "lazybench.analysis.reading, lazybench.report.write"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, env=os.environ, check=False).returncode == 0
