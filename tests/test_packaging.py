"""What is installed from a wheel works without the checkout."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_brings_its_configs_and_facts(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(installed)
    assert {"lazybench/data/longbench.json", "lazybench/conf/config.yaml"} <= names
    assert {"lazybench/paper/table1.csv", "lazybench/paper/longbench.csv"} <= names
    assert {"lazybench/token_map/page.html", "lazybench/report/figures/paper.mplstyle", "lazyllm/py.typed"} <= names
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"lazyllm", "lazybench"}

    def lazybench(*words):
        return subprocess.run(
            [sys.executable, "-m", "lazybench", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
        )

    listed = lazybench("list")
    assert listed.returncode == 0, listed.stderr
    assert "xgen_7b" in listed.stdout
    settings = lazybench("run", "--cfg", "job", "task=code", "model=llama2_7b")
    assert settings.returncode == 0, settings.stderr
    assert "[INST]{prompt}[/INST]" in settings.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import lazybench.config as c; print(c.CONF)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()) == installed / "lazybench" / "conf"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run task=multidoc_qq", "did you mean 'multidoc_qa'?"),
        ("run task=code data=longbench data.root=/nowhere", "/nowhere: no such folder"),
        ("run task=code data.tokens=400", "data.tokens=400 must be from 512"),
        ("map text=/nowhere", "text=/nowhere cannot be read"),
    ],
)
def test_what_is_not_there_is_refused_before_slow_imports(line, says):
    code = "import sys, runpy\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
    code += f"sys.argv = ['lazybench', *{line.split()}]\nrunpy.run_module('lazybench', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr


_WITH_TORCH_AND_TRANSFORMERS_ALONE = """
from importlib.util import find_spec
import torch, transformers, lazyllm
assert not [name for name in ("hydra", "omegaconf", "pandas", "matplotlib", "datasets", "rouge") if find_spec(name)]
config = transformers.LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2
)
model = transformers.LlamaForCausalLM(config)
with lazyllm.enable(model, "23%:0.6,50%:0.6") as lazy:
    model.generate(torch.arange(40)[None], max_new_tokens=3, do_sample=False)
assert lazy.stats.prompt_computed < 1
"""


@pytest.mark.slow
def test_the_library_needs_torch_and_transformers_alone(tmp_path):
    """In a folder that has those two, what they require, and `lazyllm`."""
    there, new = set(), {"torch", "transformers"}
    while new:
        there |= new
        required = [Requirement(text) for name in new for text in requires(name) or []]
        names = {of.name for of in required if of.marker is None or of.marker.evaluate({"extra": ""})}
        new = {canonicalize_name(name) for name in names if installed(name)} - there
    for name in there:
        of = distribution(name)
        for top in {file.parts[0] for file in of.files if file.parts[0] != ".."}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(of.locate_file(top))
    (tmp_path / "lazyllm").symlink_to(ROOT / "lazyllm")
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WITH_TORCH_AND_TRANSFORMERS_ALONE],  # -S: without the environment's packages
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def installed(name: str) -> bool:
    """Whether a distribution is there: another platform's requirements are not."""
    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


def test_starting_the_command_line_is_quick():
    """`--help` must not import torch or transformers."""
    code = "import sys, runpy; sys.argv = ['lazybench', '--help']\n"
    code += (
        "try: runpy.run_module('lazybench', run_name='__main__')\nexcept SystemExit as stop: assert stop.code == 0\n"
    )
    code += "assert not {'torch', 'transformers', 'hydra', 'datasets'} & set(sys.modules), 'heavy imports'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
