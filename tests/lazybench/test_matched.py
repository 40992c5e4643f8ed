"""Cross-fitted methods, as `lazybench match tune=true` writes them, in `lazybench run` and `lazybench report`."""

import pytest
import yaml
from omegaconf import OmegaConf
from support import folders, one_line, rows

from lazybench.config import CONF, HALVES, DataConfig
from lazybench.data import half_of, load_records
from lazybench.methods import build_method
from lazybench.methods.lazyllm import LazyLLM
from lazybench.methods.matched import Matched, settings_of

DATA = {"name": "sample", "source": "sample", "limit": 2, "tokens": 512}
SCHEDULES = ("1:0.5", "0:0.4,2:0.5")


@pytest.fixture
def halves(tokenizer):
    """The hashes of the records of `task=code`, by half."""
    records = [
        record for name in ("lcc", "repobench-p") for record in load_records(name, DataConfig(**DATA), tokenizer)
    ]
    hashes = [[record.hash for record in records if half_of(record) == half] for half in HALVES]
    assert all(hashes)
    return hashes


@pytest.fixture
def use(run, halves, tmp_path):
    """Run a LazyLLM whose schedules were tuned on the given halves, the first one or both."""

    def call(*words, folds=2, layers=4):
        methods = [LazyLLM("lazyllm", schedule=schedule) for schedule in SCHEDULES[:folds]]
        given = [{"method": method, "records": half} for method, half in zip(methods, halves, strict=False)]
        source = {"layers": layers, "model": "tiny", "data": "sample"}
        (tmp_path / "own" / "method").mkdir(parents=True, exist_ok=True)
        text = OmegaConf.to_yaml(settings_of(Matched("lazyllm", speedup="2x", folds=given, found=source)))
        (tmp_path / "own" / "method" / "tuned.yaml").write_text(text)
        quick = ("task=code", "timing.per_dataset=0")
        return run("--config-dir", str(tmp_path / "own"), "method=tuned", *quick, *words)

    return call


def test_each_record_gets_the_schedule_tuned_without_it(use, halves, lazybench, undrawn, monkeypatch, tmp_path):
    used, session = {}, LazyLLM.session

    def noted(self, prompts, decode):
        used.update((prompt.record.hash, self.schedule) for prompt in prompts)
        return session(self, prompts, decode)

    monkeypatch.setattr(LazyLLM, "session", noted)
    code, shown, err = use("trace=true")
    assert code == 0, err
    first, second = halves
    assert used == dict.fromkeys(first, SCHEDULES[1]) | dict.fromkeys(second, SCHEDULES[0])
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == "lazyllm"
    assert len(rows(folder)) == 4
    assert "matched_on" not in yaml.safe_load((folder / "config.yaml").read_text())
    settings, origin = " and ".join(SCHEDULES), f"found on {len(first)} and {len(second)} records of sample"
    assert f"matched to 2x: {settings}, {origin}" in shown
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert "which favours" not in out
    for name in ("report.md", "report.html"):
        assert f"{settings}; {origin}" in (tmp_path / "report" / name).read_text(), name


@pytest.mark.parametrize("half", ["null", "first"])
def test_records_it_was_matched_on_are_refused(use, tmp_path, half):
    code, _, err = use(f"data.half={half}", folds=1)
    line = one_line(code, err)
    assert "data.half=second" in line
    assert "matched=mark" in line
    assert not folders(tmp_path / "runs")


@pytest.mark.slow
def test_records_it_was_matched_on_are_marked(use, halves, lazybench, undrawn, tmp_path):
    assert use("data.half=second", folds=1)[0] == 0
    code, _, err = use("matched=mark", folds=1)
    assert code == 0, err
    marked = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders(tmp_path / "runs")]
    assert sorted(settings.get("matched_on", 0) for settings in marked) == [0, len(halves[0])]
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    mark = "settings were chosen on these records, which favours them: LazyLLM, 2x"
    assert out.count(mark) == 1
    for name in ("report.md", "report.html"):
        assert mark in (tmp_path / "report" / name).read_text(), name


def test_it_is_for_its_own_model(use):
    code, _, err = use(layers=6)
    assert "6 layers" in one_line(code, err)


def test_halves_are_all_records_each_once_for_any_limit(tokenizer):
    def records(**changes):
        return load_records("2wikimqa", DataConfig(**DATA | {"limit": 12} | changes), tokenizer)

    every = records()
    for half in HALVES:
        assert records(half=half) == [record for record in every if half_of(record) == half] != []
    halves = {record.id: half_of(record) for record in every}
    assert all(half_of(record) == halves[record.id] for record in records(limit=5))


def test_hashes_that_look_like_numbers_stay_text():
    hashes = ["0123456789012345", "1234567890123e45", "1e10000000000000"]
    method = Matched("lazyllm", folds=[{"method": LazyLLM("lazyllm"), "records": hashes}])
    assert OmegaConf.create(OmegaConf.to_yaml(settings_of(method))).folds[0].records == hashes


def test_committed_methods_can_be_run():
    paths = list((CONF.parent / "results").rglob("method/*.yaml"))
    assert len(paths) > 10
    for path in paths:
        settings = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)  # some have thousands of lines
        assert build_method(settings).name == settings["name"]
