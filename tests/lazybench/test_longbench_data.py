"""Reading LongBench's records from folders, archives and the hub's cache."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybench.config import DataConfig
from lazybench.data import choose, load_facts
from lazybench.data.facts import english
from lazybench.data.longbench import load
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError

SHARED = Path(__file__).parents[2].parent / "shared/longbench"
ROW = {
    "input": "Who?",
    "context": "A text.",
    "answers": ["me"],
    "length": 3,
    "dataset": "qasper",
    "language": "en",
    "all_classes": None,
    "_id": "1",
}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def folder(path, content, dataset="qasper"):
    (path / f"{dataset}.jsonl").write_bytes(content)
    return path


def archive(path, content, member="data/qasper.jsonl"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, content)
    return path


def test_a_record_survives_exactly(tmp_path):
    odd = "2020-01-01\u2028\u0085\r\n\x00\U0001f600\ufeff\u00e9 e\u0301\t"
    rows = [
        ROW | {"input": "2020-01-01", "context": odd, "answers": ["2020-01-01", "3", ""], "extra": 1},
        ROW | {"input": "2021-12-31T00:00:00Z", "all_classes": ["1", "null"], "_id": "2", "extra": "x"},
        ROW | {"input": "", "length": 0, "_id": "3"},
    ]
    records = load("qasper", folder(tmp_path, lines(*rows)), None)
    assert records == [
        Record("1", "qasper", "2020-01-01", odd, ("2020-01-01", "3", ""), None, 3),
        Record("2", "qasper", "2021-12-31T00:00:00Z", "A text.", ("me",), ("1", "null"), 3),
        Record("3", "qasper", "", "A text.", ("me",), None, 0),
    ]


FIELDS = Record.__dataclass_fields__
# What a reader that guesses types would take for a time, a number or nothing.
_TYPED = ["2020-01-01", "2021-12-31T00:00:00Z", "1999-02-03 10:11:12.5", "3", "1.50", "1e5", "null", "true", "NaN", ""]
texts = st.sampled_from(_TYPED) | st.text(st.characters(exclude_categories=["Cs"]))
row_of = st.fixed_dictionaries(
    {
        "input": texts,
        "context": texts,
        "language": texts,
        "dataset": st.just("qasper"),
        "length": st.integers(0, 2**63 - 1),
    }
    | {"answers": st.lists(texts, min_size=1), "all_classes": st.none() | st.lists(texts, min_size=1)},
    optional={"extra": st.none() | st.floats() | st.integers() | texts | st.lists(st.integers() | texts), "": texts},
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(row_of, min_size=1, max_size=4), data=st.data())
def test_whatever_is_in_a_record_comes_out_as_python_reads_it(tmp_path_factory, rows, data):
    rows = [row | {"_id": str(number)} for number, row in enumerate(rows)]
    rows = [dict(data.draw(st.permutations(list(row.items())))) for row in rows]
    ascii_only, blank = data.draw(st.booleans()), data.draw(st.sampled_from(["", "\n", "\r\n", " \t \n"]))
    content = blank.join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()
    root = folder(tmp_path_factory.mktemp("rows"), data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content)
    for row, record in zip(rows, load("qasper", root, None), strict=True):
        assert json.loads(json.dumps(asdict(record))) == {name: row["_id" if name == "id" else name] for name in FIELDS}


def test_a_record_may_be_long(tmp_path):
    rows = [ROW | {"_id": str(number), "context": f"{number} " * 3_000_000} for number in range(2)]
    assert [len(record.context) for record in load("qasper", folder(tmp_path, lines(*rows)), None)] == [6_000_000] * 2


@pytest.mark.parametrize("layout", ["flat", "data", "zip", "flat zip"])
def test_layouts_and_limit(tmp_path, layout):
    content = lines(ROW, ROW | {"_id": "2"})
    if layout == "data":
        (tmp_path / "data").mkdir()
        folder(tmp_path / "data", content)
    root = {
        "flat": lambda: folder(tmp_path, content),
        "data": lambda: tmp_path,
        "zip": lambda: archive(tmp_path / "data.zip", content),
        "flat zip": lambda: archive(tmp_path / "other.zip", content, "qasper.jsonl"),
    }[layout]()
    assert [record.id for record in load("qasper", str(root), None)] == ["1", "2"]
    assert [record.id for record in load("qasper", root, 1)] == ["1"]
    assert len(load("qasper", root, 9)) == 2


def test_a_changed_file_is_read_anew_and_nothing_is_left_behind(tmp_path):
    load("qasper", folder(tmp_path, lines(ROW)), None)
    [record] = load("qasper", folder(tmp_path, lines(ROW | {"input": "What?"})), None)
    assert record.input == "What?"
    assert [path.name for path in tmp_path.iterdir()] == ["qasper.jsonl"]


def test_bom_and_blank_lines_are_accepted(tmp_path):
    root = folder(tmp_path, b"\xef\xbb\xbf" + lines(ROW) + b"\r\n\n" + lines(ROW | {"_id": "2"}).rstrip())
    assert len(load("qasper", root, None)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "qasper.jsonl: the file is empty"),
        (b"\n \n", "qasper.jsonl: the file is empty"),
        (lines(ROW) + b'{"input": \n', "qasper.jsonl:2: not JSON: Expecting value at column"),
        (lines(ROW) + b"\xff\n", "qasper.jsonl:2: not UTF-8"),
        (b"null\n", "qasper.jsonl:1: a JSON object must stand on each line, not null"),
        (lines(ROW)[:-1] + b"null\n", "qasper.jsonl:1: not JSON: Extra data at column"),
        (b"[1]\n", "qasper.jsonl:1: a JSON object must stand on each line, not a list"),
        (b"[" * 100_000, "qasper.jsonl:1: JSON that cannot be read"),
        (b"1" * 10_000, "qasper.jsonl:1: JSON that cannot be read"),
        (lines({k: v for k, v in ROW.items() if k != "answers"}), ":1: the field 'answers' is missing"),
        (lines(ROW | {"input": None}), ":1: 'input' must be a string, not null"),
        (lines(ROW | {"context": 3}), ":1: 'context' must be a string, not a number"),
        (lines(ROW | {"answers": "me"}), ":1: 'answers' must be a list of one string or more"),
        (lines(ROW | {"answers": []}), ":1: 'answers' must be a list of one string or more"),
        (lines(ROW | {"answers": ["me", 1]}), ":1: 'answers' must be a list of one string or more"),
        (lines(ROW | {"all_classes": "a"}), ":1: 'all_classes' must be null or a list"),
        (lines(ROW | {"length": True}), ":1: 'length' must be a whole number of words"),
        (lines(ROW | {"length": 2**63}), ":1: 'length' must be a whole number of words"),
        (
            lines(ROW | {"dataset": "trec"}),
            ":1: 'dataset' must be 'qasper', like the file's name, not 'trec'",
        ),
        (lines(ROW | {"_id": ""}), ":1: '_id' must not be empty"),
        (lines(ROW, ROW), "qasper.jsonl:2: '_id' '1' stands already at"),
        (lines(ROW | {"answers": ["\ud800"]}), ":1: 'answers' holds half of a surrogate pair"),
    ],
)
def test_bad_records_are_one_line_with_file_and_line(tmp_path, content, message):
    for root in (folder(tmp_path, content), archive(tmp_path / "data.zip", content)):
        with pytest.raises(LazyBenchError) as caught:
            load("qasper", root, 1)
        assert message in str(caught.value)
        assert str(root) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_dataset_names_those_that_are_there(tmp_path):
    folder(tmp_path, lines(ROW))
    folder(tmp_path, lines(ROW), "lcc")
    with pytest.raises(LazyBenchError, match=r"no trec\.jsonl there: found lcc, qasper$"):
        load("trec", tmp_path, None)
    with pytest.raises(LazyBenchError, match=r"no trec\.jsonl there: found qasper$"):
        load("trec", archive(tmp_path / "data.zip", lines(ROW)), None)


def test_all_is_what_a_folder_or_an_archive_has(tmp_path):
    mine = {"mine": {"prompt": "{input}", "max_new_tokens": 8, "metric": "qa_f1"}}
    mine["other"] = mine["mine"]
    for name in ("trec", "lsht", "mine", "qasper", "unknown"):
        folder(tmp_path, b"", name)
    zipped = archive(tmp_path / "data.zip", b"", "data/trec.jsonl")
    there = DataConfig("mine", "longbench", root=str(tmp_path), datasets=mine)
    chosen = choose("all", there, load_facts(mine))
    assert chosen.has == chosen.datasets == ["qasper", "trec", "mine"]
    assert chosen.left_out.startswith(f"task=all: the 3 datasets that {tmp_path} has; not there: narrativeqa, ")
    assert chosen.left_out.endswith("repobench-p, other")
    fewshot = choose("fewshot", there, load_facts(mine))
    assert fewshot.datasets == ["trec", "triviaqa", "samsum"]
    assert fewshot.has == chosen.has
    assert fewshot.left_out is None
    assert choose("all", DataConfig("zip", "longbench", root=str(zipped)), load_facts()).has == ["trec"]
    for whole in (DataConfig("hub", "longbench"), DataConfig("sample", "sample", limit=1)):
        chosen = choose("all", whole, load_facts())
        assert chosen.has == chosen.datasets == english()
        assert chosen.left_out is None


def test_what_all_lacks_is_told_of_the_kind_of_data_that_is_there(tmp_path):
    mine = {name: {"prompt": "{input}", "max_new_tokens": 8, "metric": "qa_f1"} for name in ("mine", "other")}
    there = DataConfig("mine", "longbench", root=str(tmp_path), datasets=mine)
    folder(tmp_path, b"", "lsht")
    with pytest.raises(LazyBenchError, match=r"task=all: none of .* or of data\.datasets there: found lsht$"):
        choose("all", there, load_facts(mine))
    assert choose("lsht", there, load_facts(mine)).datasets == ["lsht"]
    folder(tmp_path, b"", "mine")
    chosen = choose("all", there, load_facts(mine))
    assert chosen.left_out == f"task=all: the one dataset that {tmp_path} has; not there: other"
    folder(tmp_path, b"", "other")
    assert choose("all", there, load_facts(mine)).left_out is None


def test_a_name_never_becomes_a_path(tmp_path):
    (tmp_path / "inner").mkdir()
    folder(tmp_path, lines(ROW))
    with pytest.raises(LazyBenchError, match="is no dataset's name"):
        load("../qasper", tmp_path / "inner", None)
    with pytest.raises(LazyBenchError, match=r"no qasper\.jsonl there: found no \.jsonl file"):
        load("qasper", archive(tmp_path / "evil.zip", lines(ROW), "../data/qasper.jsonl"), None)


def test_unusable_roots(tmp_path):
    with pytest.raises(LazyBenchError, match="no such folder or archive"):
        load("qasper", tmp_path / "nowhere", None)
    plain = tmp_path / "data.zip"
    plain.write_text("not a zip")
    with pytest.raises(LazyBenchError, match="nor a readable zip archive"):
        load("qasper", plain, None)
    ids = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(200))
    damaged = archive(plain, lines(*(ROW | {"_id": name} for name in ids))).read_bytes()
    plain.write_bytes(damaged[:500] + bytes(200) + damaged[700:])
    with pytest.raises(LazyBenchError, match=r"data\.zip"):
        load("qasper", plain, None)
    with pytest.raises(LazyBenchError, match="must be 1 or more, not 0"):
        load("qasper", tmp_path, 0)


def test_an_archive_that_unpacks_too_far_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.data.longbench._MAX_BYTES", 100)
    with pytest.raises(LazyBenchError, match=r"unpacks to \d+ bytes; 100 are allowed"):
        load("qasper", archive(tmp_path / "data.zip", lines(ROW)), None)


def from_hub(home, root=None):
    """Load from the hub's cache in a process of its own: the hub library reads its settings when imported."""
    code = (
        "from lazybench.data.longbench import load\n"
        "from lazybench.errors import LazyBenchError\n"
        f"try: print(load('qasper', {root and str(root)!r}, None)[0].input)\n"
        "except LazyBenchError as error: print(error)\n"
    )
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)}
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        environment.pop(name, None)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment).stdout


def test_the_hub_cache_is_used_offline(tmp_path):
    repository = tmp_path / "hub/datasets--THUDM--LongBench"
    snapshot = repository / "snapshots/0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(snapshot.name)
    archive(snapshot / "data.zip", lines(ROW))
    assert from_hub(tmp_path) == "Who?\n"


def test_nothing_is_left_in_the_users_cache(tmp_path):
    assert from_hub(tmp_path / "home", folder(tmp_path, lines(ROW))) == "Who?\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["qasper.jsonl"]


def test_without_network_and_cache_the_way_out_is_named(tmp_path):
    message = from_hub(tmp_path)
    assert message.startswith("data.zip of THUDM/LongBench is neither in the local cache nor")
    assert "download it and name it with data.root=<path to data.zip>" in message
    assert message.count("\n") == 1


def test_fingerprint_follows_content_and_order(tmp_path):
    first, second = load("qasper", folder(tmp_path, lines(ROW, ROW | {"_id": "2"})), None)
    assert len(fingerprint([first])) == 64
    assert len({fingerprint(r) for r in ([], [first], [second], [first, second], [second, first])}) == 5
    again = load("qasper", archive(tmp_path / "data.zip", lines(ROW, ROW | {"_id": "2"})), None)
    assert fingerprint(again) == fingerprint([first, second])


@pytest.mark.skipif(not SHARED.exists(), reason="LongBench's records are not beside this checkout")
def test_real_records():
    for path in (SHARED / "data").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for row, record in zip(rows, load(path.stem, SHARED, None), strict=True):
            assert (record.input, record.context, list(record.answers)) == (
                row["input"], row["context"], row["answers"]
            )  # fmt: skip
