"""`lazybench status` says what there is, not what there was."""

from __future__ import annotations

import json
import shutil

import pytest
from support import LAZY, folders

from lazybench.store import states

TASK = ("task=multidoc_qa", "data.limit=2")


@pytest.fixture
def shown(lazybench, tmp_path):
    """The status of the one job there is: its state, its records and the whole line."""

    def show() -> tuple[str, str, str]:
        code, out, err = lazybench("status", f"runs={tmp_path / 'runs'}")
        assert code == 0, err
        lines = out[out.index("state ") :].splitlines()
        (line,) = lines[2 : lines.index("")]
        return line.split()[0], line.split()[-1], line

    return show


@pytest.mark.parametrize("noted", [True, False])
def test_records_that_have_gone_are_not_done(run, shown, tmp_path, noted):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    if not noted:  # as after a copy of the runs alone
        shutil.rmtree(tmp_path / "runs" / states.FOLDER)
    assert shown()[:2] == ("done", "6/6")
    predictions = folder / "predictions.jsonl"
    lines = predictions.read_text().splitlines(keepends=True)

    predictions.write_text("".join(lines[:5]))
    assert shown()[:2] == ("stopped", "5/6" if noted else "5/?")
    assert "1 of the 6 records that its scores are about are gone" in shown()[2]

    predictions.write_text("".join([*lines[:2], "garbage\n", *lines[3:]]))
    assert shown()[:2] == ("stopped", "5/6" if noted else "5/?")
    assert "predictions.jsonl:3 is not a record" in shown()[2]

    predictions.unlink()
    assert shown()[:2] == (("missing", "0/6") if noted else ("stopped", "0/?"))

    predictions.write_text("".join(lines))
    assert shown()[:2] == ("done", "6/6")
    if noted:
        shutil.rmtree(folder)
        assert shown()[:2] == ("missing", "0/6")


def test_shards_whose_records_have_gone(run, lazybench, tmp_path):
    def states_of() -> list[str]:
        _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
        lines = out[out.index("state ") :].splitlines()
        return sorted(f"{line.split()[0]} {line.split()[-1]}" for line in lines[2 : lines.index("")])

    run(*LAZY, *TASK, "shard=1/2")
    (folder,) = folders(tmp_path / "runs")
    part = folder / "predictions-1of2.jsonl"
    whole = part.read_text()
    part.unlink()
    assert states_of() == ["missing 0/3"]
    part.write_text(whole)
    run(*LAZY, *TASK, "shard=2/2")
    assert states_of() == ["done 3/3"] * 2
    (folder / "predictions.jsonl").unlink()
    assert states_of() == ["missing 0/3"] * 2


@pytest.mark.parametrize("gone", ["config.yaml", "environment.json"])
def test_a_run_that_lacks_its_settings_is_named(run, shown, tmp_path, gone):
    run(*LAZY)
    (folder,) = folders(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / states.FOLDER)
    (folder / gone).unlink()
    state, records, line = shown()
    assert (state, records) == ("stopped", "2/?")
    assert f"{gone} missing: a report leaves it out" in line


def test_what_a_run_does_is_said_where_it_begins_anew(run, tmp_path):
    run(*LAZY)
    (folder,) = folders(tmp_path / "runs")
    environment = json.loads((folder / "environment.json").read_text())
    older = folder.with_name("0" * 12)
    folder.rename(older)
    environment |= {"threads": 99, "versions": environment["versions"] | {"torch": "0.1"}, "commit": "other"}
    (older / "environment.json").write_text(json.dumps(environment))
    (state,) = (tmp_path / "runs" / states.FOLDER).glob("*.json")
    state.write_text(state.read_text().replace(folder.name, older.name))
    code, out, _ = run(*LAZY)
    assert code == 0
    assert "; since then threads, torch changed: results would not compare, so it begins anew in" in out
    shutil.rmtree(older)
    state.write_text(state.read_text().replace(folder.name, older.name))
    assert "what decides its results changed" in run(*LAZY)[1]
