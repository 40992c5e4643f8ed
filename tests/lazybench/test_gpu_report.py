"""The script that measures everything on a GPU, tried without one."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from support import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from lazybench.analysis.labels import title_of
from lazybench.data import sample

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_report"
OTHERS = ("random_drop", "static_pruning", "prompt_compression")  # of the paper


@pytest.fixture
def weights(tmp_path):
    """A tiny model deep enough for the default settings, which ends every answer with its first token."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 8, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=4096, eos_token_id=0, **sizes)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(tmp_path / "weights")
    tokenizer.save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture
def records(tmp_path):
    """One short record of each dataset."""
    (tmp_path / "records").mkdir()
    for name in sample.DATASETS:
        record = asdict(sample.load(name, 1, 0, sample.MIN_TOKENS)[0])
        row = record | {"_id": record.pop("id"), "context": record["context"][-600:]}
        (tmp_path / "records" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "records"


@pytest.mark.slow
def test_it_measures_all_methods_and_resumes(weights, records, tmp_path):
    out = tmp_path / "out"
    words = ["--weights", weights, "--records", records, "--output", out, "--device", "cpu", "--lengths", 200]
    words += ["--new-tokens", 3, "--model", "smollm2_135m", "--shape", "smollm2_135m"]
    out.mkdir()
    earlier = [out / f"speed_{method}.csv" for method in ("lazyllm+", *OTHERS, "gemfilter", "fastkv")]
    for path in earlier:
        path.write_text("measured earlier\n")
    command = [sys.executable, SCRIPT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert {path.read_text() for path in earlier} == {"measured earlier\n"}
    assert set(out.glob("speed_*.csv")) == {out / "speed_lazyllm.csv", *earlier}
    assert len(pd.read_csv(out / "speed_lazyllm.csv")) == 1
    table = (out / "report" / "report.md").read_text().partition("### Table 2")[0]
    for method in ("baseline", "lazyllm", *OTHERS):
        assert table.count(f"| {title_of(method)} ") == 7, table  # a line a task, and their mean
    started = "scripts/gpu_report --weights WEIGHTS --records RECORDS --output OUTPUT"
    assert (out / "command.txt").read_text().startswith(started)
