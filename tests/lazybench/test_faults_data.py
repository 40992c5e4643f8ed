"""Records that are damaged, hostile or not there: one line says which file and line, and nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from support import folders, one_line, rows

from lazybench.data.longbench import load
from lazybench.errors import LazyBenchError

ROW = {
    "input": "Who?",
    "context": "It was Ada. " * 60,
    "answers": ["Ada"],
    "length": 180,
    "dataset": "hotpotqa",
    "language": "en",
    "all_classes": None,
    "_id": "r0",
}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


SOUND = lines(ROW, ROW | {"_id": "r1"})


def zipped(content=SOUND, member="data/hotpotqa.jsonl", compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr(member, content)
    return bytearray(buffer.getvalue())


def central(archive):
    """Where the one entry of the central directory begins."""
    return archive.rindex(b"PK\x01\x02")


def encrypted():
    archive = zipped()
    for flags in (6, central(archive) + 8):
        archive[flags] |= 1
    return archive


def wrong_checksum():
    archive = zipped(compression=zipfile.ZIP_STORED)
    archive[archive.index(b"Ada")] ^= 1
    return archive


def understated(content):
    """An archive that says of its one member that it unpacks to 100 bytes."""
    archive = zipped(content)
    for sizes in (22, central(archive) + 24):
        archive[sizes : sizes + 4] = struct.pack("<I", 100)
    return archive


@pytest.fixture
def run_on(run, tmp_path):
    """Run on records that lie at `data.root`; what the command says, which left nothing behind."""

    def call(root, task="hotpotqa"):
        code, _, err = run("method=baseline", f"task={task}", "data=longbench", f"data.root={root}", "data.limit=1")
        assert not (tmp_path / "runs").exists()
        return one_line(code, err)

    return call


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines(ROW) + b'{"input": "Who?", "con', ":2: not JSON: Unterminated string"),
        (lines(ROW, {"input": "Who?"}), ":2: the field 'context' is missing"),
        (lines(ROW, ROW | {"_id": 7}), ":2: '_id' must be a string, not a number"),
        (lines(ROW | {"answers": {"text": "Ada"}}), ":1: 'answers' must be a list of one string or more"),
        (lines(ROW | {"length": "long"}), ":1: 'length' must be a whole number"),
        (lines(ROW | {"length": float("nan")}), ":1: 'length' must be a whole number"),
        (bytes(range(128, 256)) * 8, ":1: not UTF-8"),
        (bytes(4096), ":1: not JSON"),
        (b"\x1f\x8b\x08" + bytes(range(200)), ":1: not UTF-8"),
        (b"", "the file is empty"),
    ],
)
def test_a_bad_record_stops_the_run_before_anything_is_written(run_on, tmp_path, content, says):
    (tmp_path / "hotpotqa.jsonl").write_bytes(content)
    said = run_on(tmp_path)
    assert f"{tmp_path}/hotpotqa.jsonl{says if says.startswith(':') else ': ' + says}" in said


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        (zipped()[:-30], "File is not a zip file"),
        (zipped()[: len(zipped()) // 2], "File is not a zip file"),
        (zipped()[:40] + zipped()[60:], "readable zip archive"),
        (encrypted(), "is encrypted"),
        (wrong_checksum(), "Bad CRC-32"),
        (zipped(compression=zipfile.ZIP_BZIP2), "compressed in a way other than deflate"),
        (zipped(compression=zipfile.ZIP_LZMA), "compressed in a way other than deflate"),
        (zipped(member="../../data/hotpotqa.jsonl"), "no hotpotqa.jsonl there: found no .jsonl file"),
        (zipped(member="/data/hotpotqa.jsonl"), "no hotpotqa.jsonl there: found no .jsonl file"),
        (zipped(member="data/lcc.jsonl"), "no hotpotqa.jsonl there: found lcc"),
        (b"", "File is not a zip file"),
    ],
)
def test_a_bad_archive_is_named(run_on, tmp_path, archive, says):
    path = tmp_path / "inner" / "data.zip"
    path.parent.mkdir()
    path.write_bytes(archive)
    said = run_on(path)
    assert str(path) in said
    assert says in said
    assert [found.name for found in tmp_path.rglob("*.jsonl")] == []


def test_an_archive_that_understates_its_size_unpacks_no_further(tmp_path):
    path = tmp_path / "data.zip"
    path.write_bytes(understated(b" " * (1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(LazyBenchError, match="Bad CRC-32"):
            load("hotpotqa", path, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 22


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_cut_or_damaged_anywhere_is_one_line_or_whole(tmp_path, compression):
    path, whole = tmp_path / "data.zip", zipped(compression=compression)
    path.write_bytes(whole)
    records = load("hotpotqa", path, None)
    damaged = [whole[:size] for size in range(0, len(whole), 23)]
    for place in range(0, len(whole), 5 if compression else 29):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        damaged.append(flipped)
    said = [what_is_wrong(path, archive, records) for archive in damaged]
    assert all("\n" not in line for line in said)
    assert sum(map(bool, said)) > len(damaged) / 2


def what_is_wrong(path, archive, records):
    """The message about an archive; empty where its damage is in nothing that is read."""
    path.write_bytes(archive)
    try:
        assert load("hotpotqa", path, None) == records
    except LazyBenchError as error:
        return str(error)
    return ""


def test_a_folder_without_the_dataset(run_on, tmp_path):
    assert f"{tmp_path}: no hotpotqa.jsonl there: found no .jsonl file" in run_on(tmp_path)
    (tmp_path / "trec.jsonl").write_bytes(SOUND)
    assert f"{tmp_path}: no hotpotqa.jsonl there: found trec" in run_on(tmp_path)
    (tmp_path / "hotpotqa.jsonl").mkdir()
    assert f"{tmp_path}: no hotpotqa.jsonl there: found trec" in run_on(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_named(run_on, tmp_path):
    path = tmp_path / "hotpotqa.jsonl"
    path.write_bytes(SOUND)
    path.chmod(0)
    assert f"{path}: cannot be read: Permission denied" in run_on(tmp_path)


def test_a_file_that_fails_while_it_is_read_is_named(run_on, tmp_path, monkeypatch):
    path = tmp_path / "hotpotqa.jsonl"
    path.write_bytes(SOUND)

    whole = Path.open

    def fail(self, *args, **kwargs):
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", fail)
    assert f"{path}: cannot be read: Permission denied" in run_on(tmp_path)


def test_ids_are_never_paths(run, lazybench, tmp_path):
    ids = ["../../x", "/etc/x", "a/b", "..", "con\nfig", "<b>", "x" * 300, "\u0000"]
    root = tmp_path / "records"
    root.mkdir()
    (root / "hotpotqa.jsonl").write_bytes(lines(*(ROW | {"_id": name} for name in ids)))
    settings = (
        "task=hotpotqa",
        "data=longbench",
        f"data.root={root}",
        "data.limit=null",
        "trace=true",
        "timing.warmup=0",
    )
    code, _, err = run("method=random_drop", "method.repeats=1", "timing.paired=false", *settings)
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert [row["_id"] for row in rows(folder)] == ids
    assert lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"records", "runs", "report"}
    assert {path.name for path in folder.iterdir()} <= {
        "config.yaml", "environment.json", "predictions.jsonl", "traces.jsonl", "scores.json", ".lock"
    }  # fmt: skip
    assert [path for path in tmp_path.rglob("x*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["../qa", "a/b", "/qa", ".."])
def test_names_of_datasets_are_never_paths(run, tmp_path, name):
    facts = "{prompt: '{context}', max_new_tokens: 2, metric: qa_f1}"
    code, _, err = run(
        "method=baseline", "data=longbench", f"data.root={tmp_path}", f"+data.datasets={{'{name}': {facts}}}",
        f"task='{name}'",
    )  # fmt: skip
    assert name in one_line(code, err)
    assert not (tmp_path / "runs").exists()


def test_names_in_a_runs_settings_are_never_paths(run, lazybench, tmp_path):
    run("method=baseline", "data.limit=1")
    (folder,) = folders(tmp_path / "runs")
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("name: tiny", "name: ../../tiny"))
    code, _, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert "model.name=../../tiny names a folder" in one_line(code, err)
