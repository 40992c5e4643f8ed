"""The help of commands that Hydra configures: complete, in plain words, of what was chosen, and at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import get_type_hints

import pytest
import yaml
from support import one_line

from lazybench.config import CONF, CalibrateConfig, MapConfig, MatchConfig, RunConfig, SpeedConfig

SCHEMAS = {
    "run": RunConfig,
    "plan": RunConfig,
    "speed": SpeedConfig,
    "map": MapConfig,
    "match": MatchConfig,
    "calibrate": CalibrateConfig,
}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def shown(out: str) -> dict[str, tuple[str, str]]:
    """Value and meaning of each setting that a help shows."""
    text = re.sub(r"\n {10,}", "  ", out)  # what goes on in the next line
    return {
        key: (value, said) for key, value, said in re.findall(r"^  ([\w.]+)=(.*?)(?:  +(.*))?$", text, re.MULTILINE)
    }


def keys(schema: type) -> set[str]:
    """The settings of a schema, those of the parts it names by dots."""
    kinds = get_type_hints(schema)
    parts = {of.name: kinds[of.name] for of in fields(schema)}
    inner = {f"{name}.{of.name}" for name, kind in parts.items() if is_dataclass(kind) for of in fields(kind)}
    return inner | {name for name, kind in parts.items() if not is_dataclass(kind) and name != "method"}


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_setting_is_there_and_explained(lazybench, command):
    code, out, _ = lazybench(command, "--help")
    assert code == 0
    assert f"python -m lazybench {'run' if command == 'plan' else command}" in out
    told = shown(out)
    assert {key for key in told if not key.startswith("method.")} == keys(SCHEMAS[command])
    assert all(len(said.split()) > 1 for _, said in told.values()), {key: of for key, of in told.items() if not of[1]}


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "method").glob("*.yaml")))
def test_the_settings_of_a_method_are_its_own(lazybench, name):
    given = yaml.safe_load((CONF / "method" / f"{name}.yaml").read_text())
    told = shown(lazybench("run", f"method={name}", "-h")[1])
    own = {key.removeprefix("method."): of for key, of in told.items() if key.startswith("method.")}
    assert {key.partition(".")[0] for key in own} == given.keys() - {"_target_", "name"}
    assert all(
        value == str(given[key]).lower() for key, (value, _) in own.items() if isinstance(given.get(key), int | float)
    )


def test_the_values_are_those_that_a_run_would_have(lazybench):
    told = shown(lazybench("run", "--help", "model=llama2_7b")[1])
    settings = yaml.safe_load(lazybench("run", "--cfg", "job", "model=llama2_7b", "task=code")[1])
    assert told["model.limit"][0] == str(settings["model"]["limit"])
    assert told["model.dtype"][0] == settings["model"]["dtype"]
    assert told["timing.warmup"][0] == str(settings["timing"]["warmup"])
    assert told["data.root"][0] == "null"
    assert told["output"][0] == settings["output"]


def test_configs_of_ones_own_are_shown_with_their_comments(lazybench, tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method/mine.yaml").write_text("_target_: mine.Mine\nname: mine\nends: 500   # tokens at each end\n")
    code, out, _ = lazybench("run", "--config-dir", str(tmp_path), "method=mine", "--help")
    assert code == 0
    assert shown(out)["method.ends"] == ("500", "tokens at each end")
    (tmp_path / "method/mine.yaml").write_text("ends: [500\n")
    assert "mine.yaml: cannot be read" in one_line(*lazybench("run", f"-cd={tmp_path}", "method=mine", "--help")[::2])
    assert "did you mean 'fastkv'?" in one_line(*lazybench("run", "method=fastk", "--help")[::2])


def test_it_fits_a_narrow_terminal(lazybench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = lazybench("speed", "--help")[1]
    settings = out.partition("Settings:")[2]
    assert max(len(line) for line in settings.splitlines() if not re.match(r"  \S+=|--", line)) <= 60


def test_it_does_not_wait_for_torch():
    code = "import sys; from lazybench.cli import commands; commands.start(['run', '--help']); "
    code += "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, check=False)
    assert done.returncode == 0
