"""A model that is split over processes is refused: each would rank tokens by its own heads."""

from __future__ import annotations

import os
import subprocess
import sys

import families
import pytest

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])

SPLIT = """
import sys
import lazyllm
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], distributed_config=DistributedConfig(tp_size=2))
assert model.tp_size == 2
try:
    lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)]))
except lazyllm.LazyLLMError as error:
    print(f"refused: {error}", flush=True)
"""


@pytest.mark.slow
def test_tensor_parallel_is_refused_on_every_rank(tmp_path):
    families.build("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "split.py").write_text(SPLIT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, tmp_path / "split.py", tmp_path / "model"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    refusals = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert len(refusals) == 2
    assert all("split over several processes" in line for line in refusals)


@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_a_model_that_says_it_is_split_is_refused(kind):
    model = families.build("llama")
    if not hasattr(model, f"{kind}_size"):
        pytest.skip("this transformers does not say so")
    setattr(model, f"_{kind}_size", 1)
    lazyllm.enable(model, STAGES)
    setattr(model, f"_{kind}_size", 2)
    with pytest.raises(lazyllm.LazyLLMError, match="split over several processes"):
        lazyllm.enable(model, STAGES)
