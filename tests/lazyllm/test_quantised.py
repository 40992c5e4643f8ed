"""Runs quantised_models.py where the packages that quantise are, apart from everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("quantised_models.py")
APART = Path(sys.prefix) / "quantised"


@pytest.mark.slow
@pytest.mark.skipif(not APART.exists() and find_spec("torchao") is None, reason="scripts/environment.sh installs them")
def test_quantised_models():
    paths = [str(APART), str(CASES.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", CASES],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
