"""A finished run is reused if, and only if, nothing that decides its results has changed."""

import importlib
import json
import shutil
import sys
from dataclasses import make_dataclass
from pathlib import Path

import pytest
import yaml
from support import LAST_TOKENS, LAZY, folders

from lazybench import identity
from lazybench.config import CONF, ModelConfig
from lazybench.data.dataset_configs import DatasetConfig, load_dataset_configs
from lazybench.methods.lazyllm import LazyLLM
from lazybench.model import environment
from lazybench.store.journal import JOURNALS, read_rows


def hash_of(folder: Path, section: str = "model", **further) -> str:
    """The hash that follows from a run's files, with further settings of a section."""
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings[section] |= further
    configs = {name: load_dataset_configs()[name] for name in settings["records_of"]}
    return identity.run_hash(settings, json.loads((folder / "environment.json").read_text()), configs)


def test_a_runs_hash_follows_from_its_files(finished):
    assert hash_of(finished) == finished.name
    assert hash_of(finished, template={}) == finished.name
    assert hash_of(finished, template={"enable_thinking": False}) != finished.name
    assert hash_of(finished, tokenizer={"_target_": "a.function", "vocabulary": "FOLDER"}) == finished.name
    assert hash_of(finished, "timing", warmup=7) == finished.name


def test_a_new_setting_and_a_changed_default_keep_finished_runs_apart_from_others(finished, monkeypatch):
    schema = make_dataclass("Newer", [("extra", int, 3)], bases=(ModelConfig,))
    monkeypatch.setitem(identity._SECTIONS, "model", schema)
    assert hash_of(finished, extra=3) == finished.name
    assert hash_of(finished, extra=4) != finished.name
    schema = make_dataclass("Newer", [("extra", int, 4)], bases=(ModelConfig,))  # the default has changed
    monkeypatch.setitem(identity._SECTIONS, "model", schema)
    monkeypatch.setitem(identity.NEUTRAL, "model.extra", 3)
    assert hash_of(finished, extra=4) != finished.name
    assert hash_of(finished, extra=3) == hash_of(finished) == finished.name


def test_a_changed_default_of_a_method_makes_new_runs(monkeypatch):
    def identities(layer):
        settings = {"_target_": "lazybench.methods.static_pruning.StaticPruning", "name": "a", "layer": layer}
        return identity.method_identity(settings)

    assert identities("16%") == {"_target_": "StaticPruning", "name": "a"}
    monkeypatch.setitem(identity.NEUTRAL, "StaticPruning.layer", "20%")
    assert identities("16%") == {"_target_": "StaticPruning", "name": "a", "layer": "16%"}


def test_a_run_that_was_copied_to_another_machine_continues_there(run, tmp_path, monkeypatch):
    words = (*LAZY, "data.limit=4", "timing.warmup=0", "timing.per_dataset=3", "trace=true")
    assert run(*words, "shard=1/2")[0] == 0
    (folder,) = folders(shutil.copytree(tmp_path / "runs", tmp_path / "elsewhere"))
    before = {name: read_rows(folder, name) for name in JOURNALS}
    assert [*map(len, before.values())] == [2, 2, 2]
    asked, generate = [], LazyLLM.generate

    def noted(self, prompts, *rest):
        asked.extend(prompt.record.key for prompt in prompts)
        return generate(self, prompts, *rest)

    monkeypatch.setattr(LazyLLM, "generate", noted)
    monkeypatch.setattr(environment, "_device_name", lambda device: "another processor")
    code, out, err = run(*words, output="elsewhere")
    assert code == 0, err
    assert "2 of 4 are answered" in out
    assert folders(tmp_path / "elsewhere") == [folder]
    added = {}
    for name in JOURNALS:
        after = read_rows(folder, name)
        assert before[name].items() <= after.items()
        added[name] = after.keys() - before[name]
        assert {after[key]["device"] for key in added[name]} == {"another processor"}
    assert [*map(len, added.values())] == [2, 2, 1]
    # Each record that was left is answered, and one of them is timed.
    assert sorted(asked) == sorted(key for name in ("predictions.jsonl", "times.jsonl") for key in added[name])
    assert "finished earlier" in run(*words, output="elsewhere")[1]


# Whoever changes a default declares the old value in `identity.NEUTRAL`, and this stays; a new setting adds a value.
PINNED = """
shard: null
batch: auto
trace: false
trace_tokens: 32
retry_failed: false
matched: refuse
output: results/runs
model: {revision: null, dtype: auto, attention: sdpa, device: auto, chat: null, template: {}, remove: [],
  trust_remote_code: false, tokenizer: {}, shape: {}, outline: {}}
data: {root: null, limit: null, half: null, seed: 0, tokens: 2048, load: {}, label: null, datasets: {}}
dataset: {task: null, language: en, records: null, chat: true, first_line: false, stop_at_newline: false,
  truncate: true, groups: []}
Baseline: {repeats: 1}
RandomDrop: {repeats: 5, keep: 0.5}
StaticPruning: {repeats: 1, layer: 16%, keep: 0.5}
PromptCompression: {repeats: 1, scope: prompt, unit: sentence, ratio: 0.5, scorer: null, windows: sentence,
  window_tokens: null, faithful_whitespace: false}
LazyLLM: {repeats: 1, schedule: '', ranking: eq1, protect: none}
FastKV: {repeats: 1, layer: 50%, keep: 0.2, window: 8, pooling: 7, kernel: average}
GemFilter: {repeats: 1, layer: 44%, keep: 0.5, pooling: 5}
Matched: {repeats: 1, speedup: '', folds: [], found: {}}
# Settings of Eq. 1, which `changed` leaves out: a change of one raises RESULTS_VERSION instead.
AttentionRanking: {queries: 1, half_life: null, pooling: 1, layers: 1, first: 0, bonus: 1.0, every: 1, revive: true}
"""


def test_the_neutral_values_are_those_that_finished_runs_were_made_with():
    neutral: dict = {}
    for key, value in identity.neutral_values().items():
        section, _, name = key.rpartition(".")
        neutral.setdefault(section, {})[name] = value
    neutral |= neutral.pop("")
    neutral["dataset"] = identity._neutral(DatasetConfig, "dataset")
    targets = {yaml.safe_load(path.read_text()).get("_target_") for path in (CONF / "method").glob("*.yaml")}
    for target in targets | {"lazybench.methods.matched.Matched", "lazyllm.AttentionRanking"}:
        neutral[target.rpartition(".")[2]] = identity.class_neutral(target)
    assert neutral == {name: value for name, value in yaml.safe_load(PINNED).items() if name in neutral}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write modules into a folder on the path, as they would be imported by a new process."""
    folder = tmp_path / "own"
    monkeypatch.syspath_prepend(folder)

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            if str(folder) in str(getattr(module, "__file__", "")):
                del sys.modules[name]
        importlib.invalidate_caches()

    def write(**modules: str) -> Path:
        forget()
        for name, text in modules.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return folder

    yield write
    forget()


def test_modules_that_settings_and_metrics_name_count_without_their_comments(own):
    folder = own(tokens="def make(): return 1\n", scores="def mine(): pass\n", helper="")
    settings = {"tokenizer": {"_target_": "tokens.make", "inner": [{"_target_": "lazybench.rules.check"}]}}

    def digests():
        return identity.code_digests(object(), settings, {"qa_f1_zh", "scores.mine"})

    before = digests()
    assert list(before) == ["scores", "tokens"]
    (folder / "tokens.py").write_text("def make(): return 2\n")
    assert digests() == before  # a sweep keeps the code that it loaded
    own(tokens="# A remark.\ndef make():\n    return 1\n", helper="x = 1\n")
    assert digests() == before
    own(tokens="def make(): return 2\n")
    assert digests() != before


def test_a_method_of_the_users_that_was_edited_runs_again_and_one_that_was_moved_does_not(run, tmp_path, own):
    words = ("method=ends", "timing.per_dataset=0", "data.limit=1")
    folder = own(ends=LAST_TOKENS)
    (folder / "method").mkdir()
    (folder / "method" / "ends.yaml").write_text("_target_: ends.LastTokens\nname: ends\ntokens: 100\n")
    words = ("--config-dir", str(folder), *words)
    assert run(*words)[0] == 0
    (finished,) = folders(tmp_path / "runs")
    assert list(yaml.safe_load((finished / "config.yaml").read_text())["code"]) == ["ends"]
    own(elsewhere=LAST_TOKENS)
    assert "finished earlier" in run(*words, "method._target_=elsewhere.LastTokens")[1]
    own(ends=LAST_TOKENS.replace("-self.tokens", "self.tokens"))
    assert "1 of them with records to run" in run(*words, command="plan")[1]
    assert run(*words)[0] == 0
    assert len(folders(tmp_path / "runs")) == 2
    assert "finished earlier" in run(*words)[1]
