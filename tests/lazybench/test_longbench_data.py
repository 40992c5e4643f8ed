"""Reading LongBench's records from folders, archives and the hub's cache, sound and damaged."""

import json
import os
import zipfile
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import folders, one_line, rows

from lazybench.config import DataConfig
from lazybench.data import choose, load_dataset_configs
from lazybench.data.dataset_configs import english
from lazybench.data.longbench import download, load
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError

ROW = {"input": "Who?", "context": "It was Ada. " * 20, "answers": ["me"], "length": 60, "dataset": "qasper"}
ROW |= {"language": "en", "all_classes": None, "_id": "1"}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def folder(path, content, dataset="qasper"):
    path.mkdir(exist_ok=True)
    (path / f"{dataset}.jsonl").write_bytes(content)
    return path


def archive(path, content, member="data/qasper.jsonl", compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr(member, content)
    return path


FIELDS = Record.__dataclass_fields__
# What a reader that guesses types would take for a time, a number or nothing, and what is no line's end.
_TYPED = ["2020-01-01", "2021-12-31T00:00:00Z", "3", "1e5", "null", "true", "NaN", "", "\u2028\u0085\r\n\x00\U0001f600"]
texts = st.sampled_from(_TYPED) | st.text(st.characters(exclude_categories=["Cs"]))
row_of = st.fixed_dictionaries(
    {
        "input": texts,
        "context": texts,
        "language": texts,
        "answer_prefix": texts,
        "groups": texts,
        "dataset": st.just("qasper"),
        "length": st.integers(0, 2**63 - 1),
        "answers": st.lists(texts, min_size=1),
        "all_classes": st.none() | st.lists(texts, min_size=1),
    },
    optional={"extra": st.none() | st.floats() | st.integers() | texts},
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(row_of, min_size=1, max_size=4), data=st.data())
def test_any_text_in_a_record_is_read_as_python_reads_it(tmp_path_factory, rows, data):
    rows = [row | {"_id": str(number)} for number, row in enumerate(rows)]
    ascii_only, blank = data.draw(st.booleans()), data.draw(st.sampled_from(["", "\n", "\r\n", " \t \n"]))
    content = blank.join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()
    root = folder(tmp_path_factory.mktemp("rows"), data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content)
    for row, record in zip(rows, load("qasper", root, None), strict=True):
        assert json.loads(json.dumps(asdict(record))) == {name: row["_id" if name == "id" else name] for name in FIELDS}


@pytest.mark.parametrize("layout", ["flat", "data", "zip", "flat zip"])
def test_layouts_and_limit(tmp_path, layout):
    content, root = lines(ROW, ROW | {"_id": "2"}), tmp_path
    if "zip" in layout:
        root = archive(tmp_path / "any.zip", content, "qasper.jsonl" if layout == "flat zip" else "data/qasper.jsonl")
    else:
        folder(tmp_path / "data" if layout == "data" else tmp_path, content)
    records = load("qasper", str(root), None)
    assert [record.id for record in records] == ["1", "2"]
    assert load("qasper", root, 1) == records[:1]
    assert len(load("qasper", root, 9)) == 2
    first, second = records
    assert len({fingerprint(each) for each in ([], [first], [second], [first, second], [second, first])}) == 5
    assert fingerprint(records) == fingerprint(load("qasper", root, None))


def test_a_file_is_read_as_it_is_now_and_nothing_is_written_beside_it(tmp_path):
    root = folder(tmp_path / "[x] y", lines(ROW))  # signs of a pattern
    times = os.stat(root / "qasper.jsonl")
    assert load("qasper", root, None)[0].input == "Who?"
    folder(root, lines(ROW | {"input": "Why?"}))
    os.utime(root / "qasper.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load("qasper", root, None)[0].input == "Why?"
    assert [path.name for path in root.iterdir()] == ["qasper.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "qasper.jsonl: the file is empty"),
        (lines(ROW) + b'{"input": \n', "qasper.jsonl:2: not JSON: Expecting value"),
        (lines(ROW) + b"\xff\n", "qasper.jsonl:2: not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[1]\n", "qasper.jsonl:1: each line must be a JSON object, not [1]"),
        (lines(ROW | {"answers": "me"}), ":1: 'answers' must be a list of one string or more"),
        (
            b'{"_id": 1}',
            ":1: '_id' must be a string, not 1; 'input' must be a string, and is missing; 'context' must be",
        ),
        (lines(ROW | {"length": True}), ":1: 'length' must be a whole number of words"),
        (lines(ROW | {"dataset": "trec"}), ":1: 'dataset' must be 'qasper', not 'trec'"),
        (lines(ROW, ROW), "qasper.jsonl:2: '_id' '1' is also the id of"),
    ],
)
def test_bad_records_are_one_line_with_file_and_line(tmp_path, content, message):
    for root in (folder(tmp_path, content), archive(tmp_path / "data.zip", content)):
        with pytest.raises(LazyBenchError) as caught:
            load("qasper", root, 1)
        assert message in str(caught.value)
        assert str(root) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_record_needs_a_context_an_input_and_answers(tmp_path):
    root = folder(tmp_path, 2 * lines({"context": "It was Ada.", "input": "Who?", "answers": ["Ada"]}))
    given = ("qasper", "Who?", "It was Ada.", ("Ada",), None, 3)
    assert load("qasper", root, None) == [Record("0", *given), Record("1", *given)]


def test_unusable_roots_and_missing_datasets(tmp_path):
    with pytest.raises(LazyBenchError, match=r"cannot be loaded: .*No such file or directory"):
        load("qasper", tmp_path / "nowhere", None)
    folder(tmp_path, lines(ROW), "lcc")
    with pytest.raises(LazyBenchError, match=r"no trec\.jsonl there: found lcc$"):
        load("trec", tmp_path, None)
    with pytest.raises(LazyBenchError, match=r"no qasper\.jsonl there: found $"):
        load("qasper", archive(tmp_path / "evil.zip", lines(ROW), "../data/qasper.jsonl"), None)


def test_all_means_the_datasets_of_a_folder_or_archive(tmp_path):
    mine = {name: {"prompt": "{input}", "max_new_tokens": 8, "metric": "qa_f1"} for name in ("mine", "other")}
    there = DataConfig("mine", "longbench", root=str(tmp_path), datasets=mine)
    folder(tmp_path, b"", "lsht")
    with pytest.raises(LazyBenchError, match=r"task=all: .* has none of .* or of data\.datasets$"):
        choose("all", there, load_dataset_configs(mine))
    folder(tmp_path, b"", "mine")
    assert choose("all", there, load_dataset_configs(mine)).left_out == f"task=all: mine; {tmp_path} lacks other"
    for name in ("trec", "qasper", "unknown"):
        folder(tmp_path, b"", name)
    chosen = choose("all", there, load_dataset_configs(mine))
    assert chosen.available == chosen.datasets == ["qasper", "trec", "mine"]
    assert "lacks narrativeqa, " in chosen.left_out
    fewshot = choose("fewshot", there, load_dataset_configs(mine))
    assert (fewshot.datasets, fewshot.left_out) == (["trec", "triviaqa", "samsum"], None)
    zipped = archive(tmp_path / "data.zip", b"", "data/trec.jsonl")
    assert choose("all", DataConfig("zip", "longbench", root=str(zipped)), load_dataset_configs()).available == ["trec"]
    for config in (DataConfig("hub", "longbench"), DataConfig("sample", "sample", limit=1)):
        chosen = choose("all", config, load_dataset_configs())
        assert chosen.available == chosen.datasets == english()


def test_the_hubs_cache_is_used_offline(offline, tmp_path):
    download.cache_clear()
    with pytest.raises(LazyBenchError, match=r"download it, and give data\.root=<path to data\.zip>"):
        load("qasper", None, None)
    repository, commit = tmp_path / "hub/datasets--THUDM--LongBench", "0123456789abcdef0123456789abcdef01234567"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    archive(repository / "snapshots" / commit / "data.zip", lines(ROW))
    assert load("qasper", None, None)[0].input == "Who?"
    download.cache_clear()


def test_bad_records_stop_a_run_before_anything_is_written_and_ids_are_never_paths(run, tmp_path):
    ids = ["../../x", "/etc/x", "..", "con\nfig", "<b>", "x" * 300, "\u0000"]
    root = folder(tmp_path / "records", lines(*(ROW | {"_id": name} for name in ids)))
    words = ("method=baseline", "task=qasper", "data=longbench", f"data.root={root}", "data.limit=null")
    words += ("timing.per_dataset=0",)
    content = (root / "qasper.jsonl").read_bytes()
    folder(root, content + b"{")
    code, _, err = run(*words)
    assert f"{root}/qasper.jsonl:8: not JSON" in one_line(code, err)
    assert not (tmp_path / "runs").exists()
    folder(root, content)
    code, _, err = run(*words)
    assert code == 0, err
    (made,) = folders(tmp_path / "runs")
    assert [row["_id"] for row in rows(made)] == ids
    assert {path.name for path in tmp_path.iterdir()} == {"records", "runs"}
