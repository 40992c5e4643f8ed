"""Runs altered_weights.py where the packages it needs are, apart from everything else."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
APART = Path(sys.prefix) / "apart"


@pytest.mark.slow
def test_models_with_altered_weights():
    if not APART.exists() and find_spec("peft") is None:
        pytest.skip("quantisers and adapters are not installed: scripts/test does")
    paths = [str(APART), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", HERE / "altered_weights.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
