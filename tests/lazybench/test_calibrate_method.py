"""Calibrated methods, and other importances than the paper's, in `lazybench run` and `lazybench report`."""

import pytest
import yaml
from calibrating import METHOD, line, method_of
from support import folders, one_line, rows

import lazyllm
from lazybench.config import CONF
from lazybench.methods import build_method


@pytest.fixture
def use(lazybench, calibrations, six_layers, tmp_path):
    """Run a calibrated method; settings given override the usual ones."""

    def call(*words, half="first", methods=None):
        folder = str(methods or calibrations / "eq1" / half)
        return lazybench(*line("run", six_layers, tmp_path / "runs", *words), "--config-dir", folder)

    return call


def test_a_calibrated_method_runs_on_the_other_half(use, calibrations, lazybench, tmp_path):
    code, shown, err = use(f"method={METHOD}", "data.half=second")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == "lazyllm"
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert "calibrated_on" not in settings
    both = method_of(calibrations, "cross")
    assert len(rows(folder)) == len(both["folds"][1]["records"])
    (fold,) = method_of(calibrations, "first")["folds"]
    found = f"found {fold['method']['schedule']} on {len(fold['records'])} records of "
    assert f"calibrated for speedup >= 1.3: {found}" in shown
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert "flatter" not in out
    for name in ("table1.md", "table1.tex", "report.html"):
        assert found in (tmp_path / "report" / name).read_text(), name


@pytest.mark.parametrize("half", ["null", "first"])
def test_records_it_was_calibrated_on_are_refused(use, tmp_path, half):
    code, _, err = use(f"method={METHOD}", f"data.half={half}")
    line = one_line(code, err)
    assert "data.half=second" in line
    assert "calibrated=mark" in line
    assert not folders(tmp_path / "runs")


def test_a_calibrated_method_is_matched_and_runs(calibrations, lazybench, six_layers, tmp_path):
    found, matches = calibrations / "eq1/cross", tmp_path / "matches"
    words = ("--config-dir", str(found), f"method={METHOD}", "speedups=[1.2]", "tolerance=0.9", "cpu_share=0")
    code, out, err = lazybench(*(word for word in line("match", six_layers, matches, *words) if "timing" not in word))
    assert code == 0, err
    (record,) = {record[:6] for fold in method_of(calibrations, "cross")["folds"][:1] for record in fold["records"][:1]}
    assert record not in out
    assert ", pruning 0." in out
    words = ("--config-dir", str(matches), f"method={METHOD}_1.2x")
    code, out, err = lazybench(*line("run", six_layers, tmp_path / "runs", *words))
    assert code == 0, err
    assert "calibrated for speedup >= 1.3, pruning 0." in out


def test_records_it_was_calibrated_on_are_marked(use, lazybench, tmp_path):
    code, _, err = use(f"method={METHOD}", "calibrated=mark")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    seen = yaml.safe_load((folder / "config.yaml").read_text())["calibrated_on"]
    assert 0 < seen < len(rows(folder)) == 4
    words = ("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    code, _, err = lazybench(*words)
    assert "calibrated=mark" in one_line(code, err)
    assert not (tmp_path / "report").exists()
    code, out, err = lazybench(*words, "calibrated=mark")
    assert code == 0, err
    mark = f"on {seen} records it was calibrated on"
    assert mark in out
    assert "flatter" in out
    for name in ("table1.md", "table1.csv", "report.html"):
        assert mark in (tmp_path / "report" / name).read_text(), name


def test_each_record_gets_the_schedule_found_without_it(use, calibrations, lazybench, monkeypatch, tmp_path):
    from lazybench.methods.lazyllm import LazyLLM

    used, session = {}, LazyLLM.session

    def noted(self, prompt, decode):
        used[prompt.record.hash] = self.schedule
        return session(self, prompt, decode)

    method = method_of(calibrations, "cross")
    for fold, schedule in zip(method["folds"], ("1:0.5", "2:0.4,3:0.5"), strict=True):
        fold["method"]["schedule"] = schedule  # two that differ for sure
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "crossed.yaml").write_text(yaml.safe_dump(method))
    monkeypatch.setattr(LazyLLM, "session", noted)
    code, _, err = use("method=crossed", "trace=true", methods=tmp_path / "own")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert len(rows(folder)) == 4
    first, second = (fold["records"] for fold in method["folds"])
    assert used == dict.fromkeys(first, "2:0.4,3:0.5") | dict.fromkeys(second, "1:0.5")
    assert "calibrated_on" not in yaml.safe_load((folder / "config.yaml").read_text())
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert "left out" not in out


def test_a_calibrated_method_is_for_its_own_model(run, calibrations):
    code, _, err = run(
        f"method={METHOD}", "--config-dir", str(calibrations / "eq1" / "cross")
    )  # a model of four layers
    assert "6 layers" in one_line(code, err)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["method=lazyllm", "method.importance={queries:8,pooling:7}"], "lazyllm+"),
        (["method=lazyllm", "method.importance={queries:1}"], "lazyllm"),
        (["method=lazyllm+"], "lazyllm+"),
    ],
)
def test_another_importance_than_the_papers_has_another_name(run, tmp_path, words, name):
    code, _, err = run(*words, "method.schedule=[1:0.6]", "data.limit=1", "timing.paired=false", "timing.warmup=0")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == name


def test_committed_methods_can_be_run():
    found = [path for path in (CONF.parent / "results").rglob("method/*.yaml")]
    assert len(found) > 10
    for path in found:
        settings = yaml.safe_load(path.read_text("utf-8"))
        assert build_method(settings).name == settings["name"]


def test_lazyllm_plus_is_the_librarys():
    settings = yaml.safe_load((CONF / "method/lazyllm+.yaml").read_text("utf-8"))
    assert lazyllm.Importance(**settings["importance"]) == lazyllm.plus()
