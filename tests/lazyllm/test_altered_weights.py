"""Runs quantised_models.py and adapted_models.py where the packages they need are, apart from everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
APART = Path(sys.prefix) / "apart"


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "package"), [("quantised_models.py", "torchao"), ("adapted_models.py", "peft")])
def test_models_with_altered_weights(cases, package):
    if not APART.exists() and find_spec(package) is None:
        pytest.skip(f"{package} is not installed: scripts/test does")
    paths = [str(APART), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", HERE / cases, "-m", "slow or not slow"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
