"""A model whose heads are split over processes ranks by all of them; one that is split in another way is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import families
import pytest
import split
from refusals import refuse

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


@pytest.mark.slow
def test_tensor_parallel_is_what_one_process_gives(tmp_path):
    folders = [tmp_path / family for family in ("llama", "phi3", "gemma2")]
    for folder in folders:
        families.build(folder.name).save_pretrained(folder)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, split.__file__, *folders],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(lazyllm.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    for folder in folders:
        for way in split.WAYS:
            assert done.stdout.count(f"same: {folder.name} {way};") == 2, way
    assert done.stdout.count("refused: the model's heads are split over processes, and Own does not say") == 2 * 3


@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_a_model_that_is_split_in_another_way_is_refused(kind):
    model = families.build("llama")
    if not hasattr(model, f"{kind}_size"):
        pytest.skip("this transformers does not say so")
    setattr(model, f"_{kind}_size", 1)
    lazyllm.enable(model, STAGES)
    setattr(model, f"_{kind}_size", 2)
    refuse("split over several processes in a way that LazyLLM does not know", lambda: lazyllm.enable(model, STAGES))


@pytest.mark.parametrize("kind", ["pp", "dp", "ep"])
def test_more_ways_of_splitting_than_one_are_refused(kind):
    model = families.build("llama")
    model._tp_size, model._device_mesh = 2, SimpleNamespace(ndim=1, get_group=lambda: None)
    lazyllm.enable(model, STAGES)
    model.config.distributed_config = SimpleNamespace(tp_size=2, **{f"{kind}_size": 2})
    refuse("split over several processes in a way that LazyLLM does not know", lambda: lazyllm.enable(model, STAGES))
