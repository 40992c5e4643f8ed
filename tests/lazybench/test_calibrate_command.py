"""`lazybench calibrate` on a tiny model: what it writes, how it goes on, and what it refuses."""

import json

import pandas as pd
import pytest
import yaml
from calibrating import METHOD, TIMES, line, method_of
from support import folders, one_line

from lazybench.calibration import frontier
from lazybench.calibration.search import Search
from lazybench.calibration.study import csv, read_records
from lazybench.calibration.times import Times
from lazybench.config import HALVES
from lazybench.store.locks import Lock
from lazyllm import PruningSchedule


def test_a_calibration_writes_all_that_it_found(calibrations):
    assert calibrations.parts[-4:-1] == ("tiny", "sample", "code")
    for half, methods in (("first", {METHOD, "lazyllm_kl_1000"}), ("cross", {METHOD})):
        folder = calibrations / "eq1" / half
        names = {path.name for path in folder.iterdir()}
        assert names >= {"frontier.csv", "frontier.png", "frontier.pdf", "tried.csv", "config.yaml", "environment.json"}
        assert names >= {"records_kl.csv", *(f"records_scores_{method}.csv" for method in methods)}
        assert {path.stem for path in (folder / "method").iterdir()} == methods
        table = frontier.table(read_records(folder / "records_kl.csv"))
        assert csv(table) == (folder / "frontier.csv").read_text()

    assert set(table["half"]) == {"first", "second", "cross"}
    assert set(table["speedup"]) == {1.3}  # what the budget asks for alone
    assert set(pd.read_csv(calibrations / "eq1" / "first" / "frontier.csv")["speedup"]) == {1.3, 1.5}
    assert (table["kl"] >= 0).all()
    found, instead = (table[table["kind"] == kind] for kind in (frontier.CALIBRATED, frontier.STATIC))
    assert instead["schedule"].str.startswith("0:0.").all()
    # It revives nothing, so it is as fast as it ideally is.
    assert instead["speedup_with_revivals"].tolist() == pytest.approx(instead["speedup"].tolist(), rel=0.02)
    tried = pd.read_csv(calibrations / "eq1" / "cross" / "tried.csv")
    for _, row in found[found["half"] != "cross"].iterrows():
        same = tried[(tried["half"] == row["half"]) & (tried["speedup"] == row["speedup"]) & tried["complete"]]
        fast = same[same["speedup_with_revivals"] >= 0.9949 * row["speedup"]]
        assert fast["kl"].min() == pytest.approx(row["found_kl"], rel=1e-3)
    times = Times(0, 0.001, 0, 6, TIMES["step"], 0.001)
    for _, row in tried.iterrows():
        # Of whole generations; without revivals all would be faster than asked.
        assert row["speedup_with_revivals"] <= times.speedup(PruningSchedule.parse(row["schedule"]), [300], 16) * 1.03


def test_a_calibrated_method_says_what_it_was_found_on(calibrations):
    one, both = (method_of(calibrations, half) for half in ("first", "cross"))
    assert (one["name"], one["budget"], len(one["folds"])) == ("lazyllm", "speedup >= 1.3", 1)
    assert one["found"]["layers"] == 6
    assert "not LongBench" in one["found"]["data"]
    assert one["folds"][0]["method"]["importance"] == "eq1"
    table = pd.read_csv(calibrations / "eq1" / "first" / "frontier.csv")
    row = table[(table["kind"] == "calibrated") & (table["speedup"] == 1.3)].iloc[0]
    assert one["found"]["kl"] == [pytest.approx(row["found_kl"], abs=1e-4)]
    assert one["found"]["kl_on_the_other_half"] == pytest.approx(row["kl"], abs=1e-4)
    first, second = (set(fold["records"]) for fold in both["folds"])
    assert first == set(one["folds"][0]["records"])
    assert not first & second
    assert len(first | second) == 4
    rows = read_records(calibrations / "eq1" / "cross" / "records_kl.csv")
    sizes = dict(zip(reversed(HALVES), map(len, (first, second)), strict=True))
    assert {half: len(part) for half, part in rows[rows["kind"] == frontier.CALIBRATED].groupby("half")} == sizes
    measured = [json.loads(line) for path in (calibrations / "measured").glob("kl-*") for line in path.open()]
    kept = {(row["schedule"], row["dataset"], row["_id"]): row["kl"] for row in measured}
    for row in rows.to_dict("records"):
        assert row["kl"] == pytest.approx(kept[row["schedule"], row["dataset"], row["_id"]], rel=1e-5)


@pytest.mark.slow
def test_the_same_command_goes_on(calibrate, tmp_path):
    code, out, err = calibrate("data.limit=2", "confirm=false")
    assert code == 0, err
    assert "model.limit=300" in out.split("--config-dir")[1]  # the words that were given
    assert "data.limit=2" in out.split("--config-dir")[1]
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    found = folder / "eq1" / "first"
    files = [folder / "times.json", found / "tried.csv", found / "frontier.csv", *(folder / "measured").iterdir()]
    before, tried = {path: path.read_bytes() for path in files}, pd.read_csv(found / "tried.csv")
    assert calibrate("confirm=false")[0] == 0
    assert {path: path.read_bytes() for path in files} == before
    # With more time it goes on in the same folder from what it has.
    code, _, err = calibrate("minutes=0.03", "confirm=false")
    assert code == 0, err
    assert {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")} == {folder}
    more = pd.read_csv(found / "tried.csv")
    assert len(more) > len(tried)
    assert more["schedule"].tolist()[: len(tried)] == tried["schedule"].tolist()
    other = Lock(folder / ".lock")
    assert other.take()
    code, _, err = calibrate("confirm=false")
    other.close()
    assert "another process is at work" in one_line(code, err)


@pytest.mark.slow
def test_another_importance_is_searched_and_scores_keep_to_a_budget(
    calibrate, lazybench, six_layers, monkeypatch, tmp_path
):
    monkeypatch.setattr(Search, "spent", property(lambda search: float(len(search.trials))))  # however busy the machine
    asked = ("importance=search", "budget=score loss <= 100%", "speedups=[1.3]", "minutes=0.25")  # 15 trials
    code, _, err = calibrate(*asked)
    assert code == 0, err
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    found = folder / "search" / "first"
    tried = pd.read_csv(found / "tried.csv")
    assert "pooling:31" in set(tried["importance"])
    assert tried["importance"].nunique() > 2
    (written,) = (found / "method").iterdir()
    method = yaml.safe_load(written.read_text())
    assert (written.stem, method["name"]) == ("lazyllm+_score_loss_100", "lazyllm+")
    words = line("run", six_layers, tmp_path / "runs", f"method={written.stem}", "data.half=second")
    code, _, err = lazybench(*words, "--config-dir", str(found))
    assert code == 0, err
    (run,) = folders(tmp_path / "runs")
    assert run.parts[-2] == "lazyllm+"


def test_a_speedup_out_of_reach_leaves_the_others(calibrate, monkeypatch, tmp_path):
    def run(search, *given):
        runs.append(search)
        return "none of 3 candidates gains 1.5" if len(runs) > 1 or none else search_run(search, *given)

    runs, none, search_run = [], False, Search.run
    monkeypatch.setattr(Search, "run", run)
    asked = ("budget=speedup >= 1.3, speedup >= 1.5, KL <= 0", "confirm=false", "speedups=[1.3]")
    code, out, err = calibrate(*asked)
    assert code == 0, err
    assert "warning: first half: none of 3 candidates gains 1.5" in err
    assert "KL <= 0: no schedule found on the first half keeps to it" in out
    (found,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/eq1/first/frontier.csv")}
    assert set(pd.read_csv(found / "frontier.csv")["speedup"]) == {1.3}
    assert [path.stem for path in (found / "method").iterdir()] == [METHOD]
    none = True
    code, _, err = calibrate("confirm=false", f"output={tmp_path / 'none'}")
    assert code == 2
    assert err.strip().splitlines()[-1].endswith("none of 3 candidates gains 1.5")


@pytest.mark.slow
def test_one_schedule_a_task_on_a_model_of_few_layers(calibrate, tiny_model, tmp_path):
    code, _, err = calibrate("-m", "task=code,synthetic", "confirm=false", f"model.path={tiny_model}")
    assert code == 0, err
    methods = tmp_path.glob("calibrations/*/*/*/*/eq1/first/method/*.yaml")
    assert {yaml.safe_load(path.read_text())["found"]["task"] for path in methods} == {"code", "synthetic"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["budget=nonsense"], "'nonsense' is no budget"),
        (["half=third"], "half=third"),
        (["minutes=0"], "minutes=0"),
        (["speedups=[0.5]"], "speedups="),
        (["budget=speedup >= 9"], "speedup 9 is out of reach"),
        (["data.half=first"], "data.half=first"),
        (["data.limit=1", "task=lcc"], "raise data.limit"),
        (["answer_tokens=0"], "answer_tokens=0"),
        (["importance=best"], "lazybench: importance=best must be eq1, plus, search or parts"),
        (["records=0"], "records=0"),
        (["importance={poolin:7}"], "did you mean 'importance.pooling'?"),
        (["reference=nonsense"], "reference"),
        (["reference=9:0.5"], "reference"),
        (["reference=1:1"], "reference"),
        (["task=cod"], "did you mean 'code'?"),
        (["model.limit=4090"], "model.limit=4032"),
    ],
)
def test_bad_words_cost_one_line(calibrate, words, says):
    code, _, err = calibrate(*words)
    line = one_line(code, err)
    assert line.startswith("lazybench: ")
    assert says in line
