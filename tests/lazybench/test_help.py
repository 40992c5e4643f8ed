"""Help: every command's settings on one page, without slow imports; and what there is to choose."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from lazybench.__main__ import CONFIGURED
from lazybench.config import CONF, SCHEMAS, DataConfig, ModelConfig


@pytest.mark.parametrize("command", CONFIGURED)
def test_help_has_every_setting(lazybench, command):
    code, out, _ = lazybench(command, "--help")
    assert code == 0
    assert "python -m lazybench" in out
    own = fields(SCHEMAS.get(command, SCHEMAS["run"]))
    data = fields(DataConfig) if "data" in {field.name for field in own} else ()
    for field in (*own, *fields(ModelConfig), *data):
        assert f"{field.name}: " in out or field.name in ("model", "method", "data", "timing"), field.name
    assert "hydra" not in out


def test_help_has_the_settings_of_the_chosen_method(lazybench):
    out = lazybench("run", "method=static_pruning", "-h")[1]
    assert all(f"{key}:" in out for key in yaml.safe_load((CONF / "method/static_pruning.yaml").read_text()))


def test_help_does_not_wait_for_torch():
    code = "import sys; from lazybench.__main__ import main; sys.argv = ['', 'run', '--help']; main(); "
    code += "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True).returncode == 0
