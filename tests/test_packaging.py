"""What is installed from a wheel works without the checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from marks import slow

from lazyllm.hf import private

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_brings_its_configs(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(installed)
    assert {"lazybench/data/longbench.json", "lazybench/conf/config.yaml"} <= names
    assert {"lazybench/paper/table1.csv", "lazybench/paper/table2.csv"} <= names
    assert {"lazybench/token_map/page.html", "lazybench/report/figures/paper.mplstyle", "lazyllm/py.typed"} <= names
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"lazyllm", "lazybench"}

    command, environment = [sys.executable, "-m", "lazybench", "list"], {**os.environ, "PYTHONPATH": str(installed)}
    listed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    assert "xgen_7b" in listed.stdout


def test_the_versions_that_are_named_are_those_that_are_tested():
    constraints, declared = ((ROOT / name).read_text() for name in ("constraints.txt", "pyproject.toml"))
    assert f"\ntransformers=={private.TESTED}." in constraints
    oldest = re.search(r'"transformers>=(.+),<6"', declared)[1]
    torch = re.search(r'"torch>=(.+)"', declared)[1]
    for name in ("README.md", "lazyllm/README.md"):
        assert f"transformers {oldest} to {private.TESTED} and PyTorch {torch} " in (ROOT / name).read_text()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run task=multidoc_qq", "did you mean 'multidoc_qa'?"),
        slow("run task=code data=longbench data.root=/nowhere", "/nowhere cannot be loaded"),
    ],
)
def test_missing_things_are_refused_before_slow_imports(line, says):
    code = "import sys, runpy\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
    code += f"sys.argv = ['lazybench', *{line.split()}]\nrunpy.run_module('lazybench', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr


_WITH_TORCH_AND_TRANSFORMERS_ALONE = """
import sys
others = "hydra omegaconf pandas matplotlib datasets rouge scipy tabulate jinja2 jieba accelerate lazybench"
sys.modules.update(dict.fromkeys(others.split()))  # as if they were not installed
import torch, transformers, lazyllm
config = transformers.LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2
)
model = transformers.LlamaForCausalLM(config)
with lazyllm.enable(model, "23%:0.54,50%:0.54") as lazy:
    model.generate(torch.arange(40)[None], max_new_tokens=3, do_sample=False)
assert lazy.stats.prompt_computed < 1
"""


@pytest.mark.slow
def test_the_library_needs_torch_and_transformers_alone():
    subprocess.run([sys.executable, "-c", _WITH_TORCH_AND_TRANSFORMERS_ALONE], cwd=ROOT, check=True)
