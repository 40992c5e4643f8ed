"""What a command says while one waits."""

import os
import re
import subprocess
import sys

import pytest
from support import LAZY, one_line

SAMPLE = "data sample"
# Whether torch was there already when a command printed its first line.
FIRST = """
import sys
from lazybench.cli import commands

class Out:
    loaded = None

    def write(self, text):
        if self.loaded is None:
            self.loaded = text, "torch" in sys.modules
        return len(text)

    def flush(self):
        pass

stdout, sys.stdout = sys.stdout, Out()
try:
    commands.start(sys.argv[1:])
except BaseException:
    pass
print(*sys.stdout.loaded, sep="|", file=stdout)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "method=fastkv", "task=code", "shard=1/2"],
            f"model none, {SAMPLE}, method fastkv, task code, shard 1/2",
        ),
        (["run", "-m", "method=fastkv,gemfilter", "task=code"], "checking 2 jobs before any starts"),
        (["map", "method=lazyllm,fastkv", "task=code"], f"model none, {SAMPLE}, method lazyllm, fastkv, task code"),
    ],
)
def test_the_first_line_does_not_wait_for_torch(words, said, tmp_path):
    words += ["model.path=nowhere.gguf", "model.name=none"]
    code = subprocess.run(
        [sys.executable, "-c", FIRST, *words], cwd=tmp_path, env=os.environ, capture_output=True, text=True
    )
    assert code.stdout == f"{said}|False\n", code.stderr


def test_warm_up_has_a_bar_of_all_its_passes_and_loading_one_on_a_terminal(run, monkeypatch):
    quick = (*LAZY, "data.limit=1")
    code, out, err = run(*quick, "timing.warmup=2")
    assert code == 0, err
    assert "warming up: 2 untimed rounds of the first record" in out
    assert re.search(r"warm-up: +100%.* 6/6 ", err)  # the unmodified model's, nothing pruned, and the method's
    assert "Loading weights" not in err
    for stream in (sys.stderr, sys.__stderr__):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    err = run(*quick, "timing.warmup=0", "rerun=true")[2]
    assert "warm-up" not in err
    assert "Loading weights" in err
    assert "model.device=xpu is not available" in one_line(*run(*LAZY, "model.device=xpu")[::2])


def test_calibrate_says_beforehand_how_long_it_takes(calibrate):
    code, out, err = calibrate("confirm=false")
    assert code == 0, err
    (said,) = re.findall(r"^[\d.]+ minutes of search.*$", out, re.MULTILINE)
    assert out.index(said) < out.index("saved in")
