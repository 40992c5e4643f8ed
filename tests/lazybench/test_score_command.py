"""`lazybench score FILE`."""

import json

import pytest
from report_runs import failed, row, write_run

from lazybench.cli.score import main
from lazybench.errors import LazyBenchError

ROW = {"dataset": "hotpotqa", "prediction": "Paris", "answers": ["Paris"], "all_classes": None}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_table_and_records(tmp_path, capsys):
    rows = [
        ROW | {"id": "a", "seconds": 0.1, "score": 7},
        ROW | {"prediction": "half \ud800 Paris"},
        ROW | {"dataset": "lcc", "prediction": "abcd", "answers": ["bcde"]},
    ]
    out = tmp_path / "scored.jsonl"
    assert main([write(tmp_path / "predictions.jsonl", *rows), "--output", str(out)]) == 0
    scored = read(out)
    assert [row["score"] for row in scored] == pytest.approx([1.0, 0.5, 0.75])
    assert [row | {"score": 0} for row in scored] == [row | {"score": 0} for row in rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.jsonl", "scored.jsonl"]
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in table if not line or set(line[0]) != {"-"}] == [
        ["dataset", "records", "score"],
        ["hotpotqa", "2", "75.00"],
        ["lcc", "1", "75.00", "code_sim_indel", "75.00"],
        [],
        ["task", "datasets", "score"],
        ["multidoc_qa", "1/3", "75.00"],
        ["code", "1/2", "75.00"],
    ]


def test_failed_records_are_counted_and_in_no_score_and_a_link_stays_a_link(tmp_path, capsys):
    file, link = tmp_path / "predictions.jsonl", tmp_path / "link.jsonl"
    write(file, ROW, ROW | {"prediction": None, "error": "oom"})
    link.symlink_to(file)
    assert main([str(file), "--output", str(link)]) == 0
    assert link.is_symlink()
    assert [row["score"] for row in read(file)] == [1, None]
    assert "1 of 2 records failed and are in no score" in capsys.readouterr().err


def test_a_runs_record_of_several_seeds_scores_as_their_mean(tmp_path, capsys):
    row = ROW | {"repeats": [{"prediction": text} for text in ("Paris", "Rome", "Rome", "Rome")]}
    out = tmp_path / "scored.jsonl"
    assert main([write(tmp_path / "predictions.jsonl", row), "--output", str(out)]) == 0
    assert read(out)[0]["score"] == 0.25
    assert "25.00" in capsys.readouterr().out


def test_the_records_of_a_report_are_scored_row_by_row(tmp_path, capsys, report):
    classes, out = {"answers": ["Date"], "all_classes": ["Date", "Food"]}, tmp_path / "scored.jsonl"
    for method, answers in {"baseline": ('Paris, "France"', "Date"), "lazyllm": ("Paris", "Food\n")}.items():
        rows = [row("hotpotqa", 0, prediction=answers[0], answers=["Paris"]), row("trec", 0, **classes)]
        rows[1]["prediction"] = answers[1]
        write_run(tmp_path / "runs", method, [*rows, failed("trec", 1)], task="all")
    file = report() / "records.csv"
    capsys.readouterr()
    assert main([str(file), "--output", str(out)]) == 0
    scores = {(line["method"], line["dataset"], line["_id"]): line["score"] for line in read(out)}
    assert scores["baseline", "hotpotqa", "hotpotqa-0"] == pytest.approx(2 / 3)
    assert scores["lazyllm", "hotpotqa", "hotpotqa-0"] == 1
    assert [scores[method, "trec", "trec-0"] for method in ("baseline", "lazyllm")] == [1, 0]
    assert scores["lazyllm", "trec", "trec-1"] is None
    printed = capsys.readouterr().out
    assert printed.index("longbench: unmodified") < printed.index("66.67") < printed.index("longbench: LazyLLM")


def test_a_report_keeps_each_runs_references_and_rows_that_failed(tmp_path, capsys, report):
    for seed, word in enumerate(("Paris", "Rome")):  # the same id names another record
        for method in ("baseline", "static_pruning", "lazyllm"):
            line = row("hotpotqa", 0, prediction=word, answers=[word])
            line = failed("hotpotqa", 0) if method == "static_pruning" else line
            write_run(tmp_path / "runs", method, [line], task="hotpotqa", digest=word, data={"seed": seed})
    file, out = report() / "records.csv", tmp_path / "scored.jsonl"
    assert main([str(file), "--output", str(out)]) == 0
    assert [line["score"] for line in read(out)] == [1, None, 1, 1, None, 1]
    err = capsys.readouterr().err
    assert [line.count("static pruning") for line in err.splitlines() if "1 of 1 records failed" in line] == [1, 1]


def test_several_files_are_scored_together(tmp_path, capsys):
    files = [write(tmp_path / f"{name}.jsonl", ROW | {"dataset": None}) for name in ("hotpotqa", "musique")]
    assert main([*files, "--output", str(tmp_path / "scored.jsonl")]) == 0
    assert read(tmp_path / "scored.jsonl") == 2 * [ROW | {"dataset": None, "score": 1.0}]
    assert "2/3" in capsys.readouterr().out


def test_answers_of_two_methods_have_no_score_together(tmp_path):
    one, other = (write(tmp_path / f"{name}.jsonl", ROW | {"_id": "a"}) for name in ("one", "other"))
    both = write(tmp_path / "both.jsonl", ROW | {"_id": "a"}, ROW | {"_id": "b"}, ROW | {"_id": "a"})
    folders = [tmp_path / name for name in ("x", "y")]
    for folder in folders:
        folder.mkdir()
    official = [write(folder / "hotpotqa.jsonl", ROW | {"dataset": None}) for folder in folders]
    for files in ([one, other], [both], official):
        with pytest.raises(LazyBenchError, match="answered twice"):
            main(files)
    assert main([one, one]) == 0


def test_lines_without_a_dataset_get_the_given_one(tmp_path, capsys):
    row = {"pred": "\nDate\nmore", "answers": ["Date"], "all_classes": ["Date", "City"], "length": 9}
    assert main([write(tmp_path / "other.jsonl", row), "--dataset", "trec"]) == 0
    assert ["trec", "1", "100.00"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    with pytest.raises(LazyBenchError, match=r"other\.jsonl:1: unknown dataset 'other': .*--dataset NAME"):
        main([write(tmp_path / "other.jsonl", row)])


def test_custom_datasets_are_found_in_their_configs(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    config = "{task: mine, prompt: '{context}', max_new_tokens: 4, metric: qa_f1}"
    (tmp_path / "data/mine.yaml").write_text(f"source: longbench\ndatasets: {{my_qa: {config}}}")
    file = write(tmp_path / "p.jsonl", ROW, ROW | {"dataset": "my_qa", "prediction": "half Paris"})
    assert main([file, "--config-dir", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["my_qa", "1", "66.67"] in lines
    assert ["mine", "1/1", "66.67"] in lines
    with pytest.raises(LazyBenchError, match="unknown dataset 'my_qa'"):
        main([file])
    (tmp_path / "data/other.yaml").write_text(
        f"source: longbench\ndatasets: {{my_qa: {config.replace('qa_f1', 'rouge')}}}"
    )
    with pytest.raises(LazyBenchError, match="differ in 'my_qa'"):
        main([file, "--config-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(ROW | {"error": "oom"}), "there is no prediction in it"),
        (json.dumps(ROW | {"dataset": "hotpot"}), ":1: unknown dataset 'hotpot': did you mean 'hotpotqa'?"),
        (json.dumps(ROW | {"prediction": None}), ":1: 'prediction' (or 'pred') must be a string, not null"),
        (json.dumps(ROW | {"dataset": "trec"}), ":1: classification needs the class names"),
    ],
)
def test_a_bad_line_ends_in_one_line_and_keeps_the_output(tmp_path, content, message):
    file, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    file.write_text(content)
    out.write_text("before")
    with pytest.raises(LazyBenchError) as caught:
        main([str(file), "--output", str(out)])
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert out.read_text() == "before"
